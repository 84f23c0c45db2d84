"""Megatron-LM's HybridModel: what its pattern of layers spells, and which models need it in GPTModel's place.

A layer of HybridModel is a mixer or an MLP, each behind a norm and beside a residual: a layer of a descriptor is one of
them or both (core_v0.18.2 and core_v0.19.0, megatron/core/models/hybrid/hybrid_layer_allocation.py, hybrid_block.py).
Before, MambaModel had a pattern without stages, which is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TypeVar

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER, Attention, LayerKind, Mlp

T = TypeVar("T")

SINCE = "core_v0.18.2"
SCRIPT, GPT_SCRIPT = "pretrain_hybrid.py", "pretrain_gpt.py"
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
MAMBA2, DELTA = "mamba2", "gated_delta_net"  # blocks by their names in graph/blocks
DELTA_WORDS = ("gdn", DELTA)  # of --experimental-attention-variant: since main, and before

MIXERS = MappingProxyType({str(Attention.GQA): "*", str(Attention.MLA): "+", MAMBA2: "M", DELTA: "G", NO_MIXER: ""})
MLPS = MappingProxyType({Mlp.DENSE: "-", Mlp.MOE: "E", Mlp.NONE: ""})
STAGE, PREDICTION = "|", "/"

# Sizes of blocks by the option's destination. Those of MIXED go with either model, those of STATE with HybridModel.
_OF_DELTA = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
DELTA_SIZES = MappingProxyType({f"linear_{name}": f"linear_{name}" for name in _OF_DELTA})
MAMBA_SIZES = MappingProxyType(
    {
        "mamba_num_heads": "mamba_num_heads",
        "mamba_head_dim": "mamba_head_dim",
        "mamba_num_groups": "n_groups",
        "mamba_state_dim": "ssm_state_size",
    }
)
SIZES = MappingProxyType({DELTA: DELTA_SIZES, MAMBA2: MAMBA_SIZES})
# What MambaMixer has and no option changes (core/ssm/mamba_mixer.py, __init__).
MAMBA_KERNEL, MAMBA_CHUNK, MAMBA_NORM_EPS = 4, 128, 1e-5
MAMBA_SWITCHES = frozenset({"conv_bias", "gated_norm"})


def hybrid(model: ModelDescriptor) -> bool:
    """Return whether some layer cannot be built by GPTModel, so that the model needs HybridModel.

    That is a layer without MLP, or with a mixer other than attention, latent attention and (only without multi-token
    prediction) a gated delta net (models/gpt/gpt_layer_specs.py, get_gpt_decoder_layer_specs).
    """
    own = (str(Attention.GQA), str(Attention.MLA), *(() if model.num_nextn_predict_layers else (DELTA,)))
    return any(kind.mlp is Mlp.NONE or kind.mixer not in own for kind in dict.fromkeys(model.kind_of_layer))


def symbols(kind: LayerKind) -> str:
    """Return a layer's letters, its mixer's and its MLP's; raise KeyError for a mixer without one."""
    return MIXERS[kind.mixer] + MLPS[kind.mlp]


def letters(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the letters of every layer; raise KeyError for a mixer without one."""
    return tuple(symbols(kind) for kind in model.kind_of_layer)


def layer_count(model: ModelDescriptor) -> int:
    """Return the number of layers as Megatron-LM counts them: in HybridModel mixers and MLPs are layers of their own.

    Raises:
        KeyError: a hybrid model has a mixer without a letter.
    """
    return sum(map(len, letters(model))) if hybrid(model) else model.num_hidden_layers


def parts_of_layer(model: ModelDescriptor) -> int | None:
    """Return how many of Megatron-LM's layers each layer of the model is (1 or 2); None if they differ.

    1 if GPTModel builds it, or if some layer has no letters.
    """
    if not hybrid(model) or not known(model):
        return 1
    counts = {len(each) for each in letters(model)}
    return counts.pop() if len(counts) == 1 else None


def known(model: ModelDescriptor) -> bool:
    """Return whether every layer of a model has letters in HybridModel's pattern."""
    return all(kind.mixer in MIXERS and kind.beside is None for kind in model.kind_of_layer)


def of_mixers(model: ModelDescriptor, values: Sequence[T], otherwise: T) -> tuple[T, ...]:
    """Return a value for each of Megatron-LM's layers: the layer's own for its first letter, `otherwise` for a second.

    values: one for each layer of the model; just these for GPTModel or if a layer has no letters.
    """
    if not hybrid(model) or not known(model):
        return tuple(values)
    pairs = zip(letters(model), values, strict=True)
    return tuple(value if place == 0 else otherwise for each, value in pairs for place in range(len(each)))


def pattern(model: ModelDescriptor, chunks: Sequence[Sequence[str]]) -> str:
    """Return the value of --hybrid-layer-pattern: the letters of all layers, chunks separated by `|`.

    chunks: kinds of blocks of each chunk in model order; kinds that are no layers are skipped. Multi-token predictions
    follow, each as `/` and the last layer's letters. Raises KeyError for a mixer without a letter.
    """
    kinds = {kind.name: symbols(kind) for kind in model.kind_of_layer}
    stages = STAGE.join("".join(kinds.get(kind, "") for kind in chunk) for chunk in chunks)
    return stages + (PREDICTION + symbols(model.kind_of_layer[-1])) * model.num_nextn_predict_layers

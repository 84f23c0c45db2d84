"""Megatron-LM's sparse attention (DSA): what its options say of an indexer, and what it runs with.

core_v0.19.0: transformer/experimental_attention_variant/, transformer_config.py,
models/gpt/experimental_attention_variant_module_specs.py. Before, its attention was computed otherwise, which is not
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from symconfig.frameworks.constraint import Constraint
from symconfig.plans.configuration_set import among, has, no

SINCE = "core_v0.19.0"
VARIANT, NAME = "--experimental-attention-variant", "dsa"
# Fields of an indexer by the option's destination.
SIZES = MappingProxyType(
    {"dsa_indexer_n_heads": "index_n_heads", "dsa_indexer_head_dim": "index_head_dim", "dsa_indexer_topk": "index_topk"}
)
FREQUENCY, OFFSET = "dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset"
LOSS, OF_CHOSEN = "dsa_indexer_loss_coeff", "dsa_indexer_use_sparse_loss"
KERNELS, BACKEND = "dsa_kernel_backend", "cudnn"  # as in Megatron-Bridge's recipes, on Hopper and Blackwell
# What its modules need where they run (core/utils.py, _missing_cudnn_dsa_kernel_dependencies).
PACKAGES = "flash_mla and nvidia-cudnn-frontend[cutedsl]"
KEY_NORM_EPS = 1e-6  # of the LayerNorm of an indexer's keys, which every class fixes (DeepseekV32Indexer, k_norm)
ARCHITECTURES = frozenset(("hopper", "blackwell"))
_SOURCE = "megatron/core/transformer"
_DSA = f"{_SOURCE}/experimental_attention_variant"
_INDEXED = {"latent": True, "indexed": True}


def choosing_layers(frequency: int, offset: int, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has an indexer, else it takes an earlier choice.

    The first max(offset, 1) layers have one, then every `frequency`-th after them (dsa.py, is_dsa_skip_topk_layer).
    """
    start = max(offset, 1)
    return tuple(max(layer - start, 0) % frequency == 0 for layer in range(1, layers + 1))


def as_numbers(own: Sequence[bool]) -> tuple[int, int] | None:
    """Return (frequency, offset) for which `choosing_layers` gives `own`, the smallest ones; None if there are none."""
    layers = len(own)
    pairs = ((frequency, offset) for frequency in range(1, layers + 1) for offset in range(layers + 1))
    return next((pair for pair in pairs if choosing_layers(*pair, layers) == tuple(own)), None)


WITHOUT_SEQUENCE = Constraint(
    name="sparse attention without sequence parallelism",
    predicate=lambda f, p: f.indexed & (p.tp > 1) & no(p.sequence_parallel),
    rule="sparse attention with tensor parallelism needs sequence parallelism",
    sentence="sparse attention over latent keys with tp {p.tp} needs sequence parallelism",
    about="sequence_parallel",
    got="{p.sequence_parallel}",
    pins=("sp=1", "tp=1"),
    since=SINCE,
    source=f"{_DSA}/absorbed_mla.py, __init__",
    example=_INDEXED | {"tp": 2, "sequence_parallel": False},
)
SPARSE_CONSTRAINTS: tuple[Constraint, ...] = (
    WITHOUT_SEQUENCE,
    Constraint(
        name="sparse attention over cp",
        predicate=lambda f, p: f.indexed & (p.cp > 1) & no(has(p.cp_comm, "all_gather")),
        rule="context parallelism of sparse attention gathers keys",
        sentence="context parallelism of sparse attention gathers keys, and has no {p.cp_comm}",
        got="{p.cp_comm}",
        pins=("cp_comm=all_gather", "cp=1"),
        since=SINCE,
        source=f"{_SOURCE}/transformer_config.py, __post_init__",
        example=_INDEXED | {"cp": 2, "cp_comm": "p2p", "seq_length": 8192},
    ),
    Constraint(
        name="choices over stages",
        predicate=lambda f, p: f.shared_choice & (p.pp > 1),
        rule="keys that an indexer chose are not sent to another stage",
        sentence="layers read keys that an indexer of another layer chose, which are not sent to another of pp {p.pp} "
        "stages",
        pins=("pp=1",),
        since=SINCE,
        source="megatron/core/models/gpt/experimental_attention_variant_module_specs.py, "
        "_validate_dsa_index_share_pipeline_split",
        example=_INDEXED | {"shared_choice": True, "pp": 2},
    ),
    Constraint(
        name="sparse kernels of a GPU",
        predicate=lambda f, p: f.indexed & no(among(f.architecture, ARCHITECTURES)),
        rule="kernels of sparse attention are for Hopper and Blackwell",
        sentence="kernels of sparse attention are for Hopper and Blackwell, and not for {f.architecture}",
        about="indexer",
        got="{f.architecture}",
        since=SINCE,
        source="Megatron-Bridge, perf_recipes/glm_moe_dsa, dsa_kernel_backend; github.com/deepseek-ai/FlashMLA",
        example=_INDEXED | {"architecture": "ada"},
    ),
)

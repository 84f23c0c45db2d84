"""Parameter counts, from the weights that the operators declare, and the layers that adapters can lie beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from symconfig.descriptor.architectures.class_defaults import SCORE_BIAS
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_TARGETS, Adapter, AdapterTarget
from symconfig.graph import dims as d
from symconfig.graph.block import Block, Place
from symconfig.graph.model import blocks, dim_sizes, sequence


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Hold parameter counts of the unpadded model. `active`: used for one token. `by_part`: per kind of block, all of
    its blocks together, trained or frozen.
    """

    total: int
    active: int
    trainable: int
    by_part: Mapping[str, int]


@lru_cache(maxsize=128)
def parameters(model: ModelDescriptor, with_mtp: bool = True) -> ParameterCount:
    """Return the exact parameter counts of the unpadded model, each kind of block times its number. Cached. A tied head
    is counted once; adapters count as trainable and in the total. Active: experts count by the share that computes for
    one token. Biases of the routers' scores of families in SCORE_BIAS, which are untrained, are added to total and
    active, not to by_part. with_mtp: include the multi-token-prediction layers.
    """
    sizes = dim_sizes(model)
    kinds = blocks(model)
    share = 1.0
    if model.experts is not None:
        share = model.experts.computing_per_tok / model.experts.num_experts
    total = active = trainable = 0
    by_part: dict[str, int] = {}
    for kind, times in Counter(sequence(model)).items():
        if kinds[kind].place is Place.FURTHER and not with_mtp:
            continue
        part, part_active, part_trainable = _block(kinds[kind], sizes, share, model.tie_word_embeddings)
        by_part[kind] = times * part
        total += times * part
        active += times * part_active
        trainable += times * part_trainable
    untrained = 0  # biases of the choice that a class has as parameters, but without a gradient
    if model.experts is not None and model.model_type in SCORE_BIAS:
        untrained = model.experts.num_experts * sum(model.moe_layers)
    return ParameterCount(total + untrained, active + untrained, trainable, by_part)


@lru_cache(maxsize=128)
def largest_trained(model: ModelDescriptor) -> int:
    """Return the number of elements of the largest weight that is not frozen, with all experts of a layer as one
    weight. Cached. Raise ValueError if all weights are frozen.
    """
    sizes = dim_sizes(model)
    weights = (weight for block in blocks(model).values() for op in block.operators for weight in op.weights)
    return max(round(d.elements(weight.dims).value(sizes)) for weight in weights if not weight.frozen)


def _block(block: Block, sizes: dict[str, float], share: float, tied: bool) -> tuple[int, int, int]:
    """Return (total, active, trainable) parameters of one block. Skips weights that another block holds and, if `tied`,
    the table of the last block. share: ratio of experts that one token activates, by which active counts weights with
    an experts dim.
    """
    total = active = trainable = 0
    for op in block.operators:
        for weight in op.weights:
            if weight.shared or (tied and weight.table and block.place is Place.LAST):
                continue
            count = round(d.elements(weight.dims).value(sizes))
            total += count
            active += round(count * share) if d.EXPERTS in weight.dims else count
            trainable += 0 if weight.frozen else count
    return total, active, trainable


Targets = tuple[AdapterTarget, ...]

ATTENTION: frozenset[AdapterTarget] = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
     "kv_b_proj")
)  # fmt: skip
MLP: frozenset[AdapterTarget] = frozenset(("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2"))
# Of Qwen-7B c_proj is the name of the attention's output and of the MLP's: in neither of the two.


@lru_cache(maxsize=64)
def targets(model: ModelDescriptor) -> Targets:
    """Return the names of a model's linear layers, including fused ones, that `Adapter.target_modules` accepts, that
    `model.names_target` and for which an adapter on that layer trains a weight in some block. Cached.
    """
    names: Targets = get_args(AdapterTarget)

    def trained(name: AdapterTarget) -> bool:
        """Return whether an adapter of rank 1 on this layer, and on no other, gives any block a weight that is not
        frozen.
        """
        adapter = Adapter(r=1, lora_alpha=1.0, target_modules=(name,))
        every = blocks(model.model_copy(update={"adapter": adapter})).values()
        return any(not weight.frozen for block in every for op in block.operators for weight in op.weights)

    return tuple(name for name in names if model.names_target(name) and trained(name))


def layers(names: Iterable[AdapterTarget], fuses: Collection[AdapterTarget] = ()) -> Targets:
    """Return the names without overlap: a fused layer in `fuses` replaces its parts, other fused layers are dropped."""
    every = [name for name in names if name in fuses or name not in FUSED_TARGETS]
    inside = {part for whole, pieces in FUSED_TARGETS.items() if whole in every for part in pieces}
    return tuple(name for name in every if name not in inside)

"""Which of a model's linear layers adapters can lie beside: those whose names give its graph weights to train."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import get_args

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_TARGETS, Adapter, AdapterTarget
from symconfig.graph.model import blocks
from symconfig.graph.operator import Weight

Targets = tuple[AdapterTarget, ...]

ATTENTION: frozenset[AdapterTarget] = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
     "kv_b_proj")
)  # fmt: skip
MLP: frozenset[AdapterTarget] = frozenset(("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2"))
# Of Qwen-7B c_proj is the name of the attention's output and of the MLP's: in neither of the two.


@lru_cache(maxsize=64)
def targets(model: ModelDescriptor) -> Targets:
    """Return the names of a model's linear layers, fused ones among them, as `Adapter.target_modules` takes them."""
    names: Targets = get_args(AdapterTarget)
    return tuple(name for name in names if model.names_target(name) and _trained(model, name))


def layers(names: Iterable[AdapterTarget], fuses: Collection[AdapterTarget] = ()) -> Targets:
    """Return the names of layers of their own. fuses: fused layers, which stand in the place of their parts."""
    every = [name for name in names if name in fuses or name not in FUSED_TARGETS]
    inside = {part for whole, pieces in FUSED_TARGETS.items() if whole in every for part in pieces}
    return tuple(name for name in every if name not in inside)


def _trained(model: ModelDescriptor, name: AdapterTarget) -> list[Weight]:
    """Return what an adapter trains whose only target is this name."""
    adapter = Adapter(r=1, lora_alpha=1.0, target_modules=(name,))
    every = blocks(model.model_copy(update={"adapter": adapter})).values()
    return [weight for block in every for op in block.operators for weight in op.weights if not weight.frozen]

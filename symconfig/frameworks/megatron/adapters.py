"""Which adapters Megatron-Bridge can put beside Megatron's fused layers, and what it calls them.

Read in megatron-bridge 0.3.1: peft/lora.py, peft/canonical_lora.py, peft/utils.py (ParallelLinearAdapter).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_PARTS, AdapterTarget, Attention

# Names of PEFT's by Megatron's: of fused layers, with one adapter each (LoRA), and of their parts (CanonicalLoRA).
FUSED: dict[str, AdapterTarget] = {
    "linear_qkv": "qkv_proj", "linear_proj": "o_proj", "linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"
}  # fmt: skip
PARTS: dict[str, AdapterTarget] = {
    "linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj",
    "linear_fc1_gate": "gate_proj", "linear_fc1_up": "up_proj",
}  # fmt: skip
# Of Qwen-7B c_proj is the name of both row-parallel layers.
_OTHERS = {"c_attn": "linear_qkv", "w2": "linear_fc1_gate", "w1": "linear_fc1_up"}
_ROWS = ("linear_proj", "linear_fc2")
# Latent attention's, which has no parts and no whole.
_LATENT = {
    "q_a_proj": "linear_q_down_proj", "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj", "kv_b_proj": "linear_kv_up_proj",
}  # fmt: skip
_WHOLE = ({"linear_q", "linear_k", "linear_v"}, {"linear_fc1_gate", "linear_fc1_up"})
_OF_THE_MLP = ("linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2")


def peft_names(module: str) -> tuple[str, ...]:
    """Return PEFT's names of Megatron-Bridge's module, that of a model with a gate first; any other name is its own."""
    name = (FUSED | PARTS).get(module, module)
    return (name, "up_proj") if module == "linear_fc1" else (name,)


@dataclass(frozen=True, slots=True)
class Targets:
    """Megatron-Bridge's class of adapters, and its target modules in Megatron's order."""

    kind: Literal["LoRA", "CanonicalLoRA"]
    modules: tuple[str, ...]

    @property
    def by_columns(self) -> bool:
        """Return whether an adapter lies on a column-parallel layer, where tensor parallelism splits the rank."""
        return any(name not in _ROWS for name in self.modules)


def targets(model: ModelDescriptor) -> Targets | None:
    """Return the adapter's class and target modules by Megatron-Bridge's names, in Megatron's order.

    None without an adapter. The class is CanonicalLoRA if a part of a fused layer is a target, else LoRA. Without a
    gate, up_proj is linear_fc1; c_proj is both row-parallel layers.

    Raises:
        KeyError: a target has no such name.
    """
    if model.adapter is None:
        return None
    names: dict[str, str] = {peft: megatron for megatron, peft in (FUSED | PARTS).items()}
    modules: list[str] = []
    for name in model.adapter.target_modules:
        if name == "up_proj" and not model.gated_mlp:  # all that the first layer is
            modules.append("linear_fc1")
        elif name == "c_proj":
            modules += _ROWS
        else:
            modules.append((names | _OTHERS | _LATENT)[name])
    order = ("linear_qkv", "linear_q", "linear_k", "linear_v", *_LATENT.values(), "linear_proj", *_OF_THE_MLP)
    parts = any(name in modules for name in PARTS)
    return Targets("CanonicalLoRA" if parts else "LoRA", tuple(name for name in order if name in modules))


# Targets whose adapters are mcore-bridge's: each expert has one of its own, and each fused layer has one (mcore-bridge
# 1.6.5, tuners/lora.py).
MCORE_BRIDGE = ("ms-swift",)


def as_laid(model: ModelDescriptor, target: str | None) -> ModelDescriptor:
    """Return the model with q, k, v (gate, up) adapters replaced by one on the fused layer, if all parts are targets.

    Only for targets in MCORE_BRIDGE (ms-swift); else, and without an adapter, the model itself.
    """
    if model.adapter is None or target not in MCORE_BRIDGE:
        return model
    names = model.adapter.target_modules
    for whole, parts in FUSED_PARTS.items():
        if parts <= {*names}:
            names = tuple(dict.fromkeys(whole if name in parts else name for name in names))
    return model.model_copy(update={"adapter": model.adapter.model_copy(update={"target_modules": names})})


def refusals(model: ModelDescriptor, target: str | None = None) -> Iterator[str]:
    """Yield each reason for which Megatron-Bridge cannot train the model's adapter as it is meant.

    They are 4-bit base weights, latent attention, experts (unless `target` uses mcore-bridge), fused layers beside
    parts of fused layers, and some parts of one without the others. Nothing without an adapter; KeyError for a target
    module that Megatron-Bridge does not name.
    """
    modules = targets(model)
    if model.adapter is None or modules is None:
        return
    chosen, both = set(modules.modules), "either on fused layers or on their parts, not here so and there so"
    if model.adapter.method == "qlora":
        yield "Megatron-Bridge keeps no base weights in 4 bits"
    if model.attention is Attention.MLA:
        yield "adapters beside latent attention are not modelled for Megatron-Bridge"
    if model.experts is not None and chosen & set(_OF_THE_MLP) and target not in MCORE_BRIDGE:
        yield "Megatron-Bridge gives all experts of a rank one adapter together, not each its own"
    if modules.kind == "CanonicalLoRA" and chosen & {"linear_qkv", "linear_fc1"}:
        yield f"Megatron-Bridge puts adapters {both}"
    if any(chosen & whole and not whole <= chosen for whole in _WHOLE):
        parts = "of each part of a fused layer: of q, k and v, or of gate and up"
        yield f"Megatron-Bridge's CanonicalLoRA calls an adapter {parts}"

"""What PEFT calls the layers of Transformers' classes, and which of them are fused there.

Names are those of the classes (modules.json, by tools/generate/modules.py). The class of a model is that of
`descriptor.write`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import get_args

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_PARTS, FUSED_TARGETS, AdapterTarget
from symconfig.errors import InfeasibleError, Problem
from symconfig.resources import json_data

# For each model_type its kinds of layers, each as module name to stems of the graph's weights in it.
FILE = Path(__file__).with_name("modules.json")
# Qwen-7B trains as Qwen2, which is the same architecture with q, k and v apart.
_QWEN: Mapping[str, tuple[str, ...]] = {
    "c_attn": ("q_proj", "k_proj", "v_proj"),
    "c_proj": ("o_proj", "down_proj"),
    "w1": ("up_proj",),
    "w2": ("gate_proj",),
}


@cache
def _names(kind: str) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the layers in a family's class by target module of an adapter, where the two differ; cached.

    A fused layer is listed under the fused target, and its parts (q_proj, gate_proj, …) are then in no key. kind: the
    model_type; {} for an unknown one; qwen is trained as Qwen2, with q, k and v in layers of their own.
    """
    if kind == "qwen":
        return _QWEN
    from symconfig.descriptor.architectures.keys import SAME_NETWORK

    layers = json_data(FILE).get(SAME_NETWORK.get(kind, kind), ())
    rows = {
        # a layer with all parts of a fused target is that target
        module: (*(whole for whole, parts in FUSED_PARTS.items() if parts <= set(stems)), *stems)
        for layer in layers
        for module, stems in layer.items()
    }
    names: dict[str, tuple[str, ...]] = {}
    for module, stems in rows.items():
        target = stems[0]
        if target in get_args(AdapterTarget) and (len(stems) == 1 or target in FUSED_TARGETS):
            name = _unique_suffix(module, target, rows)
            if name != target:
                names[target] = tuple(dict.fromkeys((*names.get(target, ()), name)))
    for whole, parts in FUSED_TARGETS.items():
        if any(whole == stems[0] for stems in rows.values()):
            names.setdefault(whole, (whole,))
            names = {name: to for name, to in names.items() if name not in parts}
    return names


def _unique_suffix(module: str, target: str, rows: Mapping[str, tuple[str, ...]]) -> str:
    """Return the shortest suffix of a module's name, in whole words, that no other layer's name ends with.

    PEFT matches target modules by suffix. Experts' layers and those of the target itself do not count as other ones; a
    number is no suffix. The whole name if no suffix is unique. rows: modules to their stems.
    """
    words = module.split(".")
    others = [
        other
        for other, stems in rows.items()
        if not stems[0].startswith("expert_") and stems[0] not in (target, f"shared_{target}")
    ]
    for start in range(len(words) - 1, -1, -1):
        end = ".".join(words[start:])
        alone = not any(other == end or other.endswith(f".{end}") for other in others)
        if alone and not end.isdigit():  # which would be a layer's
            return end
    return module


def fuses(model: ModelDescriptor) -> frozenset[AdapterTarget]:
    """Return the fused targets that are one layer in the model's Transformers class."""
    return frozenset(name for name in FUSED_TARGETS if name in _names(model.model_type))


def target_modules(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the adapter's target modules by the names of the model's Transformers class; () without an adapter.

    Raises:
        InfeasibleError: the class lacks a fused target, or fuses a target (all reasons of `refusals`).
    """
    if problems := [Problem(reason, field="adapter.target_modules") for reason in refusals(model)]:
        raise InfeasibleError(problems)
    return modules(model)


def modules(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the adapter's target modules by the names of the model's class, each once; () without an adapter.

    One target may become several layers. A target that the class does not rename keeps its name, whether it has such a
    layer or not.
    """
    if model.adapter is None:
        return ()
    names = _names(model.model_type)
    every = (new for old in model.adapter.target_modules for new in names.get(old, (old,)))
    return tuple(dict.fromkeys(every))


def refusals(model: ModelDescriptor) -> Iterator[str]:
    """Yield why Transformers' class of the model cannot have the adapter's targets; nothing without an adapter.

    One sentence names all fused targets that the class lacks; for each layer that the class fuses, one names targets
    that are parts of it.
    """
    if model.adapter is None:
        return
    has, chosen = fuses(model), model.adapter.target_modules
    if missing := [name for name in chosen if name in FUSED_TARGETS and name not in has]:
        yield f"Transformers' class of {model.model_type} has no fused {_listed(missing)}"
    for whole in sorted(has):
        if inside := [name for name in chosen if name in FUSED_TARGETS[whole]]:
            named = _listed(inside)
            yield f"Transformers' class of {model.model_type} has {named} in one layer, which adapters know as {whole}"


def _listed(names: list[AdapterTarget]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

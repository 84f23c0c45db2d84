"""What PEFT calls the layers of Transformers' classes, and which of them are fused there.

Read in Transformers 5.23: models/*/modeling_*.py. The class of a model is `descriptor.config_writer`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from symconfig.descriptor.model import FUSED_TARGETS, AdapterTarget, ModelDescriptor
from symconfig.errors import InfeasibleError, Problem

_GPT2 = {"qkv_proj": ("c_attn",), "o_proj": ("attn.c_proj",), "up_proj": ("c_fc",), "down_proj": ("mlp.c_proj",)}
# By model_type, where a class calls its layers otherwise than Llama's. Qwen-7B trains as Qwen2, which is the same
# architecture with q, k and v apart.
_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "qwen": {
        "c_attn": ("q_proj", "k_proj", "v_proj"),
        "c_proj": ("o_proj", "down_proj"),
        "w1": ("up_proj",),
        "w2": ("gate_proj",),
    },
    "phi3": {"qkv_proj": ("qkv_proj",), "gate_up_proj": ("gate_up_proj",)},
    "gpt_neox": {
        "qkv_proj": ("query_key_value",),
        "o_proj": ("attention.dense",),
        "up_proj": ("dense_h_to_4h",),
        "down_proj": ("dense_4h_to_h",),
    },
    "gpt2": _GPT2,
    "gpt3": _GPT2,
}


def fuses(model: ModelDescriptor) -> frozenset[AdapterTarget]:
    """Return the fused layers of a model's class."""
    return frozenset(name for name in FUSED_TARGETS if name in _NAMES.get(model.model_type, {}))


def target_modules(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the adapter's modules in the names of the model's class.

    Raises InfeasibleError for an adapter on what is no layer of its own there.
    """
    if problems := [Problem(reason, field="adapter.target_modules") for reason in refusals(model)]:
        raise InfeasibleError(problems)
    return modules(model)


def modules(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the adapter's modules in the names of the model's class, as far as it has them."""
    if model.adapter is None:
        return ()
    names = _NAMES.get(model.model_type, {})
    every = (new for old in model.adapter.target_modules for new in names.get(old, (old,)))
    return tuple(dict.fromkeys(every))


def refusals(model: ModelDescriptor) -> Iterator[str]:
    """Yield what of a model's adapter its class has no layers for."""
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

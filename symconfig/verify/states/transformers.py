"""A model's parameters as Transformers' classes and PEFT's adapters register them: names, order, what is one tensor.

The rows are those of Transformers 5.23 (models/*/modeling_*.py); sizes come from the weights that the graph declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.model import blocks, dim_sizes
from symconfig.graph.operator import Weight

Rows = dict[str, tuple[str, ...]]  # a module of a layer -> the graph's weights that it may hold, by their stems

_ATTENTION: Rows = {
    "self_attn.sinks": ("sinks",),
    "self_attn.q_proj": ("q_proj",),
    "self_attn.k_proj": ("k_proj",),
    "self_attn.v_proj": ("v_proj",),
    "self_attn.o_proj": ("o_proj",),
    "self_attn.q_norm": ("q_norm",),
    "self_attn.k_norm": ("k_norm",),
}
_MLP: Rows = {"mlp.gate_proj": ("gate_proj",), "mlp.up_proj": ("up_proj",), "mlp.down_proj": ("down_proj",)}
_NORMS: Rows = {"input_layernorm": ("input_norm",), "post_attention_layernorm": ("mlp_norm",)}
_LLAMA: Rows = {**_ATTENTION, **_MLP, **_NORMS}
_FOUR_NORMS: Rows = {
    "input_layernorm": ("input_norm",),
    "post_attention_layernorm": ("post_attention_norm",),
    "pre_feedforward_layernorm": ("mlp_norm",),
    "post_feedforward_layernorm": ("post_mlp_norm",),
}
_EXPERTS: Rows = {
    "mlp.experts.gate_up_proj": ("expert_gate_proj", "expert_up_proj"),
    "mlp.experts.down_proj": ("expert_down_proj",),
}
_GATE: Rows = {"mlp.gate": ("router",)}


def _shared(module: str) -> Rows:
    return {f"{module}.{part}_proj": (f"shared_{part}_proj",) for part in ("gate", "up", "down")}


_LOW_QUERY: Rows = {
    "self_attn.q_a_proj": ("q_down_proj",),
    "self_attn.q_a_layernorm": ("q_low_norm",),
    "self_attn.q_b_proj": ("q_up_proj",),
}
_DEEPSEEK: Rows = {
    "self_attn.kv_a_proj_with_mqa": ("kv_down_proj",),
    "self_attn.kv_a_layernorm": ("kv_low_norm",),
    "self_attn.kv_b_proj": ("kv_up_proj",),
    "self_attn.o_proj": ("o_proj",),
    **_MLP, **_EXPERTS, **_GATE, **_shared("mlp.shared_experts"), **_NORMS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """Of one class: the rows of a layer in order of registration, and what stands around the layers."""

    layer: Rows
    layers: str = "model.layers"
    first: tuple[str, ...] = ("model.embed_tokens",)
    norm: str = "model.norm"


_FIRST = (("word_embedding",), ("position_embedding",))
_PLAIN = Names(_LLAMA)
_QWEN2_MOE: Rows = {**_ATTENTION, **_MLP, **_GATE, **_EXPERTS, **_shared("mlp.shared_expert"),
                    "mlp.shared_expert_gate": ("shared_gate",), **_NORMS}  # fmt: skip
_GEMMA = Names({**_ATTENTION, **_MLP, **_FOUR_NORMS})
_PHI3: Rows = {"self_attn.o_proj": ("o_proj",), "self_attn.qkv_proj": ("qkv_proj", "q_proj", "k_proj", "v_proj"),
               "mlp.gate_up_proj": ("gate_up_proj", "gate_proj", "up_proj"), "mlp.down_proj": ("down_proj",),
               **_NORMS}  # fmt: skip
_GPT_NEOX: Rows = {**_NORMS, "attention.query_key_value": ("qkv_proj", "q_proj", "k_proj", "v_proj"),
                   "attention.dense": ("o_proj",), "mlp.dense_h_to_4h": ("up_proj",),
                   "mlp.dense_4h_to_h": ("down_proj",)}  # fmt: skip
_GPT2: Rows = {"ln_1": ("input_norm",), "attn.c_attn": ("qkv_proj", "q_proj", "k_proj", "v_proj"),
               "attn.c_proj": ("o_proj",), "ln_2": ("mlp_norm",), "mlp.c_fc": ("up_proj",),
               "mlp.c_proj": ("down_proj",)}  # fmt: skip
_GPT2_NAMES = Names(_GPT2, "transformer.h", ("transformer.wte", "transformer.wpe"), "transformer.ln_f")
_OF_TYPE: Mapping[str, Names] = {
    "mixtral": Names({**_ATTENTION, **_GATE, **_EXPERTS, **_NORMS}),
    "qwen2_moe": Names(_QWEN2_MOE),
    "qwen3_moe": Names({**_ATTENTION, **_MLP, **_EXPERTS, **_GATE, **_NORMS}),
    "gpt_oss": Names({**_ATTENTION, "mlp.router": ("router",), **_EXPERTS, **_NORMS}),
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma3_text": _GEMMA,
    "phi3": Names(_PHI3),
    "gpt_neox": Names(_GPT_NEOX, "gpt_neox.layers", ("gpt_neox.embed_in",), "gpt_neox.final_layer_norm"),
    "gpt2": _GPT2_NAMES,
    "gpt3": _GPT2_NAMES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One parameter, whole. parts: elements of each of the graph's weights in it.

    vector: has one dim, as norms and biases have. expert, router: of the routed experts. split: the size of the dim
    that tensor parallelism may cut, 0 if there is none.
    """

    name: str
    parts: tuple[int, ...]
    vector: bool
    expert: bool
    router: bool
    trainable: bool
    split: int

    @property
    def elements(self) -> int:
        return sum(self.parts)


def registered(model: ModelDescriptor) -> tuple[Registered, ...]:
    """All parameters in the order of `model.parameters()`. A tied head is the embedding."""
    names = _names(model)
    kinds = {
        kind: {weight.name: weight for op in block.operators for weight in op.weights if not weight.shared}
        for kind, block in blocks(model, DEEPSPEED.implementation).items()
    }
    sizes = {name: round(size) for name, size in dim_sizes(model).items()}
    found = list(_of_rows(dict(zip(names.first, _FIRST, strict=False)), kinds["embedding"], sizes))
    for index, kind in enumerate(model.layer_kinds):
        rows = {f"{names.layers}.{index}.{module}": stems for module, stems in names.layer.items()}
        found += _of_rows(rows, kinds[kind], sizes)
    last: Rows = {names.norm: ("final_norm",)}
    if not model.tie_word_embeddings:
        last["lm_head"] = ("lm_head",)
    found += _of_rows(last, kinds["head"], sizes)
    if model.adapter is None:
        return tuple(found)
    return tuple(replace(parameter, name=f"base_model.model.{parameter.name}") for parameter in found)


def _names(model: ModelDescriptor) -> Names:
    if model.latent is None:
        return _OF_TYPE.get(model.model_type, _PLAIN)
    return Names((_LOW_QUERY if model.latent.q_lora_rank else {"self_attn.q_proj": ("q_up_proj",)}) | _DEEPSEEK)


def _of_rows(rows: Rows, weights: Mapping[str, Weight], sizes: Mapping[str, int]) -> Iterator[Registered]:
    """The parameters of some modules, each with its weight and bias, then its adapter's two matrices."""
    for module, stems in rows.items():
        held = {
            suffix: [weights[f"{stem}{suffix}"] for stem in stems if f"{stem}{suffix}" in weights]
            for suffix in ("", ".weight", ".bias", ".lora_A", ".lora_B")
        }
        for suffix, parts in held.items():
            if parts:
                yield _registered(module + _name(suffix, parts[0], bool(held[".lora_A"])), parts, sizes)


def _name(suffix: str, weight: Weight, adapted: bool) -> str:
    """What follows a module's name: experts are tensors of their own, and an adapter wraps the layer that it is on."""
    if weight.name.endswith((".lora_A", ".lora_B")):
        return f"{suffix}.default.weight"
    if d.EXPERTS in weight.dims:
        return {".weight": "", ".bias": "_bias"}[suffix]
    return f".base_layer{suffix}" if adapted else suffix


def _registered(name: str, parts: list[Weight], sizes: Mapping[str, int]) -> Registered:
    dims = parts[0].dims
    cut = [dim for dim in dims if dim in d.TENSOR_DIMS]
    return Registered(
        name=name,
        parts=tuple(d.elements(weight.dims).whole(sizes) for weight in parts),
        vector=len(dims) == 1 or (name.endswith("bias") and d.EXPERTS not in dims),
        expert=d.EXPERTS in dims,
        router=parts[0].name.startswith("router."),
        trainable=not parts[0].frozen,
        split=sizes[cut[0]] if cut else 0,
    )

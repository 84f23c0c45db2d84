"""What Megatron resolved, read as what it means for a model: one function for each that is not a plain copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Position
from symconfig.frameworks.megatron import hybrid, sparse
from symconfig.verify.megatron_session import Result

ACTIVATIONS = {  # (hidden_act, gated_mlp) -> (function, gated, fused with the bias: the tanh form of GELU)
    ("silu", True): ("torch.nn.functional.silu", True, None),
    ("clamped_swiglu", True): ("megatron.core.fusions.fused_bias_geglu.quick_gelu", True, None),
    ("gelu_sigmoid", True): ("megatron.core.fusions.fused_bias_geglu.quick_gelu", True, None),
    ("relu2", False): ("megatron.core.activations.squared_relu", False, None),
    ("gelu", False): ("torch._C._nn.gelu", False, False),
    ("gelu_tanh", False): ("torch._C._nn.gelu", False, True),
}
CLAMPED_SWIGLU = (7.0, 1.0)  # clamp and offset in transformers' modeling_gpt_oss.py
LLAMA3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "factor": 8.0,
}  # RotaryEmbedding._apply_scaling; no option reaches it
MLA_YARN = {"original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}  # MLATransformerConfig


class Resolved:
    """The values that Megatron resolved: its transformer config first, then its namespace."""

    def __init__(self, result: Result) -> None:
        self._config, self.args = result.config, result.args

    def __call__(self, name: str, neutral: Any = None) -> Any:
        """Return Megatron's value of `name` from its transformer config, else from its arguments. neutral: the value if
        this version has neither.
        """
        return self._config[name] if name in self._config else self.args.get(name, neutral)

    def arg(self, name: str, neutral: Any = None) -> Any:
        return self.args.get(name, neutral)


Got = Callable[[ModelDescriptor, Resolved], Any]


def gqa(model: ModelDescriptor) -> bool:
    return model.attention is Attention.GQA


def mla(model: ModelDescriptor) -> bool:
    return model.latent is not None


def moe(model: ModelDescriptor) -> bool:
    return model.experts is not None


def dense(model: ModelDescriptor) -> bool:
    return not all(model.moe_layers)


def rope(model: ModelDescriptor) -> bool:
    return model.position is Position.ROPE


def scaled(*types: str) -> Callable[[ModelDescriptor], bool]:
    return lambda model: model.rope_scaling is not None and model.rope_scaling.rope_type in types


def position_type(model: ModelDescriptor, r: Resolved) -> str:
    """Return the value of --position-embedding-type that the model needs: yarn for YaRN-scaled RoPE with GQA, else by
    its position embedding (learned_absolute for learned).
    """
    if rope(model) and gqa(model) and scaled("yarn")(model):
        return "yarn"
    return {
        Position.ROPE: "rope",
        Position.LEARNED: "learned_absolute",
        Position.NONE: "none",
        Position.ALIBI: "alibi",
    }[model.position]


def scaling_got(model: ModelDescriptor, r: Resolved) -> str | None:
    """Return the kind of RoPE scaling that Megatron will apply: yarn, llama3, linear or None, also if the model has no
    RoPE. With MLA yarn if rope_type is yarn (the default) and its factor is not 1, else None; the arguments' other
    scalings are not looked at.
    """
    if not rope(model):
        return None
    if mla(model):
        yarn = r("rope_type", "yarn") == "yarn" and float(r("rotary_scaling_factor", 1.0)) != 1.0
        return "yarn" if yarn else None
    if r.arg("position_embedding_type") == "yarn":
        return "yarn"
    if r.arg("use_rope_scaling"):
        return "llama3"
    return "linear" if r.arg("rotary_seq_len_interpolation_factor") else None


def factor_got(model: ModelDescriptor, r: Resolved) -> Any:
    kind = scaling_got(model, r)
    if kind == "linear":
        return r.arg("rotary_seq_len_interpolation_factor")
    return LLAMA3_SCALING["factor"] if kind == "llama3" else r.arg("rotary_scaling_factor")


def yarn_got(name: str, neutral: float) -> Got:
    """Return a function (model, resolved) -> the value of RoPE scaling parameter `name` as Megatron applies it. For
    llama3 scaling it is Megatron's constant (None if it has none), for MLA the config's field or its default, else an
    argument (`yarn_NAME`, but mscale… by its own name). neutral: the value if that is not set.
    """

    def got(model: ModelDescriptor, r: Resolved) -> Any:
        """Return the parameter's value: llama3's constant, MLA's config or default, else the argument or `neutral`."""
        kind = scaling_got(model, r)
        if kind == "llama3":
            return LLAMA3_SCALING.get(name)
        if mla(model):
            return r(name, MLA_YARN.get(name, neutral))
        value = r.arg(name if name.startswith("mscale") else f"yarn_{name}")
        return neutral if value is None else value

    return got


def original_length(model: ModelDescriptor, r: Resolved) -> Any:
    """Return the original context length; until core_v0.13, MLA's YaRN uses --max-position-embeddings."""
    if mla(model) and r("original_max_position_embeddings") is None:
        return r("max_position_embeddings")
    return yarn_got("original_max_position_embeddings", 4096)(model, r)


def windows_got(model: ModelDescriptor, r: Resolved) -> list[bool]:
    """Return for each layer whether it has a sliding window, as Megatron's is_layer_window_attention decides: none
    without a window size, all without a skip frequency, else all but each n-th, or by a list.
    """
    skip, layers = r("window_attn_skip_freq"), places(model)
    if not r("window_size") or skip is None:
        return [bool(r("window_size"))] * len(layers)
    return by_frequency(skip, layers)


def by_frequency(frequency: int | Sequence[int], layers: Sequence[int]) -> list[bool]:
    """Return for each layer, by its number from 1, whether it has what every n-th layer lacks, or what a list says."""
    if isinstance(frequency, int):
        return [layer % frequency != 0 for layer in layers]
    return [bool(frequency[layer - 1]) for layer in layers]


def places(model: ModelDescriptor) -> list[int]:
    """Return, for each layer of the model, the number (from 1) of Megatron's first layer for it. They differ only for
    hybrid models, whose layers are several of Megatron's.
    """
    if not hybrid.hybrid(model) or not hybrid.known(model):
        return list(range(1, model.num_hidden_layers + 1))
    ends = list(accumulate(map(len, hybrid.letters(model))))
    return [1 + before for before in (0, *ends[:-1])]


def masks(model: ModelDescriptor, r: Resolved) -> bool:
    """Return whether the model's window masks anything; one as long as the sequence need not be set in Megatron."""
    window = model.sliding_window if any(model.sliding_layers) else None
    return window is not None and (window < int(r.arg("seq_length", 0)) or bool(r("window_size")))


def moe_layers_got(model: ModelDescriptor, r: Resolved) -> list[bool]:
    """Return for each layer whether Megatron makes it MoE: none without experts, else by the hybrid pattern, each n-th
    from the first, or a list. See gpt_layer_specs.py, get_gpt_decoder_block_spec.
    """
    freq = r("moe_layer_freq", 1)
    layers = range(model.num_hidden_layers)
    if not r("num_moe_experts"):
        return [False for _ in layers]
    if r.arg("hybrid_layer_pattern"):
        return ["E" in layer for layer in pattern(model, r)]
    return [layer % freq == 0 if isinstance(freq, int) else bool(freq[layer]) for layer in layers]


def pattern(model: ModelDescriptor, r: Resolved) -> list[str]:
    """Return the letters of each of the model's layers in Megatron's hybrid pattern, predictions left out."""
    text = str(r.arg("hybrid_layer_pattern")).partition(hybrid.PREDICTION)[0].replace(hybrid.STAGE, "")
    starts = places(model)
    return [text[start - 1 : end - 1] for start, end in zip(starts, (*starts[1:], len(text) + 1), strict=True)]


def mixers(letters: Iterable[str]) -> list[str]:
    """Return the letter of each layer's token mixer: that of a layer's pattern without those of its MLP ("-") or
    experts ("E"); latent attention's "+" becomes "*". A layer without a mixer has "".
    """
    return [layer.strip("-E").replace("+", "*") for layer in letters]


def mlps(letters: Iterable[str]) -> list[bool]:
    """Return for each layer's letters whether it has an MLP or experts."""
    return [layer[-1:] in ("-", "E") for layer in letters]


def padded(vocab_size: int, r: Resolved) -> int:
    """Return a vocabulary size rounded up to a multiple of Megatron's divisor times tp."""
    multiple = int(r.arg("make_vocab_size_divisible_by")) * int(r.arg("tensor_model_parallel_size"))
    return -(-vocab_size // multiple) * multiple


def mixers_got(model: ModelDescriptor, r: Resolved) -> list[str]:
    """Return the letter of each layer's token mixer in Megatron. From the hybrid pattern; without one "*" (attention),
    or with the gated delta net's variant and a frequency "G", but "*" on each n-th layer or where a list has 0.
    """
    if r.arg("hybrid_layer_pattern"):
        return mixers(pattern(model, r))
    freq, layers = r("linear_attention_freq"), range(1, model.num_hidden_layers + 1)
    if r("experimental_attention_variant") not in hybrid.DELTA_WORDS or freq is None:
        return ["*" for _ in layers]
    return ["G" if delta else "*" for delta in by_frequency(freq, layers)]


def indexer_need(model: ModelDescriptor, r: Resolved) -> list[Any]:
    """Return [the indexer's sizes…, its loss weight, a list of whether each layer has one (default: all)]; [] for a
    model without an indexer.
    """
    has = model.indexer
    if has is None:
        return []
    own = has.layers or (True,) * model.num_hidden_layers
    return [*(getattr(has, name) for name in sparse.SIZES.values()), has.loss_coef, list(own)]


def indexer_got(model: ModelDescriptor, r: Resolved) -> list[Any]:
    if r("experimental_attention_variant") != sparse.NAME:
        return []
    own = sparse.choosing_layers(r(sparse.FREQUENCY), r(sparse.OFFSET), model.num_hidden_layers)
    return [*map(r, sparse.SIZES), r(sparse.LOSS), list(own)]


def renormalised(model: ModelDescriptor, r: Resolved) -> bool:
    """Return whether Megatron renormalizes the router's scores of the chosen experts: sigmoid scores if several are
    chosen, softmax unless before the choice (moe_utils.py, topk_routing_with_score_function).
    """
    if r("moe_router_score_function", "softmax") == "sigmoid":
        return int(r("moe_router_topk")) > 1
    return not r("moe_router_pre_softmax", False)


def turned_got(model: ModelDescriptor, r: Resolved) -> list[bool]:
    """Return for each layer whether it applies RoPE: all without a no_rope_freq, else all but every n-th, or all but
    those of a list (transformer_config.py, __post_init__).
    """
    skip, layers = r("no_rope_freq"), places(model)
    if not skip:
        return [True for _ in layers]
    return by_frequency(skip if isinstance(skip, int) else [not each for each in skip], layers)

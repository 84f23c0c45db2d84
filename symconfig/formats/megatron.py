"""Megatron-LM's options of a model's architecture, each with its field.

What an option does was read in Megatron-LM's `arguments.py`, `argument_utils.py`, `gpt_builders.py` and
`transformer_config.py` of core_v0.12.1 to core_v0.19.0. An accepted option proves little: some never reach the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.formats.layer_pattern import all_but, layer_pattern, pattern
from symconfig.formats.links import OPEN, Link, Only, Reader, Values, destinations, value_of
from symconfig.frameworks.megatron.hybrid import hybrid, known, layer_count, of_mixers

DEGREES = {  # by their names: destinations of the options that say them
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
GQA, MLA, ROPE = {"attention": "gqa"}, {"attention": "mla"}, {"position": "rope"}
LLAMA3, LINEAR, YARN = ({**GQA, **ROPE, "rope_scaling.rope_type": kind} for kind in ("llama3", "linear", "yarn"))
MLA_YARN = {**MLA, **ROPE, "rope_scaling.rope_type": "yarn"}
POSITIONS = {"learned": "learned_absolute", "none": "none", "rope": "rope"}
# RotaryEmbedding._apply_scaling's defaults, which no option changes (--rope-scaling-factor is parsed, but neither
# gpt_builders.py nor gpt_config_from_args passes it on), and MLATransformerConfig's fields without an option.
LLAMA3_FIXED = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
}  # fmt: skip
MLA_FIXED: dict[str, Any] = {"original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
# Where a person changes them.
CONFIG_EDIT = "in megatron/core/transformer/transformer_config.py, among the fields of {}"
_MLA_EDIT = CONFIG_EDIT.format("MLATransformerConfig")
_LLAMA3_EDIT = (
    "in megatron/core/models/common/embeddings/rotary_pos_embedding.py, "
    "among the arguments of RotaryEmbedding._apply_scaling"
)
BIAS_UPDATE_RATE = 0.001  # DeepSeek-V3, arXiv:2412.19437, section 4.2; also Megatron's default
MANY_EXPERTS = 32  # TransformerConfig warns of scores of more in half precision


def whole(value: float, _: object) -> int:
    """Return `value` as an int. Raises InputError, naming rope_theta, if it has a fraction."""
    if value != int(value):
        raise InputError("must be a whole number for Megatron-LM", field="rope_theta", got=repr(value))
    return int(value)


def _nothing(value: object, model: object) -> None:
    """Return None, so that this link writes or reads nothing."""


def always(option: str, when: Values, value: object, **more: Any) -> Link:
    """Return a link that writes the option with one constant value and reads nothing."""
    return Link("", option, when, write=lambda _, __: value, **more)


def _filled(field: str, option: str, when: Values, value: float) -> Link:
    """Return a link whose option is always written, and read, with `value` where the field has none."""
    return Link(field, option, when, write=lambda v, _: v or value, read=lambda v, _: value if v is None else v)


def _ffn(value: int | None, out: Reader) -> int | None:
    """Return the MLP's size: `value`, else 4 x hidden, with SwiGLU 8/3 x hidden rounded down to 64 (validate_args)."""
    hidden = out.get("hidden_size")
    if value is not None or not isinstance(hidden, int):
        return value
    return int((4 * hidden * 2 / 3) / 64) * 64 if out.args.switch("swiglu") else 4 * hidden


def _head_dim(value: int | None, out: Reader) -> int | None:
    hidden, heads = out.get("hidden_size"), out.get("num_attention_heads")
    return value or (hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None)


def _groups(value: int, model: ModelDescriptor) -> int | None:
    return value if value != model.num_attention_heads else None


SHAPE = (
    Link("num_hidden_layers", "--num-layers", write=lambda v, m: layer_count(m) if known(m) else v),
    Link("hidden_size", "--hidden-size"),
    # Unused when every layer has experts, but the parser would fill in a size of its own.
    Link("intermediate_size", "--ffn-hidden-size", read=_ffn,
         write=lambda v, m: v or (m.experts.moe_intermediate_size if m.experts else 0)),
    Link("num_attention_heads", "--num-attention-heads"),
    Link("attention", "--multi-latent-attention", words={"mla": True}, default="gqa"),
    Link("latent.q_lora_rank", "--q-lora-rank", MLA),
    Link("latent.kv_lora_rank", "--kv-lora-rank", MLA),
    Link("latent.qk_nope_head_dim", "--qk-head-dim", MLA),
    Link("latent.qk_rope_head_dim", "--qk-pos-emb-head-dim", MLA),
    Link("latent.v_head_dim", "--v-head-dim", MLA),
    Link("", "--kv-channels", MLA, write=lambda _, m: m.latent.v_head_dim),
    Link("head_dim", "--v-head-dim", MLA, write=_nothing),
    Link("num_key_value_heads", "--num-attention-heads", MLA, write=_nothing),
    always("--qk-layernorm", MLA, True),  # the norms of the low-rank queries and keys
    always("--no-rope-fusion", MLA, True, until="core_v0.13.0"),  # TransformerConfig of core_v0.12 refuses it with MLA
    Link("head_dim", "--kv-channels", GQA, read=_head_dim),
    Link("", "--group-query-attention", GQA, write=lambda _, m: _groups(m.num_key_value_heads, m) is not None),
    Link("num_key_value_heads", "--num-query-groups", GQA, write=_groups, also=("group_query_attention",),
         read=lambda v, out: v if out.args.switch("group_query_attention") else out.get("num_attention_heads")),
)  # fmt: skip


def _listed(model: ModelDescriptor, layers: Iterable[bool]) -> str:
    """Return Megatron's list expression for a value per layer."""
    return pattern(of_mixers(model, tuple(layers), False))


def _rope_layers(value: Any, out: Any) -> object:
    """Return the layers with rope, a bool for each: for n all but every n-th, for a list those that are 0.

    None if all have it; OPEN without the option or a number of layers. Raises ValueError if the value is malformed.
    """
    if value in (None, 0) or not out.layers:
        return OPEN
    skip = layer_pattern(value)
    if isinstance(skip, int) and (skip < 1 or out.counted % skip):
        raise ValueError(f"a divisor of {out.counted} layers")
    turned = out.own(tuple(layer is isinstance(skip, int) for layer in all_but(skip, out.counted)))
    return None if all(turned) else turned


HEADS = (
    Link("qk_norm", "--qk-layernorm", GQA, write=lambda v, m: v and m.qk_norm_of == "head", also=("qk_l2_norm",),
         read=lambda v, out: bool(v) or out.args.switch("qk_l2_norm")),
    Only("qk_norm_of", ("head", "unit"), {**GQA, "qk_norm": True},
         "its norms of queries and keys have one weight vector for all heads, or none"),
    Link("qk_norm_of", "--qk-l2-norm", {**GQA, "qk_norm": True}, words={"unit": True}, default="head",
         why="its norms of queries and keys have weights"),
    Only("attention_gate", (None, "channel"), {}, "its gate is one of each channel of the heads"),
    Only("attention_gate", (None,), MLA, "multi-latent attention has no gate"),
    Link("attention_gate", "--attention-output-gate", words={"channel": True}, why="attention has no gate"),
    Link("rope_layers", "--no-rope-freq", read=_rope_layers, why="every layer has rope, or none",
         write=lambda v, m: None if v is None or all(v) or m.position != "rope" else _listed(m, (not x for x in v)),
         wrong="layers without rope are not said"),
)  # fmt: skip
ROTARY: tuple[Link | Only, ...] = (
    Only("position", (), {"position": "alibi"}, "it has no ALiBi"),
    Only("rope_scaling.rope_type", (None, "yarn"), MLA, "multi-latent attention has rope and YaRN only"),
    Only("rope_scaling.rope_type", (None, "llama3", "linear", "yarn"), GQA, "it has no such scaling"),
    Link("", "--position-embedding-type",
         write=lambda _, m: "yarn" if all(value_of(m, f) == v for f, v in YARN.items()) else POSITIONS.get(m.position)),
    _filled("rope_scaling.factor", "--rotary-scaling-factor", YARN, 1.0),
    # transformers' _compute_yarn_parameters, and Megatron-LM's _apply_yarn_config_from_args (argument_utils.py, 0.19)
    _filled("rope_scaling.original_max_position_embeddings", "--yarn-original-max-position-embeddings", YARN, 4096),
    Link("rope_scaling.rope_type", "--yarn-beta-fast", YARN, write=lambda _, m: m.rope_scaling.beta_fast or 32.0,
         read=lambda _, __: OPEN, why="its YaRN has no options outside MLA"),
    Link("rope_scaling.beta_fast", "--yarn-beta-fast", YARN, write=_nothing, read=lambda v, _: v or 32.0),
    _filled("rope_scaling.beta_slow", "--yarn-beta-slow", YARN, 1.0),
    _filled("rope_scaling.mscale", "--mscale", YARN, 1.0),
    _filled("rope_scaling.mscale_all_dim", "--mscale-all-dim", YARN, 0.0),
    Link("rope_scaling.truncate", "--no-yarn-correction-range-round-to-int", YARN, write=lambda v, _: v is False,
         read=lambda v, _: False if v is False else None),
    Link("rope_theta", "--rotary-base", ROPE, write=whole),
    Link("partial_rotary_factor", "--rotary-percent", {**GQA, **ROPE}),
    always("--use-rope-scaling", LLAMA3, True),
    *(Only(f"rope_scaling.{name}", (value,), LLAMA3, f"its Llama 3 scaling always uses {value:g}",
           edit=f"{_LLAMA3_EDIT}, write {name}={{:g}}", dests=("use_rope_scaling",))
      for name, value in LLAMA3_FIXED.items()),
    # Parsed since long before, but the model gets it only from gpt_config_from_args, new in core_v0.19.0.
    Link("rope_scaling.rope_type", "--rotary-seq-len-interpolation-factor", LINEAR, since="core_v0.19.0",
         write=lambda _, m: whole(m.rope_scaling.factor, m), read=lambda _, __: OPEN,
         why="linear scaling is parsed but never reaches the model"),
    Link("rope_scaling.factor", "--rotary-seq-len-interpolation-factor", LINEAR, write=_nothing, since="core_v0.19.0"),
    Link("", "--rope-type", {**MLA, **ROPE}, write=lambda _, m: "yarn" if m.rope_scaling else "rope", optional=True),
    # Before --rope-type, YaRN by a factor of 1 is plain rope.
    always("--rotary-scaling-factor", {**MLA, **ROPE, "rope_scaling": None}, 1.0),
    Link("rope_scaling.factor", "--rotary-scaling-factor", MLA_YARN),
    _filled("rope_scaling.mscale", "--mscale", MLA_YARN, 1.0),
    _filled("rope_scaling.mscale_all_dim", "--mscale-all-dim", MLA_YARN, 0.0),
    # Until core_v0.13 the original length is --max-position-embeddings.
    *(Only(f"rope_scaling.{name}", (value, None), MLA_YARN, f"YaRN of multi-latent attention always uses {value:g}",
           edit=f"{_MLA_EDIT}, write {name}: {type(value).__name__} = {{:.9g}}", dests=(),
           since="core_v0.14.0" if name == "original_max_position_embeddings" else "")
      for name, value in MLA_FIXED.items()),
)  # fmt: skip


def _window(value: object, _: Reader) -> object:
    """Return the window in tokens, the query included: N + 1 for "N,0" or "N,-1".

    OPEN without an option, or if its window is unbounded (-1). Raises ValueError for any other value.
    """
    ends = [int(side) for side in re.findall(r"-?\d+", "" if value is None else str(value))]
    if not ends or ends in ([-1, -1], [-1, 0]):
        return OPEN
    if len(ends) != 2 or ends[0] < 0 or ends[1] not in (0, -1):
        raise ValueError("N,0")
    return ends[0] + 1


def _windowed(value: Any, out: Any) -> object:
    """Return the layers with a window, a bool for each: all but every n-th, or the list's values; None if all."""
    if out.get("sliding_window") is None:
        return OPEN
    windowed = () if value is None else out.own(all_but(layer_pattern(value), out.counted))
    return None if all(windowed) else windowed


# Activation, gated or not, and the options that say it.
CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_OFFSET = 7.0, 1.0  # gate * sigmoid(1.702 gate) * (up + 1), both clamped (gpt-oss)
ACTIVATIONS: tuple[tuple[str, bool, dict[str, object]], ...] = (
    ("silu", True, {"--swiglu": True}),
    ("clamped_swiglu", True, {"--quick-geglu": True, "--glu-linear-offset": CLAMPED_SWIGLU_OFFSET,
                              "--activation-func-clamp-value": CLAMPED_SWIGLU_LIMIT}),
    ("gelu_sigmoid", True, {"--quick-geglu": True}),
    ("relu2", False, {"--squared-relu": True}),
    ("gelu_tanh", False, {}),  # with biases: the kernel that is fused with them
    ("gelu", False, {}),
)  # fmt: skip
# A dense gated MLP refuses the fusion with a bias, and the kernel fused with it is the tanh form of GELU.
UNFUSED = ("gelu_sigmoid", "relu2", "gelu")

NORMS = (
    Only("norm", ("rmsnorm",), {"qk_norm": True, "qk_norm_of": "head"}, about="qk_norm",
         why="its norms of queries and keys are of the kind of all other norms"),
    Link("norm", "--normalization", words={"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}),
    Link("norm_eps", "--norm-epsilon"),
    Link("norm_zero_centered", "--apply-layernorm-1p", default=False),
)  # fmt: skip
WINDOWS = (
    # Left, right: tokens beside the query itself. A window of the whole sequence or more masks nothing.
    Link("sliding_window", "--window-size", optional=True, read=_window,
         write=lambda v, m: f"{v - 1},0" if any(m.sliding_layers) else None,
         wrong="a window is described by the tokens before the query alone"),
    Link("sliding_window_pattern", "--window-attn-skip-freq", optional=True, read=_windowed,
         write=lambda _, m: _listed(m, m.sliding_layers) if {*m.sliding_layers} == {True, False} else None,
         wrong="layers with windows are not said"),
    Link("attention_sinks", "--softmax-type", words={True: "learnable", False: "vanilla"}, default=False,
         why="its softmax has no learned sink", wrong="a softmax with a fixed sink is not described"),
)  # fmt: skip
ENDS = (
    Link("tie_word_embeddings", "--untie-embeddings-and-output-weights", words={False: True}, default=True),
    Link("num_nextn_predict_layers", "--mtp-num-layers", default=0, why="it has no multi-token prediction"),
    # DeepSeek-V3's for its last tokens (arXiv:2412.19437, 4.2)
    Link("", "--mtp-loss-scaling-factor", write=lambda _, m: 0.1 if m.num_nextn_predict_layers else None),
    Link("attention_dropout", "--attention-dropout"),
    Link("hidden_dropout", "--hidden-dropout"),
    Link("initializer_range", "--init-method-std"),
)


def _group_option(value: int | None, model: Any) -> int | None:
    return value if (model.experts.n_group or 1) > 1 else None


def _both_groups(value: int | None, out: Reader) -> object:
    both = out.args.integer("moe_router_num_groups") and out.args.integer("moe_router_group_topk")
    return value if both else OPEN


def router_dtype(_: object, model: Any) -> str | None:
    """Return "fp32" for 32 experts or more, or sigmoid scores, as transformers' DeepSeek-V3 has it; None otherwise."""
    return "fp32" if model.experts.num_experts >= MANY_EXPERTS or model.experts.scoring_func == "sigmoid" else None


def _balancing(_: object, model: Any) -> str:
    """Return --moe-router-load-balancing-type: "none" without loss, "seq_aux_loss" with score bias, else "aux_loss"."""
    if not model.experts.router_aux_loss_coef:
        return "none"
    return "seq_aux_loss" if model.experts.e_score_correction_bias else "aux_loss"


EXPERTS = (
    Link("experts.num_experts", "--num-experts", also=("num_moe_experts",)),
    Link("experts.moe_intermediate_size", "--moe-ffn-hidden-size", also=("ffn_hidden_size",),
         read=lambda v, out: v or out.get("intermediate_size")),
    Link("", "--moe-layer-freq", write=lambda _, m: None if all(m.moe_layers) or hybrid(m) else pattern(m.moe_layers)),
    Link("experts.shared_expert_intermediate_size", "--moe-shared-expert-intermediate-size", default=0),
    Link("experts.shared_expert_gate", "--moe-shared-expert-gate", why="its shared expert has no gate",
         write=lambda v, m: v and bool(m.experts.shared_expert_intermediate_size),
         read=lambda v, out: bool(v and out.get("experts.shared_expert_intermediate_size"))),
    Link("experts.latent_size", "--moe-latent-size", why="experts read tokens as wide as they are"),
    Link("experts.num_experts_per_tok", "--moe-router-topk"),
    Link("experts.scoring_func", "--moe-router-score-function", words={"softmax": "softmax", "sigmoid": "sigmoid"},
         wrong="no such scores of a router are described"),
    # It divides the chosen scores of a sigmoid by their sum whenever there is more than one (moe_utils.py). Softmax
    # over the chosen logits equals a softmax over all, chosen and renormalised.
    Link("experts.norm_topk_prob", "--moe-router-score-function", {"experts.scoring_func": "sigmoid"}, write=_nothing,
         read=lambda _, out: out.get("experts.num_experts_per_tok") != 1),
    Link("experts.norm_topk_prob", "--moe-router-pre-softmax", {"experts.scoring_func": "softmax"},
         write=lambda v, m: not v and not m.experts.softmax_after_topk, read=lambda v, _: not v),
    Link("", "--moe-router-dtype", write=router_dtype),
    Link("experts.n_group", "--moe-router-num-groups", write=_group_option, read=_both_groups),
    Link("experts.topk_group", "--moe-router-group-topk", write=_group_option, read=_both_groups),
    Link("experts.routed_scaling_factor", "--moe-router-topk-scaling-factor", default=1.0),
    Only("experts.scoring_func", ("sigmoid",), {"experts.e_score_correction_bias": True},
         "a bias of the choice needs sigmoid scores", about="experts.e_score_correction_bias"),
    Link("experts.e_score_correction_bias", "--moe-router-enable-expert-bias", default=False),
    always("--moe-router-bias-update-rate", {"experts.e_score_correction_bias": True}, BIAS_UPDATE_RATE),
    Link("", "--moe-router-load-balancing-type", write=_balancing),
    Link("", "--moe-aux-loss-coeff", write=lambda _, m: m.experts.router_aux_loss_coef or None),
)  # fmt: skip
_ALL = (*SHAPE, *HEADS, *ROTARY, *NORMS, *WINDOWS, *ENDS, *EXPERTS)
LINKS = tuple(link for link in _ALL if isinstance(link, Link) and link.name)
LINKED = {dest for link in LINKS for dest in destinations(link.option)} | {*DEGREES.values()}  # what is read by these
DESTINATIONS = {link.name.removeprefix("experts."): destinations(link.option)[0] for link in LINKS}  # by the field

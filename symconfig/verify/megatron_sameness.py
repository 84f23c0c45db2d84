"""Acceptance is not sameness: every architectural field of the model against what Megatron resolved.

One table: a field of the descriptor, where Megatron keeps it, what it must be there. A field is in the table, in
NOT_ARCHITECTURAL, or of those that rendering refuses (frameworks.megatron.releases, vision, adapter); a test holds all
against the descriptor's classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm, Position
from symconfig.errors import Problem
from symconfig.frameworks.megatron import hybrid, sparse
from symconfig.plans.configuration import PLACES
from symconfig.render.megatron_model import embedding_factor
from symconfig.verify import megatron_resolved as means
from symconfig.verify.megatron_resolved import Resolved, dense, gqa, mla, moe, rope, scaled
from symconfig.verify.megatron_session import Result

# Fields that name or place a model, and change nothing of what is computed in training.
NOT_ARCHITECTURAL = frozenset(
    {
        "schema_",
        "name",
        "source",
        "huggingface_id",
        "model_type",
        "notes",
        "torch_dtype",  # of the stored weights; the plan chooses the training precision
        "rope_scaling.short_factor",
        "rope_scaling.long_factor",  # longrope, which rope_scaling.rope_type refuses
    }
)


def _always(model: ModelDescriptor) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Row:
    """One field of a model or of a plan. where: Megatron's name for it. need, got: where one side has another value
    than the field's or the name's own. applies: has this model such a thing? neutral: the value in a release without
    such a setting."""

    field: str
    where: str
    need: Callable[[Any, Resolved], Any] | None = None
    got: Callable[[Any, Resolved], Any] | None = None
    applies: Callable[[Any], bool] = _always
    neutral: Any = None

    def values(self, subject: Any, r: Resolved) -> tuple[Any, Any]:
        """Return (needed, resolved): the subject's value of the field and Megatron's."""
        need = self.need(subject, r) if self.need else attrgetter(self.field)(subject)
        return need, self.got(subject, r) if self.got else r(self.where, self.neutral)


def _yarn(name: str, neutral: float) -> Row:
    """Return the row of the field `name` of RoPE scaling, for models scaled by YaRN, original_... also by Llama 3.
    neutral: what is needed if the model's field is None.
    """

    def need(model: ModelDescriptor, r: Resolved) -> Any:
        value = getattr(model.rope_scaling, name)
        return neutral if value is None else value

    kinds = ("yarn", "llama3") if name.startswith("original") else ("yarn",)
    return Row(f"rope_scaling.{name}", f"YaRN's {name}", need, means.yarn_got(name, neutral), scaled(*kinds))


def _factor(field: str, where: str, need: Callable[[ModelDescriptor], float]) -> Row:
    """Return the row of a muP multiplier, which is 1 in Megatron unless --use-mup is set."""
    return Row(field, where, lambda model, _: need(model), lambda _, r: r(where, 1.0) if r("use_mup", False) else 1.0)


def _biased(_: ModelDescriptor, r: Resolved) -> bool:
    return bool(r("add_bias_linear"))


ROWS: tuple[Row, ...] = (
    Row("hidden_size", "hidden_size"),
    Row("intermediate_size", "ffn_hidden_size", applies=dense),
    Row("num_hidden_layers", "num_layers", lambda m, _: hybrid.layer_count(m)),
    Row("mixers", "hybrid_layer_pattern, linear_attention_freq", lambda m, _: means.mixers(hybrid.letters(m)),
        means.mixers_got),
    Row("mixers", "sizes of blocks",
        lambda m, _: [x.sizes[name] for x in m.mixers for name in hybrid.SIZES.get(x.block, {}).values()],
        lambda m, r: [r(dest) for x in m.mixers for dest in hybrid.SIZES.get(x.block, {})], lambda m: bool(m.mixers)),
    Row("indexer", f"{sparse.VARIANT}, sizes and loss", means.indexer_need, means.indexer_got),
    Row("mlp_layers", "hybrid_layer_pattern", lambda m, _: means.mlps(hybrid.letters(m)), lambda m, r: (
        means.mlps(means.pattern(m, r)) if r.arg("hybrid_layer_pattern") else [True] * m.num_hidden_layers)),
    Row("num_attention_heads", "num_attention_heads"),
    Row("num_key_value_heads", "num_query_groups", applies=gqa),
    Row("head_dim", "kv_channels", applies=gqa),
    Row("vocab_size", "padded_vocab_size", lambda m, r: means.padded(m.vocab_size, r),
        lambda _, r: r.arg("padded_vocab_size")),
    # with rope only a bound on the sequence
    Row("max_position_embeddings", "max_position_embeddings", applies=lambda model: model.position is Position.LEARNED),
    Row("tie_word_embeddings", "not untie_embeddings_and_output_weights",
        got=lambda _, r: not r.arg("untie_embeddings_and_output_weights")),
    Row("hidden_act", "activation_func",
        lambda m, _: means.ACTIVATIONS.get((m.hidden_act, m.gated_mlp), (m.hidden_act,))[0]),
    Row("hidden_act", "bias_activation_fusion", lambda m, _: m.hidden_act == "gelu_tanh",
        lambda _, r: bool(r("bias_activation_fusion")), lambda m: m.hidden_act in ("gelu", "gelu_tanh")),
    Row("hidden_act", "activation_func_clamp_value, glu_linear_offset",
        lambda m, _: list(means.CLAMPED_SWIGLU) if m.hidden_act == "clamped_swiglu" else [None, 0.0],
        lambda _, r: [r("activation_func_clamp_value"), r("glu_linear_offset")],
        lambda m: m.hidden_act in ("clamped_swiglu", "gelu_sigmoid")),
    Row("gated_mlp", "gated_linear_unit"),
    Row("mlp_bias", "add_bias_linear", got=_biased, applies=dense),
    Row("attention_out_bias", "add_bias_linear", got=_biased),
    Row("qkv_bias", "add_bias_linear or add_qkv_bias",
        got=lambda _, r: bool(r("add_bias_linear") or r("add_qkv_bias"))),
    Row("norm", "normalization", lambda m, _: "RMSNorm" if m.norm is Norm.RMSNORM else "LayerNorm"),
    Row("norm_eps", "layernorm_epsilon"),
    Row("norm_zero_centered", "layernorm_zero_centered_gamma"),
    Row("position", "position_embedding_type", means.position_type, lambda _, r: r.arg("position_embedding_type")),
    Row("rope_theta", "rotary_base", applies=rope),
    Row("rope_scaling.rope_type", "rope_type, position_embedding_type, use_rope_scaling",
        lambda m, _: m.rope_scaling.rope_type if m.rope_scaling else None, means.scaling_got, rope),
    Row("rope_scaling.factor", "rotary_scaling_factor", got=means.factor_got,
        applies=scaled("yarn", "llama3", "linear")),
    Row("rope_scaling.original_max_position_embeddings", "original_max_position_embeddings",
        lambda m, _: (m.rope_scaling and m.rope_scaling.original_max_position_embeddings) or 4096,
        means.original_length, scaled("yarn", "llama3")),
    Row("rope_scaling.low_freq_factor", "_apply_scaling", got=lambda _, __: means.LLAMA3_SCALING["low_freq_factor"],
        applies=scaled("llama3")),
    Row("rope_scaling.high_freq_factor", "_apply_scaling", got=lambda _, __: means.LLAMA3_SCALING["high_freq_factor"],
        applies=scaled("llama3")),
    _yarn("beta_fast", 32.0),
    _yarn("beta_slow", 1.0),
    _yarn("mscale", 1.0),
    _yarn("mscale_all_dim", 0.0),
    Row("rope_scaling.truncate", "yarn_correction_range_round_to_int",
        lambda m, _: m.rope_scaling is None or m.rope_scaling.truncate is not False,
        lambda _, r: r.arg("yarn_correction_range_round_to_int") is not False, scaled("yarn")),
    Row("partial_rotary_factor", "rotary_percent", applies=lambda m: rope(m) and gqa(m)),
    Row("attention", "multi_latent_attention", lambda m, _: mla(m), neutral=False),
    Row("latent.q_lora_rank", "q_lora_rank", applies=mla),
    Row("latent.kv_lora_rank", "kv_lora_rank", applies=mla),
    Row("latent.qk_nope_head_dim", "qk_head_dim", applies=mla),
    Row("latent.qk_rope_head_dim", "qk_pos_emb_head_dim", applies=mla),
    Row("latent.v_head_dim", "v_head_dim", applies=mla),
    Row("qk_norm", "qk_layernorm (with MLA: the norms of the low-rank queries and keys)",
        lambda m, _: (m.qk_norm and m.qk_norm_of != "unit") or mla(m), lambda _, r: r("qk_layernorm", False)),
    Row("sliding_window", "window_size",
        lambda m, r: [(m.sliding_window or 0) - 1, 0] if means.masks(m, r) else None),
    Row("sliding_window_pattern", "window_attn_skip_freq",
        lambda m, r: [window and means.masks(m, r) for window in m.sliding_layers], means.windows_got),
    Row("attention_sinks", "softmax_type", lambda m, _: "learnable" if m.attention_sinks else "vanilla",
        neutral="vanilla"),
    Row("query_pre_attn_scalar", "softmax_scale",
        lambda m, _: float(m.query_pre_attn_scalar or m.head_dim) ** -0.5,
        lambda m, r: r("softmax_scale") or float(m.head_dim) ** -0.5, lambda m: not mla(m)),
    _factor("scale_embeddings", "mup_embedding_mult", embedding_factor),
    _factor("embedding_multiplier", "mup_embedding_mult", embedding_factor),
    _factor("logits_multiplier", "mup_output_mult",
            lambda m: 1.0 if m.logits_multiplier is None else m.logits_multiplier),
    Row("rope_layers", "no_rope_freq", lambda m, _: list(m.rope_layers or ()), means.turned_got,
        lambda m: rope(m) and m.rope_layers is not None),
    Row("qk_norm_of", "qk_l2_norm", lambda m, _: m.qk_norm and m.qk_norm_of == "unit", neutral=False),
    Row("attention_gate", "attention_output_gate", lambda m, _: m.attention_gate == "channel", neutral=False),
    Row("attention_dropout", "attention_dropout"),
    Row("hidden_dropout", "hidden_dropout"),
    Row("experts.num_experts", "num_moe_experts", lambda m, _: m.experts.num_experts if m.experts else None),
    Row("experts.num_experts_per_tok", "moe_router_topk", applies=moe),
    Row("experts.moe_intermediate_size", "moe_ffn_hidden_size", applies=moe),
    Row("experts.shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        got=lambda _, r: r("moe_shared_expert_intermediate_size") or 0, applies=moe),
    Row("experts.shared_expert_gate", "moe_shared_expert_gate", neutral=False, applies=moe),
    *(
        Row(f"experts.{name}", "moe_layer_freq", lambda m, _: list(m.moe_layers), means.moe_layers_got)
        for name in ("first_k_dense_replace", "moe_layer_freq", "layers")
    ),
    Row("experts.scoring_func", "moe_router_score_function", neutral="softmax", applies=moe),
    *(
        Row(
            f"experts.{name}",
            "moe_router_pre_softmax",
            lambda m, _: m.experts is not None and (m.experts.norm_topk_prob or m.experts.softmax_after_topk),
            means.renormalised,
            moe,
        )
        for name in ("norm_topk_prob", "softmax_after_topk")
    ),
    Row("experts.n_group", "moe_router_num_groups", lambda m, _: (m.experts and m.experts.n_group) or 1,
        lambda _, r: r("moe_router_num_groups") or 1, moe),
    Row("experts.topk_group", "moe_router_group_topk", lambda m, _: (m.experts and m.experts.topk_group) or 1,
        lambda _, r: r("moe_router_group_topk") or 1, moe),
    Row("experts.routed_scaling_factor", "moe_router_topk_scaling_factor",
        got=lambda _, r: r("moe_router_topk_scaling_factor") or 1.0, applies=moe),
    Row("experts.e_score_correction_bias", "moe_router_enable_expert_bias", neutral=False, applies=moe),
    Row("experts.latent_size", "moe_latent_size", applies=moe),
    Row("experts.latent_bias", "add_bias_linear", got=_biased,
        applies=lambda m: moe(m) and m.experts.latent_size is not None),
    Row("experts.router_bias", "add_bias_linear", got=_biased, applies=moe),
    Row("experts.expert_bias", "add_bias_linear", got=_biased, applies=moe),
    Row("experts.router_aux_loss_coef", "moe_aux_loss_coeff",
        got=lambda _, r: 0.0 if r("moe_router_load_balancing_type") == "none" else r("moe_aux_loss_coeff") or 0.0,
        applies=moe),
    Row("num_nextn_predict_layers", "mtp_num_layers", got=lambda _, r: r("mtp_num_layers") or 0),
    Row("initializer_range", "init_method_std"),
)  # fmt: skip


def compare(model: ModelDescriptor, result: Result, file: str, edited: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield a problem for every field of the model that Megatron resolved differently, without hand-edited fields."""
    yield from differing([row for row in ROWS if row.field not in edited], model, result, file, "model")


def differing(rows: Iterable[Row], subject: Any, result: Result, file: str, kind: str) -> Iterator[Problem]:
    """Yield a problem for each row that applies to the subject (a model or plan) and in which Megatron's value is not
    `_equal` to the subject's. kind: "model" or "plan", for the sentence. file: the file that the problems name.
    """
    resolved = Resolved(result)
    for row in rows:
        if row.applies(subject):
            need, got = row.values(subject, resolved)
            if not _equal(need, got):
                what, name = f"Megatron resolves {row.where} to another {kind}", row.field.rpartition(".")[2]
                field = ".".join(PLACES[name]) if row.field.startswith("best.") else row.field
                yield Problem(what, file=file, field=field, got=_short(got), need=_short(need))


def compared(model: ModelDescriptor, edited: Sequence[str] = ()) -> int:
    """Return the number of rows that apply to a model, without hand-edited fields."""
    return sum(row.field not in edited and row.applies(model) for row in ROWS)


def _equal(need: Any, got: Any) -> bool:
    """Return whether two values are equal: numbers to a relative 1e-9, lists elementwise, and by truth if either is a
    boolean. None from Megatron equals False, but not True.
    """
    if isinstance(need, bool) or isinstance(got, bool):
        return bool(need) == bool(got) and (got is not None or not need)
    if isinstance(need, int | float) and isinstance(got, int | float):
        return math.isclose(need, got, rel_tol=1e-9)
    if isinstance(need, list) and isinstance(got, list):
        return len(need) == len(got) and all(map(_equal, need, got))
    return bool(need == got)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."

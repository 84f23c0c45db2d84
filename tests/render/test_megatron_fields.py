"""Every field of the model descriptor changes the arguments, or is refused by its name; none is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts, LatentAttention, RopeScaling
from symconfig.errors import InfeasibleError
from symconfig.frameworks.megatron.flags import versions
from symconfig.render import megatron
from tests.sample_plans import sample_model, sample_plan

NEWEST = "core_v0.19.0"
# For people, for other frameworks, or of no meaning for training from the start.
IGNORED = {"schema_", "name", "source", "huggingface_id", "model_type", "torch_dtype", "notes"}
IGNORED |= {"vision"}  # a tower, which render.towers refuses of all targets at once
SECTIONS = {"experts": Experts, "latent": LatentAttention, "rope_scaling": RopeScaling}
MOE = sample_model("mixtral-8x7b").experts
V3 = sample_model("deepseek-v3").experts
assert MOE is not None
assert V3 is not None

# field -> (sample model, new values of top-level fields, name in the refusal or None when it is rendered)
Case = tuple[str, dict[str, Any], str | None]
DENSE, SPARSE, LATENT = "llama2-13b", "mixtral-8x7b", "deepseek-v3"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0] * 64,
    "long_factor": [2.0] * 64,
}
ROPE_70B, YARN_13B = "llama3.1-70b", "gpt-oss-120b"


def _experts(**changed: Any) -> dict[str, Any]:
    return {"experts": {**MOE.model_dump(), **changed}}  # type: ignore[union-attr]


def _v3(**changed: Any) -> dict[str, Any]:
    return {"experts": {**V3.model_dump(), **changed}}  # type: ignore[union-attr]


# What the unchanged model has to be, where the sample's own value hides the change.
PLAIN = {"num_nextn_predict_layers": 0, "rope_scaling": None}
BEFORE: dict[str, dict[str, Any]] = {
    "attention": PLAIN,
    "experts.softmax_after_topk": _experts(norm_topk_prob=False),
}
CASES: dict[str, Case] = {
    "hidden_size": (DENSE, {"hidden_size": 4096}, None),
    "intermediate_size": (DENSE, {"intermediate_size": 11008}, None),
    "num_hidden_layers": (DENSE, {"num_hidden_layers": 20}, None),
    "num_attention_heads": (DENSE, {"num_attention_heads": 80}, None),
    "num_key_value_heads": (DENSE, {"num_key_value_heads": 8}, None),
    "head_dim": (DENSE, {"head_dim": 64}, None),
    "vocab_size": (DENSE, {"vocab_size": 32001}, None),
    "max_position_embeddings": (DENSE, {"max_position_embeddings": 8192}, None),
    "tie_word_embeddings": (DENSE, {"tie_word_embeddings": True}, None),
    "hidden_act": (DENSE, {"hidden_act": "relu"}, "hidden_act"),
    "gated_mlp": (DENSE, {"gated_mlp": False}, "hidden_act"),
    "mlp_bias": (DENSE, {"mlp_bias": True}, "mlp_bias"),
    "lm_head_bias": (DENSE, {"lm_head_bias": True}, "lm_head_bias"),
    "norm": (DENSE, {"norm": "layernorm"}, None),
    "norm_eps": (DENSE, {"norm_eps": 1e-6}, None),
    "norm_zero_centered": (DENSE, {"norm_zero_centered": True}, None),
    "norm_after_sublayer": (DENSE, {"norm_after_sublayer": True}, "norm_after_sublayer"),
    "parallel_residual": (DENSE, {"parallel_residual": True}, "parallel_residual"),
    "position": (DENSE, {"position": "alibi"}, "position"),
    "rope_theta": (DENSE, {"rope_theta": 5e5}, None),
    "rope_local_base_freq": (DENSE, {"rope_local_base_freq": 1e4}, "rope_local_base_freq"),
    "partial_rotary_factor": (DENSE, {"partial_rotary_factor": 0.25}, None),
    "attention": (LATENT, {**PLAIN, "attention": "gqa", "latent": None}, None),
    "qkv_bias": (DENSE, {"qkv_bias": True}, None),
    "attention_out_bias": (DENSE, {"attention_out_bias": True}, "attention_out_bias"),
    "qk_norm": (DENSE, {"qk_norm": True}, None),
    "sliding_window": (DENSE, {"sliding_window": 1024}, None),
    "sliding_window_pattern": (YARN_13B, {"sliding_window_pattern": [False, True] * 18}, None),
    "attention_sinks": (DENSE, {"attention_sinks": True}, None),
    "attn_logit_softcapping": (DENSE, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "final_logit_softcapping": (DENSE, {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "query_pre_attn_scalar": (DENSE, {"query_pre_attn_scalar": 144.0}, None),
    "scale_embeddings": (DENSE, {"scale_embeddings": True}, None),
    "attention_dropout": (DENSE, {"attention_dropout": 0.1}, None),
    "hidden_dropout": (DENSE, {"hidden_dropout": 0.1}, None),
    "num_nextn_predict_layers": (DENSE, {"num_nextn_predict_layers": 1}, None),
    "initializer_range": (DENSE, {"initializer_range": 0.006}, None),
    "adapter": (DENSE, {"adapter": {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"]}}, "adapter"),
    "experts.num_experts": (SPARSE, _experts(num_experts=16), None),
    "experts.num_experts_per_tok": (SPARSE, _experts(num_experts_per_tok=4), None),
    "experts.moe_intermediate_size": (SPARSE, _experts(moe_intermediate_size=4096), None),
    "experts.shared_expert_intermediate_size": (SPARSE, _experts(shared_expert_intermediate_size=4096), None),
    "experts.shared_expert_gate": (
        SPARSE,
        _experts(shared_expert_intermediate_size=4096, shared_expert_gate=True),
        None,
    ),
    "experts.first_k_dense_replace": (LATENT, _v3(first_k_dense_replace=1), None),
    "experts.moe_layer_freq": (LATENT, _v3(first_k_dense_replace=0, moe_layer_freq=2), None),
    "experts.scoring_func": (SPARSE, _experts(scoring_func="sigmoid"), None),
    "experts.norm_topk_prob": (SPARSE, _experts(norm_topk_prob=False), None),
    "experts.softmax_after_topk": (SPARSE, _experts(norm_topk_prob=False, softmax_after_topk=True), None),
    "experts.n_group": (LATENT, _v3(n_group=16), None),
    "experts.topk_group": (LATENT, _v3(topk_group=2), "experts.topk_group"),
    "experts.routed_scaling_factor": (SPARSE, _experts(routed_scaling_factor=2.5), None),
    "experts.e_score_correction_bias": (
        SPARSE,
        _experts(e_score_correction_bias=True),
        "experts.e_score_correction_bias",
    ),
    "experts.router_bias": (SPARSE, _experts(router_bias=True), "experts.router_bias"),
    "experts.expert_bias": (SPARSE, _experts(expert_bias=True), "experts.expert_bias"),
    "experts.router_aux_loss_coef": (SPARSE, _experts(router_aux_loss_coef=0.0), None),
    "rope_scaling.rope_type": (DENSE, {"rope_scaling": LONG}, "rope_scaling.rope_type"),
    "rope_scaling.factor": (ROPE_70B, {"rope_scaling": {**LLAMA3, "factor": 32.0}}, "rope_scaling.factor"),
    "rope_scaling.original_max_position_embeddings": (
        ROPE_70B,
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 4096}},
        "rope_scaling.original_max_position_embeddings",
    ),
    "rope_scaling.low_freq_factor": (
        ROPE_70B,
        {"rope_scaling": {**LLAMA3, "low_freq_factor": 2.0}},
        "rope_scaling.low_freq_factor",
    ),
    "rope_scaling.high_freq_factor": (
        ROPE_70B,
        {"rope_scaling": {**LLAMA3, "high_freq_factor": 8.0}},
        "rope_scaling.high_freq_factor",
    ),
    "rope_scaling.beta_fast": (YARN_13B, {"rope_scaling": {**YARN, "beta_fast": 16.0}}, None),
    "rope_scaling.beta_slow": (YARN_13B, {"rope_scaling": {**YARN, "beta_slow": 2.0}}, None),
    "rope_scaling.mscale": (YARN_13B, {"rope_scaling": {**YARN, "mscale": 0.7}}, None),
    "rope_scaling.mscale_all_dim": (YARN_13B, {"rope_scaling": {**YARN, "mscale_all_dim": 0.7}}, None),
    "rope_scaling.truncate": (YARN_13B, {"rope_scaling": YARN}, None),
    "rope_scaling.short_factor": (
        DENSE,
        {"rope_scaling": {**LONG, "short_factor": [2.0] * 64}},
        "rope_scaling.rope_type",
    ),
    "rope_scaling.long_factor": (
        DENSE,
        {"rope_scaling": {**LONG, "long_factor": [4.0] * 64}},
        "rope_scaling.rope_type",
    ),
    "latent.q_lora_rank": (LATENT, {"latent": {"q_lora_rank": None}}, None),
    "latent.kv_lora_rank": (LATENT, {"latent": {"kv_lora_rank": 256}}, None),
    "latent.qk_nope_head_dim": (LATENT, {"latent": {"qk_nope_head_dim": 64}}, None),
    "latent.qk_rope_head_dim": (LATENT, {"latent": {"qk_rope_head_dim": 32}}, None),
    "latent.v_head_dim": (LATENT, {"latent": {"v_head_dim": 64}}, None),
    "mlp_layers": (DENSE, {"mlp_layers": [True] * 39 + [False]}, None),
    "norm_bias": (DENSE, {"norm_bias": False}, "norm_bias"),
    "norm_weight": (DENSE, {"norm_weight": False}, "norm_weight"),
    "norm_before_sublayer": (DENSE, {"norm_before_sublayer": False}, "norm_before_sublayer"),
    "norm_after_residual": (DENSE, {"norm_after_residual": True}, "norm_after_residual"),
    "final_norm": (DENSE, {"final_norm": False}, "final_norm"),
    "inner_norm": (DENSE, {"inner_norm": True}, "inner_norm"),
    "qk_norm_bias": (DENSE, {"qk_norm": True, "qk_norm_bias": True}, "qk_norm_bias"),
    "extra_positions": (DENSE, {"position": "learned", "extra_positions": 2}, "extra_positions"),
    "shared_input_norm": (DENSE, {"shared_input_norm": True}, "shared_input_norm"),
    "embedding_norm": (DENSE, {"embedding_norm": True}, "embedding_norm"),
    "residual_multiplier": (DENSE, {"residual_multiplier": 0.22}, "residual_multiplier"),
    "logits_multiplier": (DENSE, {"logits_multiplier": 0.1}, None),
    "embedding_multiplier": (DENSE, {"embedding_multiplier": 12.0}, None),
    "rope_layers": (DENSE, {"rope_layers": [True] * 39 + [False]}, None),
    "qk_norm_of": (DENSE, {"qk_norm": True, "qk_norm_of": "all_heads"}, "qk_norm_of"),
    "v_norm": (DENSE, {"v_norm": True}, "v_norm"),
    "first_input_norm": (DENSE, {"first_input_norm": False}, "first_input_norm"),
    "num_labels": (DENSE, {"num_labels": 1}, "num_labels"),
    "head_projection": (DENSE, {"head_projection": True}, "head_projection"),
    "norm_gate_rank": (DENSE, {"norm_gate_rank": 16}, "norm_gate_rank"),
    "latent.rope_key_norm": (LATENT, {"latent": {"rope_key_norm": True}}, "latent.rope_key_norm"),
    "latent.queries_of_both": (
        LATENT,
        {"attention_gate": "channel", "latent": {"queries_of_both": True}},
        "latent.queries_of_both",
    ),
    "attention_gate": (DENSE, {"attention_gate": "channel"}, None),
    "v_head_dim": (DENSE, {"v_head_dim": 64}, "v_head_dim"),
    "chunked_attention": (DENSE, {"chunked_attention": True}, "chunked_attention"),
    "indexer": (
        LATENT,
        {"num_nextn_predict_layers": 0, "indexer": {"index_n_heads": 4, "index_head_dim": 64, "index_topk": 256}},
        None,
    ),
    "qk_convolutions": (DENSE, {"qk_convolutions": (2, 2)}, "qk_convolutions"),
    "stream_scale": (DENSE, {"stream_scale": True}, "stream_scale"),
    "residual_scales": (DENSE, {"residual_scales": True}, "residual_scales"),
    "experts.router_hidden_size": (SPARSE, _experts(router_hidden_size=64), "experts.router_hidden_size"),
    "mlp_token_shift": (DENSE, {"mlp_token_shift": True}, "mlp_token_shift"),
    "streams": (DENSE, {"streams": {"count": 4, "mixing": "hyper"}}, "streams"),
    "laurel_rank": (DENSE, {"laurel_rank": 16, "streams": {"count": 4, "mixing": "predicted"}}, "laurel_rank"),
    "mlp_sparsity": (DENSE, {"mlp_sparsity": [0.5] * 40}, "mlp_sparsity"),
    "hypersphere": (DENSE, {"hypersphere": True}, "hypersphere"),
    "loop": (DENSE, {"loop": {"held": [*range(20), *range(20)]}}, "loop"),
    "shared_block": (DENSE, {"shared_block": {"layers": [True, *[False] * 38, True]}}, "shared_block"),
    "layer_inputs": (DENSE, {"layer_inputs": {"size": 64, "vocab_size": 32000}}, "layer_inputs"),
    "num_kv_shared_layers": (DENSE, {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
    "wide_intermediate_size": (
        DENSE,
        {"num_kv_shared_layers": 4, "wide_intermediate_size": 27648},
        "wide_intermediate_size",
    ),
    "experts.layers": (SPARSE, {**_experts(layers=(False, *(True,) * 31)), "intermediate_size": 14336}, None),
    "experts.input_scaled": (SPARSE, _experts(input_scaled=True), "experts.input_scaled"),
    "experts.shortcut": (SPARSE, _experts(shortcut=True), "experts.shortcut"),
    "experts.result_bias": (SPARSE, _experts(result_bias=True), "experts.result_bias"),
    "experts.norms_apart": (SPARSE, _experts(norms_apart=True), "experts.norms_apart"),
    "experts.result_norm": (SPARSE, _experts(result_norm=True), "experts.result_norm"),
    "particulars": (DENSE, {"particulars": ({"name": "clip_qkv", "value": 8.0},)}, "particulars"),
    "experts.zero_experts": (SPARSE, _experts(zero_experts=4), "experts.zero_experts"),
    "experts.latent_size": (SPARSE, _experts(latent_size=512), None),
    "experts.latent_bias": (SPARSE, _experts(latent_size=512, latent_bias=True), "experts.latent_bias"),
    "mixers": (DENSE, {"mixers": [{"block": "short_conv", "sizes": {"conv_L_cache": 3}}]}, "mixers"),
}


def _fields() -> Iterator[str]:
    for name in ModelDescriptor.model_fields:
        if name in SECTIONS:
            yield from (f"{name}.{inner}" for inner in SECTIONS[name].model_fields)
        elif name not in IGNORED:
            yield name


def test_the_cases_cover_every_field() -> None:
    assert set(CASES) == set(_fields())


def _arguments(model: ModelDescriptor) -> list[str]:
    plan = sample_plan(model, "h100", version=NEWEST)
    return megatron.arguments(plan)


@pytest.mark.parametrize("field", CASES)
def test_a_changed_field_changes_the_arguments_or_is_refused_by_name(field: str) -> None:
    base, changed, refused = CASES[field]
    before = sample_model(base, **BEFORE.get(field, {}))
    if "latent" in changed and changed["latent"] is not None and before.latent is not None:
        changed = {**changed, "latent": {**before.latent.model_dump(), **changed["latent"]}}
    if refused is None:
        assert _arguments(sample_model(base, **changed)) != _arguments(before)
        return
    with pytest.raises(InfeasibleError) as caught:
        _arguments(sample_model(base, **changed))
    assert refused in {name for problem in caught.value.problems for name in str(problem.field).split(" and ")}


def _value(args: list[str], flag: str) -> str:
    return args[args.index(flag) + 1]


@pytest.mark.parametrize(
    ("model", "version", "flag", "value"),
    [
        ("llama2-13b", NEWEST, "--vocab-size", "32000"),
        ("llama2-13b", "core_v0.17.1", "--vocab-size", "31999"),  # the NullTokenizer there adds a token
        ("llama2-13b", NEWEST, "--padded-vocab-size", "32256"),
        ("gpt3-175b", NEWEST, "--padded-vocab-size", "51200"),  # Megatron-LM's own 50257 at tp 8
        ("gpt-oss-120b", NEWEST, "--window-size", "127,0"),  # 128 tokens with the query's own
        ("gpt-oss-120b", NEWEST, "--window-attn-skip-freq", "([1,0]*18)"),
        ("gpt-oss-120b", NEWEST, "--yarn-original-max-position-embeddings", "4096"),
        ("deepseek-v3", NEWEST, "--moe-layer-freq", "([0]*3+[1]*58)"),
        ("deepseek-v3", NEWEST, "--max-position-embeddings", "163840"),
        ("deepseek-v3", NEWEST, "--moe-router-load-balancing-type", "seq_aux_loss"),
        ("qwen3-30b-a3b", NEWEST, "--num-query-groups", "4"),
        ("qwen3-30b-a3b", NEWEST, "--expert-tensor-parallel-size", "1"),
        ("llama3.1-70b", NEWEST, "--rotary-base", "500000"),
    ],
)
def test_values_that_are_easy_to_get_wrong(model: str, version: str, flag: str, value: str) -> None:
    assert _value(megatron.arguments(sample_plan(model, "h100", version=version)), flag) == value


def test_the_softmax_order_follows_the_renormalisation() -> None:
    assert "--moe-router-pre-softmax" not in _arguments(sample_model("mixtral-8x7b"))
    assert "--moe-router-pre-softmax" in _arguments(sample_model("mixtral-8x7b", **_experts(norm_topk_prob=False)))
    assert "--moe-router-pre-softmax" not in _arguments(sample_model("gpt-oss-120b"))


def test_sigmoid_scores_are_renormalised_where_there_are_several() -> None:
    for chosen, right in ((1, False), (2, True)):
        changed = {"scoring_func": "sigmoid", "num_experts_per_tok": chosen}
        model = sample_model("mixtral-8x7b", **_experts(**changed, norm_topk_prob=right))
        assert "sigmoid" in _arguments(model)
        with pytest.raises(InfeasibleError, match="renormalises sigmoid scores"):
            _arguments(sample_model("mixtral-8x7b", **_experts(**changed, norm_topk_prob=not right)))


# field and value -> release that is the first to say it, and what it says
SINCE = {
    "qk_norm_of": ({"qk_norm": True, "qk_norm_of": "unit"}, "core_v0.13.0", ["--qk-l2-norm"]),
    "rope_layers": (
        {"rope_layers": [True, True, True, False] * 10},
        "core_v0.13.0",
        ["--no-rope-freq", "([0,0,0,1]*10)"],
    ),
    "attention_gate": ({"attention_gate": "channel"}, "core_v0.16.1", ["--attention-output-gate"]),
    "logits_multiplier": ({"logits_multiplier": 0.0625}, "core_v0.17.1", ["--mup-output-mult", "0.0625"]),
    "embedding_multiplier": ({"embedding_multiplier": 12.0}, "core_v0.17.1", ["--mup-embedding-mult", "12.0"]),
    "scale_embeddings": ({"scale_embeddings": True}, "core_v0.17.1", ["--mup-embedding-mult", repr(5120**0.5)]),
    "query_pre_attn_scalar": ({"query_pre_attn_scalar": 64.0}, "core_v0.17.1", ["--mup-base-head-dim", "2.0"]),
    "hidden_act": ({"hidden_act": "gelu_sigmoid"}, "core_v0.15.0", ["--quick-geglu"]),
}


@pytest.mark.parametrize("field", SINCE)
def test_what_a_release_was_the_first_to_say_is_refused_before(field: str) -> None:
    changed, since, words = SINCE[field]
    model = sample_model(DENSE, **changed)
    args = megatron.arguments(sample_plan(model, "h100", version=since))
    assert args[args.index(words[0]) :][: len(words)] == words
    older = versions()[versions().index(since) - 1]
    with pytest.raises(InfeasibleError) as caught:
        megatron.arguments(sample_plan(model, "h100", version=older))
    (problem,) = caught.value.problems
    assert problem.field == field
    assert problem.edit is not None or problem.hint == f"megatron_version: {since} or later"


def test_factors_leave_the_scale_of_scores_as_it_was() -> None:
    """--use-mup by itself scales them by the head dimension, and not by its root."""
    args = _arguments(sample_model(DENSE, logits_multiplier=0.5))
    assert _value(args, "--mup-attn-scale-power") == "0.5"
    assert "--mup-base-head-dim" not in args
    assert "--mup-base-hidden-size" not in args


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"attention_gate": "head"}, "attention_gate"),
        ({"qk_norm": True, "qk_norm_of": "each_head"}, "qk_norm_of"),
        ({"position": "learned", "embedding_multiplier": 2.0}, "embedding_multiplier"),
        ({"rope_layers": [True] * 39 + [False], "num_nextn_predict_layers": 1}, "rope_layers"),
        ({"hidden_act": "relu2", "gated_mlp": True}, "hidden_act"),
    ],
)
def test_what_is_near_to_an_option_is_not_said_by_it(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        _arguments(sample_model(DENSE, **changed))
    assert [problem.field for problem in caught.value.problems] == [field]


def test_the_exact_gelu_is_not_the_fused_one() -> None:
    tanh, exact = sample_model("gpt3-175b"), sample_model("gpt3-175b", hidden_act="gelu")
    assert "--no-bias-gelu-fusion" not in _arguments(tanh)
    assert "--no-bias-gelu-fusion" in _arguments(exact)


def test_until_013_yarn_of_mla_takes_its_length_from_the_position_embeddings() -> None:
    args = megatron.arguments(sample_plan("deepseek-v3", "h100", version="core_v0.12.1", pipeline_layout=None))
    assert _value(args, "--max-position-embeddings") == "4096"
    with pytest.raises(InfeasibleError, match=r"core_v0\.14\.0"):
        megatron.arguments(
            sample_plan("deepseek-v3", "h100", version="core_v0.12.1", pipeline_layout=None, seq_length=8192)
        )


def test_a_window_longer_than_the_sequence_needs_no_option() -> None:
    model = sample_model("llama2-13b", sliding_window=4096)
    assert "--window-size" not in megatron.arguments(sample_plan(model, version="core_v0.14.0"))
    with pytest.raises(InfeasibleError, match=r"sliding_window.*core_v0\.15\.0"):
        megatron.arguments(sample_plan(sample_model("llama2-13b", sliding_window=4095), version="core_v0.14.0"))


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(InfeasibleError) as caught:
        megatron.arguments(sample_plan("gpt-oss-120b", "h100", version="core_v0.12.1"))
    assert {problem.field for problem in caught.value.problems} == {
        "rope_scaling.rope_type",
        "hidden_act",
        "experts.expert_bias",
        "sliding_window",
        "attention_sinks",
    }

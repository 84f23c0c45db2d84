"""Acceptance is not sameness: no field of the descriptor is forgotten, and a wrong value is found."""

from __future__ import annotations

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts, LatentAttention, RopeScaling
from symconfig.frameworks.megatron.releases import NEVER
from symconfig.plans.configuration import FIELDS
from symconfig.plans.plan import Plan
from symconfig.verify import megatron, megatron_agreement, megatron_sameness
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_resolved import Resolved
from symconfig.verify.megatron_session import Result
from tests.sample_plans import _DEGREES, sample_model, sample_plan
from tests.verify.megatron_support import rendered, replaced, source

MODELS = [name for name in _DEGREES if not name.endswith("-lora")]
# Kernels, buffers and schedules, which Megatron has no single resolved value for, or derives from others; how the
# stages are told is compared by the layers that come of it.
NOT_COMPARED = {
    "cp_comm", "param_offload", "account_for_embedding", "account_for_loss", "microbatch_group_size",
    "overlap_param_gather", "overlap_pp_p2p",
    "moe_dispatcher", "grad_bytes", "pipeline_layout", "first_stage_layers", "last_stage_layers", "fp8_attention",
}  # fmt: skip


def test_every_field_of_the_descriptor_is_compared_or_named_as_not_architectural() -> None:
    compared, refused = {row.field for row in megatron_sameness.ROWS}, {*NEVER, "vision", "adapter"}
    inner = {"experts": Experts, "latent": LatentAttention, "rope_scaling": RopeScaling}
    fields = {f"{section}.{name}" for section, kind in inner.items() for name in kind.model_fields}
    every = (ModelDescriptor.model_fields.keys() - inner.keys()) | fields
    assert compared | megatron_sameness.NOT_ARCHITECTURAL | refused == every
    assert not compared & (megatron_sameness.NOT_ARCHITECTURAL | refused)


def test_every_number_of_the_plan_is_compared_or_named() -> None:
    compared = {row.field.split(".")[2] for row in megatron_agreement.ROWS} | {"num_microbatches"}
    assert {*FIELDS} - compared - NOT_COMPARED == set()


# Structure that no sample has, each as a change of one.
STRUCTURES = {
    "gate": ("llama2-13b", {"attention_gate": "channel"}),
    "unit norms": ("llama2-13b", {"qk_norm": True, "qk_norm_of": "unit"}),
    "layers without rope": ("llama2-13b", {"rope_layers": [True, True, True, False] * 10}),
    "factors": ("llama2-13b", {"scale_embeddings": True, "logits_multiplier": 0.5, "query_pre_attn_scalar": 168.0}),
    "squared ReLU": ("llama2-13b", {"hidden_act": "relu2", "gated_mlp": False}),
    "quick GELU": ("llama2-13b", {"hidden_act": "gelu_sigmoid"}),
    "latent experts": ("qwen3-30b-a3b", {"experts": {"latent_size": 512}}),
    "experts of some layers": (
        "qwen3-30b-a3b",
        {"intermediate_size": 6144, "experts": {"layers": [False, True, True] * 16}},
    ),
    "experts of squared ReLU": ("qwen3-30b-a3b", {"hidden_act": "relu2", "gated_mlp": False}),
}


def structured(name: str) -> ModelDescriptor:
    base, changed = STRUCTURES[name]
    model = sample_model(base)
    if "experts" in changed and model.experts is not None:
        changed = {**changed, "experts": {**model.experts.model_dump(), **changed["experts"]}}
    return sample_model(base, **changed)


OVERLAPPED = sample_plan("qwen3-30b-a3b", "h100", tp=1, pp=4, vpp=2, overlap_moe_a2a=True)


def of(model: str | Plan) -> Rendered:
    """Return what is rendered for a sample, one of STRUCTURES or a plan."""
    known = isinstance(model, str) and model in STRUCTURES
    return rendered(sample_plan(structured(model), "h100") if known else model, cluster="h100")


# An accepted list that is another model or another plan: the model, the option, its values, the field that says so.
WRONG = {
    "no SwiGLU": ("llama2-13b", "--swiglu", [], "hidden_act"),
    "rope base": ("qwen2.5-7b", "--rotary-base", ["10000"], "rope_theta"),
    "rope scaling": ("llama3.1-70b", "--use-rope-scaling", [], "rope_scaling.rope_type"),
    "epsilon": ("qwen2.5-7b", "--norm-epsilon", ["1e-5"], "norm_eps"),
    "biases of q, k, v": ("qwen2.5-7b", "--add-qkv-bias", [], "qkv_bias"),
    "all biases": ("llama2-13b", "--disable-bias-linear", [], "attention_out_bias"),
    "tied": ("llama2-13b", "--untie-embeddings-and-output-weights", [], "tie_word_embeddings"),
    "norm": ("llama2-13b", "--normalization", ["LayerNorm"], "norm"),
    "normed q and k": ("qwen3-30b-a3b", "--qk-layernorm", [], "qk_norm"),
    "softmax order": ("mixtral-8x7b", "--moe-router-topk", ["2", "--moe-router-pre-softmax"], "experts.norm_topk_prob"),
    "expert width": ("qwen3-30b-a3b", "--moe-ffn-hidden-size", ["1536"], "experts.moe_intermediate_size"),
    "dense layers": ("deepseek-v3", "--moe-layer-freq", [], "experts.first_k_dense_replace"),
    "score function": ("deepseek-v3", "--moe-router-topk-scaling-factor", ["1.5"], "experts.routed_scaling_factor"),
    "latent rank": ("deepseek-v3", "--kv-lora-rank", ["256"], "latent.kv_lora_rank"),
    "YaRN factor": ("deepseek-v3", "--rotary-scaling-factor", ["10"], "rope_scaling.factor"),
    "no sinks": ("gpt-oss-120b", "--softmax-type", [], "attention_sinks"),
    "window": ("gpt-oss-120b", "--window-size", ["128,0"], "sliding_window"),
    "windows everywhere": ("gpt-oss-120b", "--window-attn-skip-freq", [], "sliding_window_pattern"),
    "rounded YaRN range": ("gpt-oss-120b", "--no-yarn-correction-range-round-to-int", [], "rope_scaling.truncate"),
    "learned positions": ("gpt3-175b", "--max-position-embeddings", ["4096"], "max_position_embeddings"),
    "dropout": ("gpt3-175b", "--hidden-dropout", ["0.0"], "hidden_dropout"),
    "initialisation": ("llama2-13b", "--init-method-std", ["0.01"], "initializer_range"),
    "another degree": ("llama2-13b", "--tensor-model-parallel-size", ["2"], "parallel.tp"),
    "another batch": ("llama2-13b", "--micro-batch-size", ["2"], "batch.micro"),
    "no distributed optimizer": ("llama2-13b", "--overlap-param-gather", [], None),
    "no expert overlap": (OVERLAPPED, "--overlap-moe-expert-parallel-comm", [], "options.overlap.moe_a2a"),
    "no gate": ("gate", "--attention-output-gate", [], "attention_gate"),
    "normed with weights": ("unit norms", "--qk-l2-norm", [], "qk_norm_of"),
    "rope everywhere": ("layers without rope", "--no-rope-freq", [], "rope_layers"),
    "factor of embeddings": ("factors", "--mup-embedding-mult", ["2.0"], "scale_embeddings"),
    "factor of logits": ("factors", "--mup-output-mult", [], "logits_multiplier"),
    "scale of scores": ("factors", "--mup-attn-scale-power", [], "query_pre_attn_scalar"),
    "experts as wide as the stream": ("latent experts", "--moe-latent-size", [], "experts.latent_size"),
    "experts everywhere": ("experts of some layers", "--moe-layer-freq", [], "experts.layers"),
    "stages": ("llama2-13b", "--num-layers", ["40", "--decoder-first-pipeline-num-layers", "18"], "stages.0"),
}


@pytest.fixture(scope="module")
def checked() -> dict[str, list[Check]]:
    """Every sample model and every wrong list, in one process with one import of Megatron."""
    items = {model: of(model) for model in (*MODELS, *STRUCTURES)}
    items |= {name: replaced(of(model), option, *values) for name, (model, option, values, _) in WRONG.items()}
    return megatron.check_many(items, source())


@pytest.mark.parametrize("model", [*MODELS, *STRUCTURES])
def test_megatron_takes_what_is_rendered_and_builds_the_same_model(model: str, checked: dict[str, list[Check]]) -> None:
    assert [str(check) for check in checked[model] if check.status != "passed"] == []
    assert len(checked[model]) == 8


@pytest.mark.parametrize("name", WRONG)
def test_an_accepted_list_of_another_model_or_plan_is_found(name: str, checked: dict[str, list[Check]]) -> None:
    field = WRONG[name][3]
    failed = [check for check in checked[name] if check.status == "failed"]
    if field is None:  # leaving an overlap out changes neither the model nor a compared number
        assert failed == []
        return
    assert any(f"{field}: " in check.detail for check in failed), [str(check) for check in checked[name]]


def test_a_model_with_what_nothing_was_said_of_is_not_the_same() -> None:
    model = sample_model("llama2-13b", scale_embeddings=True)
    (row,) = (row for row in megatron_sameness.ROWS if row.field == "scale_embeddings")
    need, got = row.values(model, Resolved(Result("none")))
    assert need != got

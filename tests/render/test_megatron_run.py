"""Degrees, switches, options of each release, the environment, and what the job passes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError, InputError
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.plans.history import History, Segment
from symconfig.plans.plan import Plan
from symconfig.render import megatron, ms_swift, targets
from tests.sample_plans import sample_model, sample_plan
from tests.zoo_limits import NOT_IN_MEGATRON, SINCE

VERSIONS = versions()[1:]
SOME = VERSIONS[::4]  # of all, for what is as many as the zoo

# plan -> the versions that have to take it
PLANS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "plain": ("llama2-13b", "a100-80gb", {}, "core_v0.12.1"),
    "interleaved, cp": ("llama3.1-70b", "a100-80gb", {}, "core_v0.12.1"),
    "no ZeRO": ("llama2-13b", "h100", {"zero_stage": 0}, "core_v0.12.1"),
    "FSDP, gradients": ("llama2-13b", "h100", {"zero_stage": 2, "pp": 1, "dp": 16}, "core_v0.12.1"),
    "FSDP, weights": ("llama2-13b", "h100", {"zero_stage": 3, "pp": 1, "tp": 1, "dp": 64}, "core_v0.12.1"),
    "one GPU": ("llama2-13b", "h100", {"tp": 1, "pp": 1, "dp": 1}, "core_v0.12.1"),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8"}, "core_v0.12.1"),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8"}, "core_v0.12.1"),
    "nvfp4": ("llama2-13b", "b200", {"precision": "nvfp4"}, "core_v0.15.0"),
    "fp16": ("llama2-13b", "v100-16gb", {}, "core_v0.12.1"),
    "Ulysses": ("llama2-13b", "h100", {"cp": 2, "cp_comm": "a2a"}, "core_v0.12.1"),
    "full recompute": (
        "llama2-13b",
        "h100",
        {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
        "core_v0.12.1",
    ),
    "block recompute": (
        "llama2-13b",
        "h100",
        {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
        "core_v0.12.1",
    ),
    "selective": (
        "qwen3-30b-a3b",
        "h100",
        {"recompute": "selective", "recompute_modules": ("moe_act", "core_attn")},
        "core_v0.12.1",
    ),
    "shared experts": (
        "deepseek-v3",
        "h100",
        {"recompute": "selective", "recompute_modules": ("shared_experts",)},
        "core_v0.14.0",
    ),
    "optimizer offload": ("llama2-13b", "h100", {"optimizer_offload": 0.25}, "core_v0.12.1"),
    "activation offload": ("llama2-13b", "h100", {"activation_offload": True}, "core_v0.16.1"),
    "tp overlap": ("llama2-13b", "h100", {"overlap_tp_comm": True}, "core_v0.12.1"),
    "expert overlap": ("qwen3-30b-a3b", "h100", {"pp": 4, "vpp": 2, "overlap_moe_a2a": True}, "core_v0.14.0"),
    "flex": ("qwen3-30b-a3b", "h100", {"moe_dispatcher": "flex"}, "core_v0.12.1"),
    "expert tensor": ("mixtral-8x7b", "h100", {"etp": 2, "ep": 4}, "core_v0.12.1"),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}, "core_v0.12.1"),
    "layout": ("llama2-13b", "h100", {"pp": 4, "pipeline_layout": "Et*9|t*11|t*11|t*9L"}, "core_v0.13.0"),
    "counts": (
        "llama2-13b",
        "h100",
        {"pp": 4, "pipeline_layout": None, "first_stage_layers": 12, "last_stage_layers": 8},
        "core_v0.12.1",
    ),
    "split": (
        "llama2-13b",
        "h100",
        {"pp": 6, "account_for_embedding": True, "account_for_loss": True, "pipeline_layout": None},
        "core_v0.12.1",
    ),
    "GPT-3": ("gpt3-175b", "a100-80gb", {}, "core_v0.12.1"),
    "gpt-oss": ("gpt-oss-120b", "h100", {}, "core_v0.19.0"),
    "MLA, MTP, layout": ("deepseek-v3", "h100", {}, "core_v0.14.0"),
    "real data": (
        "llama2-13b",
        "h100",
        {"training": {"data_path": ("0.3", "/a", "0.7", "/b"), "save": "/s", "load": "/l", "lr_decay_style": "WSD"}},
        "core_v0.12.1",
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLANS)
def test_every_argument_is_in_the_table_of_its_version_or_the_plan_is_refused(name: str, version: str) -> None:
    model, cluster, overrides, since = PLANS[name]
    plan = sample_plan(model, cluster, version=version, **overrides)
    if VERSIONS.index(version) < VERSIONS.index(since):
        with pytest.raises(InfeasibleError, match=since):
            megatron.arguments(plan)
        return
    assert flags(version).check(megatron.arguments(plan)) == []


@pytest.mark.parametrize("version", SOME)
@pytest.mark.parametrize("name", [name for name in zoo_models() if not name.endswith("-lora")])
def test_zoo_models_render_for_every_version_that_can_express_them(name: str, version: str) -> None:
    plan = sample_plan(load_model(name), "h100", version=version, tp=2, pp=1, dp=4, cp=1, vpp=1, ep=1)
    since, field = SINCE.get(name, (VERSIONS[0], ""))
    if VERSIONS.index(version) < VERSIONS.index(since):
        with pytest.raises(InfeasibleError, match=field):
            megatron.arguments(plan)
    elif name in NOT_IN_MEGATRON:
        with pytest.raises(InfeasibleError) as caught:
            megatron.arguments(plan)
        assert NOT_IN_MEGATRON[name] in {problem.field for problem in caught.value.problems}
    else:
        assert flags(version).check(megatron.arguments(plan)) == []


def _args(*given: Any, **overrides: Any) -> list[str]:
    return megatron.arguments(sample_plan(*given, **overrides))


def test_adapters_are_refused_with_the_way_out() -> None:
    with pytest.raises(InfeasibleError, match=r"no LoRA.*--backend deepspeed") as caught:
        _args("llama2-13b-lora")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("overrides", "absent"),
    [
        ({"tp": 1, "sequence_parallel": True}, "--sequence-parallel"),
        ({"pp": 1}, "--num-virtual-stages-per-pipeline-rank"),
        ({"tp": 1, "pp": 1, "dp": 1}, "--overlap-grad-reduce"),
        ({"zero_stage": 0}, "--overlap-param-gather"),
        ({"overlap_grad_reduce": False}, "--overlap-param-gather"),
        ({"pp": 2, "vpp": 2, "overlap_pp_p2p": False}, "--no-overlap-p2p-communication"),
        ({}, "--expert-model-parallel-size"),
        ({"pp": 1, "vpp": 1, "pipeline_layout": "Et*40L"}, "--pipeline-model-parallel-layout"),
        ({"pp": 1, "first_stage_layers": 40}, "--decoder-first-pipeline-num-layers"),
        ({"pp": 1, "last_stage_layers": 40}, "--decoder-last-pipeline-num-layers"),
        ({"pp": 1, "account_for_embedding": True}, "--account-for-embedding-in-pipeline-split"),
        ({"pp": 1, "account_for_loss": True}, "--account-for-loss-in-pipeline-split"),
        ({"pp": 2, "vpp": 1}, "--num-virtual-stages-per-pipeline-rank"),
        ({"pp": 2, "vpp": 1, "microbatch_group_size": 4}, "--microbatch-group-size-per-virtual-pipeline-stage"),
        ({"cp": 1, "cp_comm": "a2a"}, "--cp-comm-type"),
        ({"tp": 1, "pp": 1, "dp": 1}, "--overlap-param-gather"),
    ],
)
def test_a_degree_of_one_brings_no_flag_that_harms(overrides: dict[str, Any], absent: str) -> None:
    assert absent not in _args(**overrides)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"lr_warmup_iters": 1000}, "lr_warmup_iters"),
        ({"lr": 1e-5, "min_lr": 1e-4}, "min_lr"),
        ({"data_path": ("/d",), "tokenizer_type": "HuggingFaceTokenizer"}, "tokenizer_model"),
        ({"data_path": ("a", "-b"), "tokenizer_model": "t"}, "dash"),
        ({"tokenizer_type": "Nonsense", "data_path": ("/d",), "tokenizer_model": "t"}, "tokenizer-type"),
    ],
)
def test_what_the_job_passes_on_is_checked_before_a_run_would_fail(training: dict[str, Any], said: str) -> None:
    with pytest.raises((InputError, InfeasibleError), match=said):
        _args(sample_model("llama2-13b", huggingface_id=None), training=training)


@pytest.mark.parametrize(
    ("overrides", "flag"),
    [
        ({"precision": "fp16"}, "--accumulate-allreduce-grads-in-fp32"),
        ({"precision": "fp16", "grad_bytes": 2}, None),
        ({"precision": "bf16"}, None),
        ({"precision": "bf16", "grad_bytes": 2}, "--grad-reduce-in-bf16"),
        ({"zero_stage": 3, "pp": 1}, "--megatron-fsdp-main-grads-dtype"),
    ],
)
def test_gradients_have_the_plan_s_bytes(overrides: dict[str, Any], flag: str | None) -> None:
    given = megatron.arguments(sample_plan("llama2-13b", "h100", **overrides))
    ours = {"--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16", "--megatron-fsdp-main-grads-dtype"}
    assert ours & set(given) == ({flag} if flag else set())


@pytest.mark.parametrize(("before", "train", "leaves"), [(600, "1000", "800"), (200, "800", None)])
def test_a_run_has_data_to_its_end(before: int, train: str, leaves: str | None) -> None:
    """400 steps of another batch saw as much as `before` of the plan's own; samples are --train-iters x batch."""
    plan = sample_plan("llama2-13b", "h100", training={"train_iters": 800})
    batch = plan.best.configuration
    plan = replace(plan, history=History((Segment(400, before * batch.global_batch, batch.seq_length),)))
    words = megatron.arguments(plan)
    given = dict(pairwise(words))
    assert (given["--train-iters"], given.get("--exit-interval")) == (train, leaves)


Case = tuple[str, str, dict[str, Any]]
DEEPEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
HYBRIDEP = DEEPEP | {"moe_flex_backend": "hybridep"}
CASES: dict[str, Case] = {
    "deepep": ("mixtral-8x7b", "h100", DEEPEP),
    "hybridep": ("mixtral-8x7b", "h100", HYBRIDEP),
    "router": ("mixtral-8x7b", "h100", {"cuda_graphs": "router"}),
    "outside experts": ("mixtral-8x7b", "h100", {"cuda_graphs": "outside experts"}),
    "all": ("llama2-13b", "h100", {"cuda_graphs": "all"}),
    "one graph": ("llama2-13b", "h100", {"cuda_graphs": "full iteration"}),
    "capacity": ("mixtral-8x7b", "h100", HYBRIDEP | {"expert_capacity": 1.5, "paged_stash": True}),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8", "fp8_param_gather": True}),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8", "fp8_param_gather": True}),
    "fsdp": ("llama2-13b", "b200", {"precision": "mxfp8", "fp8_param_gather": True, "zero_stage": 3, "pp": 1}),
    "fused loss": ("llama2-13b", "h100", {"fused_loss": True}),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}),
    "user buffers": ("llama2-13b", "h100", {"overlap_tp_comm": True}),
    "weight shards": ("llama2-13b", "h100", {"gtp": 2}),
}
FLEX = "--moe-token-dispatcher-type flex"
FP32 = "--moe-router-dtype fp32"
GRAPHS = ("--cuda-graph-warmup-steps 3", "--te-rng-tracker")
LOCAL, NO_CHECK = "--cuda-graph-impl local", "--no-check-for-nan-in-loss-and-grad"
IMPL = "--cuda-graph-impl transformer_engine"
# Per case, what is written from a release on; nothing: it is refused.
WRITTEN: dict[str, dict[str, tuple[str, ...]]] = {
    "deepep": {
        "core_v0.12.1": (FLEX, "--moe-enable-deepep", FP32),
        "core_v0.16.1": (FLEX, "--moe-flex-dispatcher-backend deepep", FP32),
    },
    "hybridep": {"core_v0.12.1": (), "core_v0.16.1": (FLEX, "--moe-flex-dispatcher-backend hybridep", FP32)},
    "router": {
        "core_v0.12.1": (),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope moe_router moe_preprocess", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules moe_router moe_preprocess", *GRAPHS),
    },
    "outside experts": {
        "core_v0.12.1": (),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope attn moe_router moe_preprocess", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules attn moe_router moe_preprocess", *GRAPHS),
    },
    "all": {
        "core_v0.12.1": ("--external-cuda-graph", "--cuda-graph-scope full", *GRAPHS),
        "core_v0.15.0": (IMPL, "--cuda-graph-scope full", *GRAPHS),
        "core_v0.16.1": (IMPL, "--cuda-graph-scope attn mlp", *GRAPHS),
        "core_v0.18.2": (IMPL, "--cuda-graph-modules attn mlp", *GRAPHS),
    },
    "one graph": {
        "core_v0.12.1": (),
        "core_v0.15.0": (LOCAL, "--cuda-graph-scope full_iteration", NO_CHECK, *GRAPHS),
        "core_v0.18.2": ("--cuda-graph-impl full_iteration", NO_CHECK, *GRAPHS),
    },
    "capacity": {
        "core_v0.12.1": (),
        "core_v0.18.2": (
            FLEX,
            "--moe-flex-dispatcher-backend hybridep",
            FP32,
            "--moe-expert-rank-capacity-factor 1.5",
            "--use-transformer-engine-op-fuser",
            "--moe-paged-stash",
        ),
    },
    "fp8": {"core_v0.12.1": ("--fp8-param-gather",)},
    "mxfp8": {"core_v0.12.1": (), "core_v0.14.0": ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag")},
    "fused loss": {
        "core_v0.12.1": ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"),
        "core_v0.18.2": (),
    },
    "bf16 gradients": {"core_v0.12.1": ("--grad-reduce-in-bf16",)},
    "user buffers": {"core_v0.12.1": ("--tp-comm-overlap",)},
    "weight shards": {"core_v0.12.1": (), "core_v0.19.0": ("--tensor-parallel-num-weight-shards 8",)},
}
# Per case, the pin that leaves it out.
OFF = {
    "deepep": "dispatcher=alltoall", "hybridep": "dispatcher=alltoall", "router": "cuda_graphs=none",
    "outside experts": "cuda_graphs=none", "all": "cuda_graphs=none", "fp8": "fp8_param_gather=off",
    "mxfp8": "fp8_param_gather=off", "fused loss": "fused_loss=off", "bf16 gradients": "grad_dtype=fp32",
    "user buffers": "user_buffers=off", "weight shards": "gtp=1",
    "one graph": "cuda_graphs=none", "capacity": "expert_capacity=none",
}  # fmt: skip


def planned(name: str, **more: Any) -> Plan:
    model, cluster, overrides = CASES[name]
    return sample_plan(model, cluster, **overrides, **more)


def lines(plan: Plan) -> list[str]:
    return [" ".join(option) for group in megatron.groups(plan) for option in group.options]


def wanted(name: str, version: str) -> tuple[str, ...]:
    order = versions()
    since = [first for first in WRITTEN[name] if order.index(first) <= order.index(version)]
    return WRITTEN[name][since[-1]]


@pytest.mark.parametrize("version", versions()[1:])
@pytest.mark.parametrize("name", WRITTEN)
def test_an_option_is_said_as_its_release_says_it_or_refused(name: str, version: str) -> None:
    plan = planned(name, version=version)
    if not wanted(name, version):
        problems = targets()["megatron"].refusals(plan)
        assert OFF[name] in {pin for problem in problems for pin in problem.pins}
        assert len(problems) == 1 or name == "capacity"  # whose dispatcher is refused, too
        return
    model, cluster, overrides = CASES[name]
    plain = {key: value for key, value in overrides.items() if key == "precision"}
    without = lines(sample_plan(model, cluster, version=version, **plain))
    added = [line for line in lines(plan) if line not in without]
    assert sorted(added) == sorted(wanted(name, version))
    assert {line for line in without if line not in lines(plan)} <= {"--moe-token-dispatcher-type alltoall"}


# Of ms-swift, what is refused of the cases, each with the pin that leaves it out.
REFUSED = (
    "one graph",
    "capacity",
    "router",
    "outside experts",
    "all",
    "mxfp8",
    "bf16 gradients",
    "user buffers",
    "fused loss",
    "weight shards",
)


@pytest.mark.parametrize("name", OFF)
def test_ms_swift_says_an_option_or_refuses_it_with_the_pin_that_leaves_it_out(name: str) -> None:
    problems = targets()["ms-swift"].refusals(planned(name))
    assert (OFF[name] in {pin for problem in problems for pin in problem.pins}) == (name in REFUSED)


def test_ms_swift_says_the_rest_in_its_own_words() -> None:
    def said(plan: Plan) -> dict[str, Any]:
        return {key: value for section in ms_swift.sections(plan).values() for key, value in section.items()}

    experts = said(sample_plan("qwen3-30b-a3b", "h100", **HYBRIDEP))
    assert (experts["moe_token_dispatcher_type"], experts["moe_router_dtype"]) == ("flex", "fp32")
    assert experts["megatron_extra_kwargs"]["moe_flex_dispatcher_backend"] == "hybridep"
    assert said(planned("fp8"))["fp8_param_gather"] is True
    assert (experts["manual_gc"], experts["manual_gc_steps"]) == (True, 100)
    old = said(planned("fused loss", version="core_v0.17.1"))
    assert (old["cross_entropy_loss_fusion"], old["cross_entropy_fusion_impl"]) == (True, "te")

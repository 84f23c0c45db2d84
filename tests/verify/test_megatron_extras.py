"""Megatron's own parser takes each option and optimizer as the plan has it, and refuses or changes what it should."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.behaviour import usual
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.optimizers import stepping
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.verify import megatron_rank
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_session import Result
from tests.sample_plans import sample_plan, with_optimizer
from tests.verify.megatron_support import checked, rendered, replaced

DEEPEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
GATHER: dict[str, Any] = {"fp8_param_gather": True}
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepep": ("mixtral-8x7b", "h100", DEEPEP),
    "hybridep": ("mixtral-8x7b", "b200", {**DEEPEP, "moe_flex_backend": "hybridep"}),
    "router": ("mixtral-8x7b", "h100", {"cuda_graphs": "router"}),
    "outside experts": ("mixtral-8x7b", "h100", {"cuda_graphs": "outside experts", **DEEPEP}),
    "all": ("llama2-13b", "h100", {"cuda_graphs": "all"}),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8", **GATHER}),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8", **GATHER}),
    "fsdp": ("llama2-13b", "b200", {"precision": "mxfp8", "zero_stage": 3, "pp": 1, **GATHER}),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}),
    "bf16 gradients of fsdp": ("llama2-13b", "h100", {"grad_bytes": 2, "zero_stage": 2, "pp": 1}),
    "user buffers": ("llama2-13b", "a100-80gb", {"overlap_tp_comm": True}),
}
# What somebody changed in a list: its plan, the option, its values, and the field that then differs.
EDITS: dict[str, tuple[str, str, list[str], str]] = {
    "other modules": ("router", "--cuda-graph-modules", ["attn", "moe_router", "moe_preprocess"], "cuda_graphs"),
    "half a layer": ("all", "--cuda-graph-modules", ["mlp"], "cuda_graphs"),
    "no graphs": ("all", "--cuda-graph-impl", ["none"], "cuda_graphs"),
    "another backend": ("deepep", "--moe-flex-dispatcher-backend", ["hybridep"], "moe_flex_backend"),
    "no user buffers": ("user buffers", "--tp-comm-overlap", [], "overlap.tp_comm"),
    "wide gradients": ("bf16 gradients", "--grad-reduce-in-bf16", [], "grad_bytes"),
    "wide gradients of fsdp": (
        "bf16 gradients of fsdp", "--grad-reduce-in-bf16", ["--megatron-fsdp-main-grads-dtype", "fp32"], "grad_bytes",
    ),
    "whole weights": ("fp8", "--fp8-param-gather", [], "fp8_param_gather"),
}  # fmt: skip


def planned(name: str) -> Rendered:
    model, cluster, overrides = PLANS[name]
    return rendered(sample_plan(model, load_cluster(cluster), **overrides))


FLAG = "--overlap-moe-expert-parallel-comm"
# core_v0.19: an option of a plan that has the overlap, its values, words of the refusal.
REFUSED = {
    "one chunk a stage": ("--num-virtual-stages-per-pipeline-rank", [], "virtual_pipeline_model_parallel_size"),
    "no expert parallelism": ("--expert-model-parallel-size", ["1"], "only supported with expert model parallelism"),
    "full recompute": (
        FLAG,
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        "disable full recomputation",
    ),
    "recomputed experts": (
        FLAG,
        ["--recompute-granularity", "selective", "--recompute-modules", "moe"],
        "disable moe in recompute_modules",
    ),
    "two prediction layers": (FLAG, ["--mtp-num-layers", "2"], "at most one layer"),
    "gathered experts": ("--moe-token-dispatcher-type", ["allgather"], "alltoall/flex token dispatcher"),
}


def overlapping(**overrides: Any) -> Rendered:
    return rendered("qwen3-30b-a3b", cluster="h100", overlap_moe_a2a=True, **{"tp": 1, "pp": 4, "vpp": 2, **overrides})


OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "muon": (Optimizer(name="muon", tp_mode="distributed", ns_steps=6, nesterov=False, momentum=0.9), {}),
    "whole muon": (Optimizer(name="muon", momentum=0.95), {"zero_stage": 0, "overlap_param_gather": False}),
    "narrow": (Optimizer(exp_avg="bf16", exp_avg_sq="fp8", main_params="fp16"), {}),
    "sgd": (Optimizer(name="sgd", momentum=0.8), {}),
}
# What Megatron-LM resolves of each.
RESOLVED: dict[str, dict[str, Any]] = {
    "muon": {"optimizer": "muon", "muon_num_ns_steps": 6, "muon_tp_mode": "distributed", "muon_nesterov": False,
             "muon_momentum": 0.9, "use_layer_wise_distributed_optimizer": True, "use_distributed_optimizer": False},
    "whole muon": {"optimizer": "muon", "muon_nesterov": True, "use_layer_wise_distributed_optimizer": False},
    "narrow": {"use_precision_aware_optimizer": True, "exp_avg_dtype": "torch.bfloat16",
               "exp_avg_sq_dtype": "torch.uint8", "main_params_dtype": "torch.float16"},
    "sgd": {"optimizer": "sgd", "sgd_momentum": 0.8},
}  # fmt: skip


def optimizing(name: str) -> Plan:
    optimizer, overrides = OPTIMIZERS[name]
    return with_optimizer(sample_plan("llama2-13b", "h100", **overrides), optimizer)


BUILT = ("outside experts", "fp8")  # of PLANS


@cache
def real() -> tuple[dict[str, list[Check]], dict[str, Result]]:
    items = {name: planned(name) for name in PLANS}
    parsed = {name: replaced(items[plan], option, *values) for name, (plan, option, values, _) in EDITS.items()}
    parsed |= {name: replaced(overlapping(), option, *values) for name, (option, values, _) in REFUSED.items()}
    parsed |= {"as planned": overlapping(), "without a pipeline": overlapping(pp=1, vpp=1)}
    parsed |= {name: rendered(optimizing(name)) for name in OPTIMIZERS}
    router = items["router"]
    env = {name: value for name, value in router.env.items() if name != "NCCL_GRAPH_REGISTER"}
    parsed["no NCCL_GRAPH_REGISTER"] = Rendered(router.plan, router.args, env)
    parsed |= {name: item for name, item in items.items() if name not in BUILT}
    return checked({name: items[name] for name in BUILT}, parsed)


@pytest.mark.parametrize("name", PLANS)
def test_megatron_resolves_each_option_to_the_plan(name: str) -> None:
    assert [str(check) for check in real()[0][name] if check.status != "passed"] == []


@pytest.mark.parametrize("name", EDITS)
def test_an_option_that_was_changed_is_found(name: str) -> None:
    field = EDITS[name][3]
    failed = " ".join(check.detail for check in real()[0][name] if check.status == "failed")
    assert f"options.{field}: Megatron resolves" in failed


def test_graphs_beside_expanding_segments_stop_without_the_exported_variable() -> None:
    assert planned("router").env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "NCCL_GRAPH_REGISTER=0" in str(real()[1]["no NCCL_GRAPH_REGISTER"].error)


def test_ranks_are_built_without_the_kernels_and_that_is_said() -> None:
    words = ("DeepEP's kernels for the experts' tokens, CUDA graphs", "8 bits")
    for name, said in zip(BUILT, words, strict=True):
        built = [check for check in real()[0][name] if ": rank " in check.name]
        assert built
        assert all(check.status == "passed" and said in check.detail for check in built), built


def test_megatron_refuses_what_the_search_leaves_out_and_takes_the_rest() -> None:
    found = real()[1]
    for name, (_, _, words) in REFUSED.items():
        assert words in str(found[name].error), f"{name}: {found[name].error}"
    assert [found[name].error for name in ("as planned", "without a pipeline")] == [None, None]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_megatron_resolves_each_optimizer_to_the_plan(name: str) -> None:
    checks, runs = real()
    assert [str(check) for check in checks[name] if check.status == "failed"] == []
    assert {dest: runs[name].args.get(dest) for dest in RESOLVED[name]} == RESOLVED[name]


def test_ranks_of_another_optimizer_are_not_built_and_that_is_said() -> None:
    assert "muon as the job has it: that wants emerging_optimizers" in str(megatron_rank.unbuilt(optimizing("muon")))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_recovery_reads_each_optimizer_as_it_was_rendered(name: str) -> None:
    plan = optimizing(name)
    words = settings(render.arguments(plan), "launch.sh")
    names = Namespace(words, flags(plan.best.target.version))
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    found = run(names, plan.best.configuration.world_size, load_cluster("h100"), supplied)
    assert found.optimizer == plan.job.optimizer
    assert found.configuration.zero_stage == plan.best.configuration.zero_stage
    mine = stepping(usual("megatron", "hopper"), plan.job.optimizer, "bf16")
    theirs = found.configuration.framework
    assert (theirs.bytes.optimizer, theirs.adam_bytes) == (mine.bytes.optimizer, mine.adam_bytes)
    assert theirs.orthogonal == mine.orthogonal


def test_the_old_name_of_a_shared_muon_is_read_and_older_releases_are_not_predicted() -> None:
    plan = optimizing("muon")
    words = ["dist_muon" if word == "muon" else word for word in render.arguments(plan)]
    words = [word for word in words if word not in ("--use-distributed-optimizer", "--overlap-param-gather")]
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    found = run(Namespace(settings(words, "l"), flags("core_v0.19.0")), 64, load_cluster("h100"), supplied)
    assert found.configuration.zero_stage == 1
    for version, kind, said in (
        ("core_v0.17.1", "dist_muon", "Muon is predicted from core_v0.18"),
        ("core_v0.19.0", "soap", "only the states of Adam, SGD and Muon"),
    ):
        other = [kind if word == "dist_muon" else word for word in words]
        with pytest.raises(InputError, match=said):
            run(Namespace(settings(other, "l"), flags(version)), 64, load_cluster("h100"), supplied)

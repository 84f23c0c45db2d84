"""Every option of Megatron-LM is counted, refused, left out or of no matter; what a plan switches on is recovered."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from symconfig.descriptor.training import Optimizer
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover import uncounted
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run, Supplied
from symconfig.formats.megatron import LINKED
from symconfig.formats.megatron_run import DECIDED
from symconfig.frameworks.extras import NAMES, in_effect, on
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.frameworks.megatron.options import optimizer
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from tests.existing.recover.options import names_of
from tests.sample_plans import sample_plan, with_optimizer
from tests.verify.structures import granite_4


def kinds() -> dict[str, frozenset[str]]:
    found = uncounted.destinations()
    indifferent = {why: frozenset(names) for why, names in found["indifferent"].items()}
    others = {kind: frozenset(found[kind]) for kind in ("refused", "undescribed", "without")}
    read = frozenset(found["read"]) | LINKED | DECIDED.difference(*indifferent.values(), others["without"])
    return {"read": read, **others, **indifferent}


@pytest.mark.parametrize("version", versions())
def test_every_destination_of_every_version_is_sorted(version: str) -> None:
    known = frozenset[str]().union(*kinds().values())
    assert {flag.dest for flag in flags(version).flags.values()} <= known


def test_each_is_of_one_kind_and_some_version_has_it() -> None:
    every = {flag.dest for version in versions() for flag in flags(version).flags.values()}
    for one, other in combinations(kinds(), 2):
        assert not kinds()[one] & kinds()[other], (one, other)
    for kind, found in kinds().items():
        assert found <= every, kind


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--fp32-residual-connection", ["--fp32-residual-connection"]),
        ("--disable-jit-fuser", ["--disable-jit-fuser"]),
        ("--no-masked-softmax-fusion --deterministic-mode --defer-embedding-wgrad-compute", []),
        ("--no-fp8-wgrad --num-workers 8", ["--no-fp8-wgrad"]),
        (
            "--mla-down-proj-fusion --moe-shared-expert-overlap",
            ["--mla-down-proj-fusion", "--moe-shared-expert-overlap"],
        ),
        ("--freeze-LM --lora-rank 8 --lora-rank 4", ["--freeze-LM, --lora-rank"]),
        # as by default, which changes nothing
        ("--mlp-chunks-for-training 1 --empty-unused-memory-level 0 --train-iters 10 --save /x", []),
    ],
)
def test_the_prediction_says_what_it_is_made_without(line: str, said: list[str]) -> None:
    found = list(uncounted.left_out(names_of(line)))
    assert [item.value for item in found] == said
    assert all(item.what == "predicted without" and item.why and item.place for item in found)


def test_an_option_of_another_version_is_judged_by_that_one() -> None:
    old = names_of("--no-fp8-wgrad --freeze-all-layers", "core_v0.14.0")
    assert [item.value for item in uncounted.left_out(old)] == ["--no-fp8-wgrad"]
    assert [dest for dest, _ in uncounted.refused(old)] == ["freeze_all_layers"]


@pytest.mark.parametrize(
    ("line", "dests"),
    [
        ("--freeze-all-layers", ["freeze_all_layers"]),
        ("--expert-tensor-parallel-num-weight-shards 2", ["expert_tensor_parallel_num_weight_shards"]),
        ("--use-checkpoint-args --hybrid-context-parallel", ["hybrid_context_parallel", "use_checkpoint_args"]),
        ("--cpu-offloading-num-layers 0 --recompute-activations", []),
    ],
)
def test_what_is_refused_is_so_by_name(line: str, dests: list[str]) -> None:
    assert sorted(dest for dest, _ in uncounted.refused(names_of(line))) == dests


SHARDS = "expert_tensor_parallel_num_weight_shards"


@pytest.mark.parametrize(
    ("line", "experts", "dests"),
    [
        ("--train-iters 10", True, []),
        ("--expert-tensor-parallel-num-weight-shards 1", True, []),
        ("--tensor-model-parallel-size 4 --expert-tensor-parallel-num-weight-shards 4", True, []),
        ("--tensor-model-parallel-size 4 --expert-tensor-parallel-num-weight-shards 8", True, [SHARDS]),
        ("--expert-tensor-parallel-size 2 --expert-tensor-parallel-num-weight-shards 2", True, []),
        ("--expert-tensor-parallel-size 2 --expert-tensor-parallel-num-weight-shards 4", True, [SHARDS]),
        ("--expert-tensor-parallel-size 2 --expert-tensor-parallel-num-weight-shards 4", False, []),
    ],
)
def test_shards_of_experts_are_refused_only_where_they_split_some(line: str, experts: bool, dests: list[str]) -> None:
    """Megatron-LM 0.19 resolves the option to the experts' tensor parallelism, and prints that (arguments.py)."""
    assert [dest for dest, _ in uncounted.refused(names_of(line), experts=experts)] == dests


DENSE = {"model": "llama2-13b", "cluster": "h100", "tp": 4, "pp": 1, "dp": 2, "overlap_pp_p2p": False}
STAGED = DENSE | {"pp": 4, "pipeline_layout": None}
PARTS = {"model": granite_4(), "cluster": "h100", "tp": 1, "pp": 1, "ep": 2, "dp": 2, "overlap_pp_p2p": False}
CHUNKS = {"pp": 4, "vpp": 2, "dp": 8, "global_batch": 64}
EXPERTS = DENSE | {"model": "qwen3-30b-a3b", "tp": 1, "ep": 8, "dp": 8}
FLEX = EXPERTS | {"moe_dispatcher": "flex"}
PLANS: dict[str, dict[str, Any]] = {
    "user buffers": DENSE | {"overlap_tp_comm": True},
    "graphs of layers": DENSE | {"cuda_graphs": "all"},
    "graphs of layers, before modules": DENSE | {"cuda_graphs": "all", "version": "core_v0.15.0"},
    "graphs of the router": EXPERTS | {"cuda_graphs": "router"},
    "graphs outside experts": EXPERTS | {"cuda_graphs": "outside experts", "version": "core_v0.17.1"},
    "one graph": DENSE | {"cuda_graphs": "full iteration"},
    "one graph, before its own kind": DENSE | {"cuda_graphs": "full iteration", "version": "core_v0.16.1"},
    "one graph, before modules": DENSE | {"cuda_graphs": "full iteration", "version": "core_v0.15.0"},
    "one graph with experts": FLEX
    | {"moe_flex_backend": "hybridep", "cuda_graphs": "full iteration", "expert_capacity": 1.3, "paged_stash": True},
    "weights in fp8": DENSE | {"precision": "fp8", "fp8_param_gather": True},
    "weights in mxfp8": DENSE | {"cluster": "b200", "precision": "mxfp8", "fp8_param_gather": True},
    "fused loss": DENSE | {"fused_loss": True, "version": "core_v0.17.1"},
    "gradients in bf16": DENSE | {"grad_bytes": 2},
    "weight shards": DENSE | {"gtp": 2},
    "deepep": FLEX | {"moe_flex_backend": "deepep"},
    "deepep, before backends": FLEX | {"moe_flex_backend": "deepep", "version": "core_v0.14.0"},
    "hybridep": FLEX | {"moe_flex_backend": "hybridep"},
    "all-to-all": EXPERTS,
    "FSDP of gradients": DENSE | {"zero_stage": 2},
    "FSDP of weights": DENSE | {"zero_stage": 3},
    "FSDP, before its new name": DENSE | {"zero_stage": 2, "version": "core_v0.13.0"},
    "FSDP, by its new name": DENSE | {"zero_stage": 3, "version": "core_v0.14.0"},
    "no ZeRO": DENSE | {"zero_stage": 0, "overlap_param_gather": False},
    "nothing overlapped": DENSE | {"overlap_grad_reduce": False, "overlap_param_gather": False},
    "offloaded optimizer": DENSE | {"optimizer_offload": 0.25},
    "offloaded activations": DENSE | {"activation_offload": True},
    "fp16": DENSE | {"precision": "fp16", "cluster": "v100-16gb", "grad_bytes": 4},
    "nvfp4": DENSE | {"cluster": "b200", "precision": "nvfp4"},
    "full recompute": DENSE | {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "recompute of layers in two parts": PARTS
    | {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
    "recompute of the first layers": DENSE | {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
    "recomputed modules": EXPERTS | {"recompute": "selective", "recompute_modules": ("core_attn", "moe_act")},
    "Ulysses": DENSE | {"cp": 2, "cp_comm": "a2a"},
    "expert tensor": EXPERTS | {"ep": 4, "etp": 2, "tp": 2, "dp": 4},
    "chunks": DENSE
    | {"pp": 4, "vpp": 2, "dp": 8, "microbatch_group_size": 8, "global_batch": 64, "overlap_pp_p2p": True},
    "counts of the ends": STAGED | {"first_stage_layers": 12, "last_stage_layers": 8},
    "ends as layers": STAGED | {"pp": 6, "account_for_embedding": True, "account_for_loss": True},
    "layout": STAGED | {"pipeline_layout": "Et*9|t*11|t*11|t*9L"},
}


def recovered(plan: Plan) -> Run:
    names = Namespace(settings(render.arguments(plan), "launch.sh"), flags(plan.best.target.version))
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    return run(names, plan.best.configuration.world_size, plan.cluster, supplied)


@pytest.mark.parametrize("name", PLANS)
def test_rendered_options_are_recovered(name: str) -> None:
    plan = sample_plan(**PLANS[name])
    found = recovered(plan)
    assert found.configuration.plain == in_effect(plan.best.configuration)
    # What it saves, and kernels that it fuses, are not counted.
    unpriced = {"--reuse-grad-buf-for-mxfp8-param-ag", "--use-transformer-engine-op-fuser"}
    assert {item.value for item in found.assumed} <= unpriced


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(name="muon", momentum=0.9, nesterov=False, ns_steps=4, scale_mode="unit_rms_norm"),
        Optimizer(name="sgd", momentum=0.8),
        Optimizer(main_params="fp16", exp_avg="bf16", exp_avg_sq="bf16"),
    ],
    ids=str,
)
def test_an_optimizer_is_recovered(optimizer: Optimizer) -> None:
    assert recovered(with_optimizer(sample_plan(**DENSE), optimizer)).optimizer == optimizer


@pytest.mark.parametrize(("version", "mode"), [("core_v0.19.0", "blockwise"), ("main", "duplicated")])
def test_muon_shares_a_matrix_as_its_release_does_by_default(version: str, mode: str) -> None:
    found = optimizer(Namespace(settings(["--optimizer", "muon"], "launch.sh"), flags(version)))
    assert found is not None
    assert found.tp_mode == mode


def test_every_option_has_a_plan() -> None:
    used = {name for given in PLANS.values() for name in on(in_effect(sample_plan(**given).best.configuration))}
    assert used == {*NAMES} - {
        "overlap_moe_a2a",
        "instances",
        "fp8_attention",
    }  # of FSDP and Megatron-Bridge alone: tests/existing has its own

"""What a plan predicts that a rank holds, against the rank that Megatron itself builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from symconfig.errors import InputError, SymconfigError
from symconfig.plans.plan import Stage
from symconfig.verify import megatron_rank, megatron_session
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import chunk_parameters, coordinates, stage_of
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, source


@dataclass(frozen=True, slots=True)
class Case:
    """A sample plan and one of its ranks; a negative rank counts from the end."""

    model: str
    rank: int
    plan: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)  # fields of the model


def _few_experts(model: str) -> dict[str, Any]:
    """Megatron-FSDP compares every parameter with every other one."""
    experts = sample_model(model).experts
    return {"num_hidden_layers": 4, "experts": {**experts.model_dump(mode="json", by_alias=True), "num_experts": 16}}


_ALONE = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1}
_FEW = {"num_hidden_layers": 4}
_TIED = {"tie_word_embeddings": True}
CASES = {
    "dense, first": Case("llama2-13b", 0),
    "dense, without the distributed optimizer": Case("llama2-13b", 5, {"zero_stage": 0, "overlap_param_gather": False}),
    "gradients in 16 bits": Case("llama2-13b", 3, {"grad_bytes": 2}),
    "a quarter of the optimizer in host memory": Case("mixtral-8x7b", 5, {"optimizer_offload": 0.25}),
    "no overlap": Case("llama2-13b", 0, {"overlap_grad_reduce": False, "overlap_param_gather": False}),
    "grouped queries, virtual stages, cp": Case("llama3.1-70b", 9),
    "grouped queries, last": Case("llama3.1-70b", -1),
    "biases of queries, keys and values": Case("qwen2.5-7b", 0),
    "norms of queries and keys": Case("qwen3-30b-a3b", -1),
    "ep and etp": Case("mixtral-8x7b", 5, {"tp": 2, "pp": 2, "ep": 4, "etp": 2, "dp": 8}),
    "etp alone": Case("mixtral-8x7b", 3, {"tp": 2, "pp": 1, "ep": 1, "etp": 1, "dp": 4}),
    "latent attention, dense layers first": Case("deepseek-v3", 0),
    "latent attention, cp": Case("deepseek-v3", 0, {"cp": 2, "tp": 1, "pp": 4, "vpp": 1, "ep": 8, "dp": 4}),
    "prediction of further tokens": Case("deepseek-v3", -1),
    "sinks and biases of experts": Case("gpt-oss-120b", 33),
    # Not of latent attention: its projections down are column-parallel among Megatron's own layers, and so in shards.
    "weight shards, cp": Case("llama3.1-70b", -1, {"dp": 4, "gtp": 2}),
    "weight shards, one stage": Case("llama2-13b", 5, {"tp": 2, "pp": 1, "vpp": 1, "dp": 8, "gtp": 8}),
    "weight shards beside experts": Case("mixtral-8x7b", 5, {"tp": 2, "pp": 2, "ep": 4, "etp": 2, "dp": 8, "gtp": 4}),
    "learned positions and all biases": Case("gpt3-175b", 0),
    "Megatron-FSDP, ZeRO 2": Case("gpt3-175b", 1, {**_ALONE, "dp": 24, "zero_stage": 2}, _FEW),
    "Megatron-FSDP, ZeRO 3": Case("llama3.1-70b", -1, {**_ALONE, "dp": 24, "zero_stage": 3}, _FEW),
    "Megatron-FSDP, experts": Case("mixtral-8x7b", 5, {**_ALONE, "dp": 48, "zero_stage": 3}, _FEW),
    "Megatron-FSDP, experts over ranks": Case("mixtral-8x7b", 5, {**_ALONE, "dp": 48, "ep": 8, "zero_stage": 3}, _FEW),
    "Megatron-FSDP, tp and cp": Case("llama3.1-70b", 9, {**_ALONE, "tp": 2, "cp": 2, "dp": 6, "zero_stage": 3}, _FEW),
    "Megatron-FSDP, prediction of further tokens": Case(
        "deepseek-v3", 3, {**_ALONE, "dp": 8, "zero_stage": 3}, _few_experts("deepseek-v3")
    ),
    "tied, one stage": Case("qwen2.5-7b", 1, {"pp": 1, "dp": 4}, _TIED),
    "tied, first": Case("qwen2.5-7b", 0, {"pp": 2, "vpp": 2, "dp": 4}, _TIED),
    "tied, last": Case("qwen2.5-7b", -1, {"pp": 2, "vpp": 2, "dp": 4}, _TIED),
}


def plan_of(case: Case) -> Any:
    return sample_plan(sample_model(case.model, **case.changed), **case.plan)


@pytest.fixture(scope="module")
def real() -> dict[str, Result]:
    """Every case's rank as Megatron builds it, on the meta device."""
    found, jobs = source(), []
    for name, case in CASES.items():
        plan = plan_of(case)
        item = rendered(plan)
        job = megatron_session.job(name, plan, item.args, item.env, found)
        jobs.append(replace(job, rank=case.rank % plan.best.configuration.world_size, task="build"))
    return megatron_session.run(found, jobs, LIMIT_S)


@pytest.mark.parametrize("name", CASES)
def test_a_rank_holds_what_megatron_builds(name: str, real: dict[str, Result]) -> None:
    plan, rank = plan_of(CASES[name]), CASES[name].rank
    world = plan.best.configuration.world_size
    found = megatron_rank.check(plan, Job(name, (), world, rank=rank % world), real[name], "Megatron", "args")
    assert found.status == "passed", found.detail
    assert [row.ours == row.real for row in found.compared if row.unit == "count"] == [True]
    loose = plan.best.configuration.zero_stage > 1  # Megatron-FSDP's shards have whole rows
    assert all(abs(row.difference) < (0.005 if loose else 1e-4) for row in found.compared)


def test_the_final_norm_moved_behind_the_last_layer() -> None:
    """Four layers are on the first stage, multi-token prediction, which has an embedding, and the loss on the last."""
    for version, norms in (("core_v0.15.0", [False, True]), ("core_v0.19.0", [True, False])):
        model = sample_model("deepseek-v3", num_hidden_layers=4)
        plan = sample_plan(model, tp=2, pp=2, dp=8, ep=4, version=version, pipeline_layout="Etttt|mL")
        kinds = (("embedding", *model.layer_kinds), ("mtp", "head"))
        stages = tuple(Stage((chunk,), "none", 0.0) for chunk in kinds)
        plan = replace(plan, best=replace(plan.best, stages=stages))
        names = [[item.name for chunk in chunk_parameters(plan, stage) for item in chunk] for stage in (0, 1)]
        assert ["final_norm.weight" in each for each in names] == norms
        assert ["word_embedding.weight" in each for each in names] == [True, True]
        assert ["lm_head.weight" in each for each in names] == [False, True]


@pytest.mark.parametrize("gtp", [1, 4])
def test_all_ranks_have_places_of_their_own(gtp: int) -> None:
    parallel = sample_plan("mixtral-8x7b", tp=2, pp=2, ep=4, etp=2, dp=8, gtp=gtp).best.configuration
    every = [coordinates(parallel, rank) for rank in range(parallel.world_size)]
    assert len({tuple(each[axis] for axis in ("tp", "cp", "dp", "pp")) for each in every}) == parallel.world_size
    assert [each["pp"] for each in every] == [stage_of(parallel, rank) for rank in range(parallel.world_size)]
    with pytest.raises(InputError, match=r"no such rank \(got 32, need 0 to 31\)"):
        coordinates(parallel, 32)


@pytest.mark.parametrize(
    ("model", "degrees", "words"),
    [("mixtral-8x7b", {"ep": 16, "dp": 64}, "8 experts do not divide over ep 16"),
     ("llama2-13b", {"tp": 3}, "cannot be cut into equal parts")],
)  # fmt: skip
def test_degrees_that_do_not_divide(model: str, degrees: dict[str, int], words: str) -> None:
    with pytest.raises(SymconfigError, match=words):
        chunk_parameters(sample_plan(model, **degrees), 0)

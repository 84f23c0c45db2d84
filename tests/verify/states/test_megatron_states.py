"""What a rank holds, against the rank that Megatron itself builds: every parameter in its order, buffers, shards."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_model
from symconfig.errors import InputError, SymconfigError
from symconfig.verify import megatron_session
from symconfig.verify.megatron_session import Result
from symconfig.verify.states.buffers import bucket_size
from symconfig.verify.states.megatron import RankStates, offloaded, rank_states
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, source
from tests.verify.states.megatron_worker_support import Ask, worker


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
    assert experts is not None
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
        jobs.append(replace(job, rank=case.rank % plan.best.parallel.world_size, task="build"))
    return megatron_session.run(found, jobs, LIMIT_S)


@pytest.fixture(params=CASES, ids=str)
def pair(request: pytest.FixtureRequest, real: dict[str, Result]) -> tuple[RankStates, Mapping[str, Any]]:
    result, case = real[request.param], CASES[request.param]
    assert result.ok, result.error
    assert result.rank is not None
    plan = plan_of(case)
    return rank_states(plan, case.rank % plan.best.parallel.world_size, "local"), result.rank


def test_a_rank_holds_what_megatron_builds(pair: tuple[RankStates, Mapping[str, Any]]) -> None:
    ours, theirs = pair
    assert ours.coordinates == theirs["coordinates"]
    for chunk, real_chunk in zip(ours.chunks, theirs["chunks"], strict=True):
        assert (chunk.layers, chunk.mtp) == (real_chunk["layers"], real_chunk["mtp"])
        assert [(p.elements, p.expert, p.trainable) for p in chunk.parameters] == [
            tuple(p[1:]) for p in real_chunk["parameters"]
        ]
    names = ("chunk", "expert", "element_bytes", "elements", "unpadded", "buckets")
    assert [[getattr(buffer, name) for name in names] for buffer in ours.buffers] == [
        [buffer[name] for name in names] for buffer in theirs["buffers"]
    ]
    for name in ("parameters", "gradient_buffer_bytes", "optimizer_shard_bytes", "optimizer_host_bytes"):
        assert getattr(ours, name) == theirs[name]


@pytest.fixture(scope="module")
def megatron() -> Iterator[Ask]:
    with worker(source()) as ask:
        yield ask


shards = st.lists(st.integers(1, 10_000), max_size=12)


@settings(deadline=None, max_examples=40)
@given(matrices=shards, vectors=shards, fraction=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]))
def test_the_optimizer_offloads_what_megatron_does(
    megatron: Ask, matrices: list[int], vectors: list[int], fraction: float
) -> None:
    theirs = megatron("offloaded", groups=[matrices, vectors], fraction=fraction)
    assert offloaded([*matrices, *vectors], fraction) == theirs


def test_a_share_of_the_optimizer_state_waits_in_host_memory() -> None:
    here, half, away = (rank_states(sample_plan(optimizer_offload=share), 3) for share in (0.0, 0.5, 1.0))
    assert here.optimizer_shard_bytes == half.optimizer_shard_bytes == away.optimizer_host_bytes
    assert here.optimizer_host_bytes == 0
    assert here.optimizer_shard_bytes / 2 <= half.optimizer_host_bytes < here.optimizer_shard_bytes


@pytest.mark.parametrize("case", [CASES["gradients in 16 bits"], CASES["ep and etp"], CASES["tied, last"]], ids=str)
def test_all_ranks_together_own_every_parameter_once(case: Case) -> None:
    plan = plan_of(case)
    states = [rank_states(plan, rank) for rank in range(plan.best.parallel.world_size)]
    mine = [state for state in states if state.coordinates["pp"] == 0 and state.coordinates["tp"] == 0]
    for index, buffer in enumerate(mine[0].buffers):
        if not buffer.expert:
            owned = sum(state.buffers[index].owned for state in mine)
            chunk = mine[0].chunks[buffer.chunk]
            assert owned == sum(p.elements for p in chunk.parameters if not p.expert)


def test_layers_of_either_implementation_hold_the_same() -> None:
    """Only the order differs, and so where buckets end."""
    for name in ("llama2-13b", "deepseek-v3", "gpt-oss-120b"):
        plan = sample_plan(name)
        local, engine = rank_states(plan, 0, "local"), rank_states(plan, 0, "transformer_engine")
        assert local.parameters == engine.parameters
        for first, second in zip(local.chunks, engine.chunks, strict=True):
            assert first.parameters != second.parameters
            assert sorted(p.name for p in first.parameters) == sorted(p.name for p in second.parameters)
        assert abs(local.gradient_buffer_bytes - engine.gradient_buffer_bytes) <= 1e-4 * local.gradient_buffer_bytes


def test_the_first_stage_alone_has_buckets() -> None:
    plan = sample_plan("llama3.1-70b")
    first, last = rank_states(plan, 0), rank_states(plan, plan.best.parallel.world_size - 1)
    size = bucket_size(plan.best.parallel.dp * plan.best.parallel.cp)
    assert first.buffers[0].buckets > first.buffers[0].elements // (2 * size) > 1
    assert {buffer.buckets for buffer in (*first.buffers[1:], *last.buffers)} == {1}


def test_a_rank_among_many_takes_no_more_work() -> None:
    calls = {}
    for dp in (2, 128):
        plan = sample_plan(load_model("llama3.1-405b"), tp=8, pp=16, vpp=1, cp=1, dp=dp)
        rank_states(plan, 0)  # derives the blocks, which are kept
        with cProfile.Profile() as profile:
            rank_states(plan, plan.best.parallel.world_size - 1)
        calls[dp] = sum(entry.callcount for entry in profile.getstats())
    assert calls[128] < 1.1 * calls[2]


def test_a_plan_that_is_rendered_for_the_other_framework_has_that_ones_ranks() -> None:
    degrees: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 1}
    own = sample_plan("qwen2.5-7b", "h100", **degrees)
    other = sample_plan("qwen2.5-7b", "h100", backend="deepspeed", **degrees)
    told = replace(other, best=replace(other.best, target=own.best.target))
    assert rank_states(told, 0, "local") == rank_states(own, 0, "local")


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"no such rank \(got 64, need 0 to 63\)"):
        rank_states(sample_plan(), 64)


@pytest.mark.parametrize(
    ("model", "degrees", "words"),
    [("mixtral-8x7b", {"ep": 16, "dp": 64}, "8 experts do not divide over ep 16"),
     ("mixtral-8x7b", {"ep": 3, "dp": 8}, "ep x etp: does not divide the ranks of a stage .got 3 x 1"),
     ("llama2-13b", {"tp": 3}, "o_proj.weight cannot be cut into equal parts")],
)  # fmt: skip
def test_degrees_that_do_not_divide(model: str, degrees: dict[str, int], words: str) -> None:
    with pytest.raises(SymconfigError, match=words):
        rank_states(sample_plan(model, **degrees), 0)


def test_older_versions_put_experts_where_they_did() -> None:
    """Without ep: in the buffer of all others until 0.18, and in Megatron-FSDP's groups of all others until 0.15."""
    alone: dict[str, Any] = {"tp": 2, "pp": 1, "ep": 1, "etp": 1, "dp": 4}
    old, new = (
        rank_states(sample_plan("mixtral-8x7b", version=version, **alone), 0)
        for version in ("core_v0.18.2", "core_v0.19.0")
    )
    assert [buffer.expert for buffer in old.buffers] == [False]
    assert [buffer.expert for buffer in new.buffers] == [False, True]
    sharded: dict[str, Any] = {**_ALONE, "dp": 48, "zero_stage": 3}
    of = {
        version: rank_states(sample_plan("mixtral-8x7b", version=version, **sharded), 5)
        for version in ("core_v0.13.0", "core_v0.15.0", "core_v0.16.1")
    }
    assert len(of["core_v0.13.0"].buffers) == len(of["core_v0.15.0"].buffers) == 2 + 32
    assert len(of["core_v0.16.1"].buffers) == 2 + 2 * 32
    assert of["core_v0.13.0"].gradient_buffer_bytes < of["core_v0.15.0"].gradient_buffer_bytes  # no whole rows yet

"""Ranks as Megatron itself builds them: what they hold is what a plan predicts, and what is not the plan's is named."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError, SymconfigError
from symconfig.graph.model import sequence
from symconfig.plans.plan import Plan, Stage
from symconfig.render import render
from symconfig.render.files import write
from symconfig.solve.split import laid_out
from symconfig.verify import checks, megatron, megatron_rank, megatron_session, megatron_source
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import Parameter, chunk_parameters, coordinates, stage_of
from tests.cli.support import Run
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.sampled import sampled
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source

pytestmark = pytest.mark.usefixtures("warm_megatron")

# Plans whose ranks must be Megatron's to the last parameter.
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp16": ("llama2-13b", {"precision": "fp16", "pp": 1}),
    "virtual stages and cp": ("llama3.1-70b", {"pp": 2}),
    "experts": ("mixtral-8x7b", {"pp": 2, "etp": 2, "ep": 4, "activation_offload": True}),
    "shared key/value heads": ("qwen3-30b-a3b", {"tp": 8, "pp": 2, "ep": 8, "dp": 8}),
    "layout": ("llama2-13b", {"pp": 4, "pipeline_layout": "Et*9|t*11|t*11|t*9L"}),
    "counts": ("llama2-13b", {"pp": 4, "pipeline_layout": None, "first_stage_layers": 12, "last_stage_layers": 8}),
    "ends alone, an empty chunk": ("llama2-13b", {"pp": 2, "vpp": 3, "pipeline_layout": "E|t*20||t*19|t|L"}),
    "split": (
        "llama2-13b",
        {"pp": 6, "account_for_embedding": True, "account_for_loss": True, "pipeline_layout": None},
    ),
    "a stage of nothing": ("llama2-13b", {"pp": 4, "pipeline_layout": "Et*20||t*20|L"}),
    "MTP alone": ("deepseek-v3", {"pp": 4, "ep": 8, "pipeline_layout": "Et*20|t*20|t*21m|L"}),
    "MLA, MTP, dense first, offloaded": ("deepseek-v3", {"pp": 2, "optimizer_offload": 0.5}),
}
# The chunks, where the sample's equal shares are not those of the options.
CHUNKS = {
    "layout": "Et*9|t*11|t*11|t*9L", "counts": "Et*12|t*10|t*10|t*8L",
    "ends alone, an empty chunk": "E|t*20||t*19|t|L", "MTP alone": "Et*20|t*20|t*21m|L",
    "a stage of nothing": "Et*20||t*20|L", "split": "Et*6|t*7|t*7|t*7|t*7|t*6L",
}  # fmt: skip
BOUNDS = (30.0, 2 * 2**30)  # seconds and bytes of a rank; seconds of a processor, which others' work does not lengthen


def _item(name: str) -> Rendered:
    model, overrides = PLANS[name]
    plan = sample_plan(model, **overrides)
    if name not in CHUNKS:
        return rendered(plan)
    split = laid_out(sequence(plan.model), plan.best.configuration.pp, CHUNKS[name])
    stages = tuple(replace(stage, chunks=split.stage(place)) for place, stage in enumerate(plan.best.stages))
    return rendered(replace(plan, best=replace(plan.best, stages=stages)))


WRONG: dict[str, tuple[Callable[[], Rendered], str]] = {
    "lost layers": (lambda: replaced(_item("virtual stages and cp"), "--num-layers", "60"),
                    "the stages do not hold every layer once"),
    "experts that do not divide": (lambda: replaced(_item("experts"), "--num-experts", "10"),
        "Number of experts should be a multiple of expert model parallel_size"),
    "an empty stage": (lambda: replaced(_item("layout"), "--pipeline-model-parallel-layout", "Et*20|t*20||L"),
                       "stages"),
    "a misspelt flag": (lambda: replaced(_item("experts"), "--moe-grouped-gemm", "--moe-grouped-gem"),
                        "unrecognized arguments: --moe-grouped-gem"),
    "more experts": (lambda: replaced(_item("experts"), "--num-experts", "16"), "linear_fc1.weight (58,720,256)"),
    "another width": (lambda: replaced(_item("fp16"), "--ffn-hidden-size", "13312"),
                      "it has decoder.layers.0.mlp.linear_fc1.weight (34,078,720)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def real() -> dict[str, list[Check]]:
    """All that Megatron builds here, in one process, which takes seconds to import it."""
    items = {name: _item(name) for name in PLANS} | {name: make() for name, (make, _) in WRONG.items()}
    return megatron.check_many(items, source(), LIMIT_S, build=True)


@pytest.mark.parametrize("name", PLANS)
def test_ranks_are_as_planned(name: str, real: dict[str, list[Check]]) -> None:
    ranks = [check for check in real[name] if check.compared]
    assert len(ranks) >= 2
    assert [str(check) for check in real[name] if check.status != "passed"] == []
    for check in ranks:
        assert all(abs(pair.difference) < 1e-4 for pair in check.compared)
        assert [pair.what for pair in check.compared] == ["parameters", "gradient buffers", "optimizer shard"]


@pytest.mark.parametrize("name", WRONG)
def test_what_was_edited_fails_with_the_file_the_flag_and_megatrons_own_words(
    name: str, real: dict[str, list[Check]]
) -> None:
    said = " ".join(check.detail for check in real[name] if check.status == "failed")
    assert "megatron_args.txt" in said
    assert WRONG[name][1] in said
    assert not any(check.compared and check.status == "passed" for check in real[name])


COLD = megatron_session.COMMAND


def _used_s() -> float:
    """Of all subprocesses that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_rank_of_thousands_takes_seconds_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_session, "COMMAND", COLD)
    item = rendered(sample_plan("llama3.1-70b", "h100", tp=8, pp=16, vpp=5, cp=1, dp=128))
    assert item.plan.best.configuration.world_size == 16384
    jobs = megatron_rank.build_jobs(
        megatron.megatron_session.job("", item.plan, item.args, item.env, source()), item.plan
    )
    before_s = _used_s()
    result = megatron.megatron_session.run(source(), jobs[-1:], LIMIT_S)[jobs[-1].id]
    assert result.ok, result.error
    assert 0 < _used_s() - before_s < BOUNDS[0]
    assert result.rank["max_rss_bytes"] < BOUNDS[1]


def _plan_of(*kinds: tuple[str, ...], dp: int = 8) -> Plan:
    plan = sample_plan(pp=len(kinds), tp=1, dp=dp)
    return replace(plan, best=replace(plan.best, stages=tuple(Stage((kind,), "none", 1e9) for kind in kinds)))


def test_the_first_a_middle_and_the_last_stage_are_built_and_every_further_kind_each_at_another_place() -> None:
    first, plain, last = ("embedding", "dense"), ("dense",), ("dense", "head")
    assert megatron_rank.ranks(_plan_of(first, plain, plain, plain, plain, last)) == (0, 10, 28, 47)
    assert megatron_rank.ranks(_plan_of((*first, "head"))) == (0, 7)
    assert megatron_rank.ranks(_plan_of((*first, "head"), dp=1)) == (0,)
    kinds = [first, plain, ("moe",), ("moe", "moe"), ("moe",), last]
    found = megatron_rank.ranks(_plan_of(*kinds))
    assert [rank // 8 for rank in found] == [0, 1, 2, 3, 5]
    assert len({rank % 8 for rank in found}) == len(found)


def test_a_built_rank_names_the_kernels_that_it_lacks() -> None:
    options = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep", "cuda_graphs": "attn"}
    plan = sample_plan("mixtral-8x7b", tp=1, pp=1, dp=8, ep=8, **options)
    said = megatron_rank._passed(plan, {"coordinates": {}, "chunks": [], "seconds": 1.0, "max_rss_bytes": 1e9})
    assert said.endswith(", without DeepEP's kernels for the experts' tokens, CUDA graphs")


def test_parameters_that_differ_are_named() -> None:
    ours = [Parameter("a.weight", 8, True), Parameter("b.weight", 4, True)]
    real = [("m.a.weight", 8, True), ("m.b.weight", 4, True)]
    assert megatron_rank.parameters(ours, real) == megatron_rank.parameters(ours, real[::-1]) == ""
    assert megatron_rank.parameters(ours, [*real, ("m.c.bias", 2, False)]) == "it has m.c.bias (2, frozen)"
    assert megatron_rank.parameters(ours, real[:1]) == "the plan has b.weight (4)"
    assert megatron_rank.parameters(ours, [real[0], ("m.b.weight", 4, False)]) == (
        "it has m.b.weight (4, frozen); the plan has b.weight (4)"
    )
    many = megatron_rank.parameters([], [("w", 1, True)] * 9)
    assert many == "it has w (1) and 8 more"


def test_a_rank_that_crashes_or_hangs_fails_with_the_last_lines() -> None:
    plan = sample_plan()
    job = Job("rank 0", (), plan.best.configuration.world_size, task="build")
    result = Result("rank 0", crash="did not end within 2 s", last_lines=("building GPT model ...",))
    found = megatron_rank.check(plan, job, result, "Megatron 0.19.2", "megatron_args.txt")
    assert found.status == "failed"
    assert "did not end within 2 s; its last lines: building GPT model ..." in found.detail


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(render(sample_plan(), "megatron"), tmp_path / "out")
    return tmp_path / "out"


def test_every_rank_of_a_folder_is_said_while_it_is_built_and_has_its_numbers(folder: Path) -> None:
    source()
    heard: list[str] = []
    found = checks.verify(folder, progress=heard.append, build=True)
    assert [str(check) for check in found if check.status != "passed"] == []
    assert [check.name for check in found if check.compared] == [
        "Megatron 0.19.2: rank 0, stage 0",
        "Megatron 0.19.2: rank 63, stage 1",
    ]
    assert "Megatron: rank 63 is done" in heard


def test_without_megatron_asking_for_a_build_is_bad_input_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(megatron_source, "find", lambda named=None: None)
    outcome = run("verify", folder, "--build")
    assert outcome.code == 2
    assert "--build" in outcome.err
    assert "python -m symconfig.verify.megatron_source" in outcome.err


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
    "dense, without the distributed optimizer": Case("llama2-13b", 5, {"zero_stage": 0, "overlap_param_gather": False}),
    "gradients in 16 bits": Case("llama2-13b", 3, {"grad_bytes": 2}),
    "a quarter of the optimizer in host memory": Case("mixtral-8x7b", 5, {"optimizer_offload": 0.25}),
    "no overlap": Case("llama2-13b", 0, {"overlap_grad_reduce": False, "overlap_param_gather": False}),
    "grouped queries, last": Case("llama3.1-70b", -1),
    "biases of queries, keys and values": Case("qwen2.5-7b", 0),
    "norms of queries and keys": Case("qwen3-30b-a3b", -1),
    "etp alone": Case("mixtral-8x7b", 3, {"tp": 2, "pp": 1, "ep": 1, "etp": 1, "dp": 4}),
    "latent attention, cp": Case("deepseek-v3", 0, {"cp": 2, "tp": 1, "pp": 4, "vpp": 1, "ep": 8, "dp": 4}),
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
BUILT = sampled(CASES, 2)


def plan_of(case: Case) -> Any:
    return sample_plan(sample_model(case.model, **case.changed), **case.plan)


@pytest.fixture(scope="module")
def built() -> dict[str, Result]:
    """Every case's rank as Megatron builds it, on the meta device."""
    found, jobs = source(), []
    for name in BUILT:
        case = CASES[name]
        plan = plan_of(case)
        item = rendered(plan)
        job = megatron_session.job(name, plan, item.args, item.env, found)
        jobs.append(replace(job, rank=case.rank % plan.best.configuration.world_size, task="build"))
    return megatron_session.run(found, jobs, LIMIT_S)


@pytest.mark.parametrize("name", BUILT)
def test_a_rank_holds_what_megatron_builds(name: str, built: dict[str, Result]) -> None:
    plan, rank = plan_of(CASES[name]), CASES[name].rank
    world = plan.best.configuration.world_size
    found = megatron_rank.check(plan, Job(name, (), world, rank=rank % world), built[name], "Megatron", "args")
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

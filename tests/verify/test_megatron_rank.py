"""`verify --build`: ranks as Megatron builds them, and what is said where they, or the files, are not the plan's."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.graph.model import sequence
from symconfig.plans.plan import Plan, Stage
from symconfig.render import render
from symconfig.render.files import write
from symconfig.solve.split import laid_out
from symconfig.verify import checks, megatron, megatron_rank, megatron_source
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.rank_states import Parameter
from tests.cli.support import Run
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source

# Plans whose ranks must be Megatron's to the last parameter; further ones are in test_rank_states.py.
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


def _used_s() -> float:
    """Of all subprocesses that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_rank_of_thousands_takes_seconds_and_little_memory() -> None:
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

"""symconfig's kept bytes beside Megatron's: what can be compared, and what counts as a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError
from symconfig.render import render
from symconfig.render.files import write
from symconfig.report.verify import checked as blocks
from symconfig.verify import checks, megatron, megatron_rank
from symconfig.verify.checks import Check, Compared, Options
from symconfig.verify.megatron_session import Job, Result
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import rendered, source


@pytest.mark.parametrize("precision", ["fp8", "nvfp4"])
def test_low_precision_cannot_be_compared(precision: str) -> None:
    plan = sample_plan("llama2-13b", "h100", precision=precision)
    assert megatron_rank.trace_jobs(Job("", (), 64), plan) == []
    (check,) = megatron_rank.trace_checks(plan, [], {}, "Megatron", "args")
    assert (check.status, check.detail) == ("skipped", f"Megatron's own layers have no {precision}")


def test_a_dispatcher_without_a_stand_in_is_not_traced() -> None:
    plan = sample_plan("mixtral-8x7b", moe_dispatcher="flex")
    (check,) = megatron_rank.trace_checks(plan, [], {}, "Megatron", "args")
    assert check.status == "skipped"
    assert check.detail.endswith("for alltoall only, not for flex")


def test_a_crash_of_the_trace_is_a_failed_check() -> None:
    plan = sample_plan()
    (job, *_) = megatron_rank.trace_jobs(Job("", (), 64), plan)
    (check,) = megatron_rank.trace_checks(
        plan, [job], {job.id: Result(job.id, crash="ended with status 9")}, "it", "args"
    )
    assert check.status == "failed"
    assert "ended with status 9" in check.detail


@pytest.fixture(scope="module")
def traced() -> dict[str, list[Check]]:
    """Rendered arguments, their ranks traced and compared: a plan with virtual stages and block recompute, and one
    that recomputes what its arguments do not."""
    model = sample_model("llama2-13b", num_hidden_layers=8)
    whole = rendered(
        sample_plan(model, tp=2, pp=2, vpp=2, dp=2, recompute="full", recompute_method="block", recompute_layers=1)
    )
    item = rendered(sample_plan(model, tp=2, pp=1, dp=2))
    options = replace(item.plan.best.configuration, recompute="selective", recompute_modules=("core_attn",))
    wrong = replace(item, plan=replace(item.plan, best=replace(item.plan.best, configuration=options)))
    found = megatron.check_many({"whole": whole, "wrong": wrong}, source(), trace=True)
    return {name: [check for check in some if "backward" in check.name] for name, some in found.items()}


def test_the_whole_way(traced: dict[str, list[Check]]) -> None:
    assert [check.status for check in traced["whole"]] == ["passed"] * 2
    assert all(abs(row.difference) < 0.002 for check in traced["whole"] for row in check.compared)


def test_a_plan_that_recomputes_what_the_arguments_do_not_fails(traced: dict[str, list[Check]]) -> None:
    assert traced["wrong"][0].status == "failed"
    assert "MiB of one microbatch of every chunk, symconfig has" in traced["wrong"][0].detail


def test_the_table_tells_bytes_apart_from_counts() -> None:
    check = Check(
        "it",
        "passed",
        "",
        0.0,
        (
            Compared("x", 101, 100, "bytes"),
            Compared("y", 3, 2, "count"),
            Compared("z", 1, 1, "bytes"),
            Compared("new", 1, 0, "bytes"),
        ),
    )
    grid: Any = blocks(Path("DIR"), [check])[1]
    assert [row[-1] for row in grid.rows] == ["+1 (+1.00 %)", "+1", "0", "+1"]


def test_tracing_implies_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    class Framework:
        def applies(self, plan: Any) -> bool:
            return True

        def checks(self, folder: Path, plan: Any, options: Options) -> list[Check]:
            asked.append(options)
            return []

    monkeypatch.setattr(checks, "frameworks", lambda: {"it": Framework()})
    write(render(sample_plan(), "megatron"), tmp_path / "out")
    checks.verify(tmp_path / "out", trace=True)
    assert [(options.build, options.trace) for options in asked] == [(True, True)]


def test_modules_of_deepspeed_are_not_traced(tmp_path: Path) -> None:
    write(render(sample_plan("qwen2.5-7b", "h100", backend="deepspeed"), "deepspeed"), tmp_path / "out")
    with pytest.raises(InputError, match="--trace: runs the modules of Megatron-LM only"):
        checks.verify(tmp_path / "out", trace=True)

"""The ranked table: what it says of a plan, and that it says it the same way every time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.plans.plan import Candidate, Opened, Plan, Stage, Standing
from symconfig.report.grid import plain
from symconfig.report.table import blocks, footer, loss, others_text, ranking, summary
from tests.sample_plans import sample_plan


@pytest.fixture
def plan() -> Plan:
    return sample_plan("llama2-13b")


def with_time(candidate: Candidate, **time: float) -> Candidate:
    parts = {**candidate.predicted.time, **time}
    predicted = replace(candidate.predicted, time=parts, step_s=sum(parts.values()))
    return replace(candidate, predicted=predicted)


def test_ranking_has_a_row_for_every_candidate_with_all_its_degrees(plan: Plan) -> None:
    grid = ranking(plan)
    assert [row[0] for row in grid.rows] == ["1", "2"]
    first = dict(zip(grid.headers, grid.rows[0], strict=True))
    assert (first["tp"], first["pp"], first["dp"], first["sp"]) == ("4", "2", "8", "yes")
    assert not {"vpp", "cp", "ep", "etp", "zero", "others"} & set(grid.headers)  # as plain as can be in every row
    assert first["GPU GiB"] == f"{55e9 / 2**30:.2f}"
    assert first["MFU"] == "57.7 %"


@pytest.mark.parametrize(
    ("sizes", "fields", "said"),
    [
        ((10, 10, 10, 10), {}, ""),
        ((9, 10, 10, 9), {"account_for_embedding": True, "account_for_loss": True}, "ends as layers"),
        ((11, 10, 10, 9), {"pipeline_layout": "Et*11|(t*10|)*2t*9L"}, "ends differ"),
        ((10, 12, 9, 9), {"pipeline_layout": "Et*10|t*12|t*9|t*9L"}, "uneven stages"),
    ],
)
def test_the_cut_of_the_stages_has_a_name(
        plan: Plan, sizes: tuple[int, ...], fields: dict[str, Any], said: str) -> None:  # fmt: skip
    chunks = [("dense",) * count for count in sizes]
    chunks[0], chunks[-1] = ("embedding", *chunks[0]), (*chunks[-1], "head")
    cut = replace(
        plan.best,
        configuration=replace(plan.best.configuration, pp=4, **fields),
        stages=tuple(Stage((chunk,), "none", 0.0) for chunk in chunks),
    )
    assert others_text(cut) == said


def test_columns_are_there_where_a_row_needs_them(plan: Plan) -> None:
    other = replace(
        plan.best,
        configuration=replace(plan.best.configuration, cp=2, zero_stage=0),
    )
    grid = ranking(replace(plan, alternatives=(other,)))
    assert [row[grid.headers.index("cp")] for row in grid.rows] == ["1", "2"]
    assert [row[grid.headers.index("zero")] for row in grid.rows] == ["1", "0"]
    assert "precision" not in grid.headers
    narrow = replace(plan.best, configuration=replace(plan.best.configuration, precision="fp8"))
    grid = ranking(replace(plan, alternatives=(narrow,)))
    assert [row[grid.headers.index("precision")] for row in grid.rows] == ["bf16", "fp8"]


def test_what_is_not_stable_is_said_before_all_else(plan: Plan) -> None:
    opened = (
        Opened("expert_tensor", "tensor parallelism within experts", "unusual", "hardly any run has it", pinned=True),
        Opened("optimizer_offload", "optimizer state in host memory", "a known defect", "weights can be stale"),
    )
    shown = blocks(replace(plan, search=replace(plan.search, opened=opened)))
    assert shown[1] == (
        "Not stable: tensor parallelism within experts (unusual: hardly any run has it). A pin asks for it."
    )
    assert str(shown[2]).endswith("(a known defect: weights can be stale). Nothing fits without it.")


def test_the_answer_says_why_the_first_plan_is_the_first(plan: Plan) -> None:
    assert next(summary(plan)) == "Plan 2 is 5.0 % slower: no part by more than 0.1 % of a step."
    faster = with_time(plan.best, **{"pipeline bubble": 0.3, "tp communication": 1.3})

    def first_line(plain: int, score_s: float, *unusual: str, least_s: float = 9.0) -> str:
        standings = (Standing(9.0, (), 2, 1.0), Standing(score_s, unusual, plain, 1.0))
        best, other = (replace(one, standing=each) for one, each in zip((plan.best, faster), standings, strict=True))
        search = replace(plan.search, best_score_s=least_s)
        return next(summary(replace(plan, best=best, alternatives=(other,), search=search)))

    head = "Plan 2 would be 3.6 % faster: pipeline bubble -0.500 s, tp communication +0.100 s. "
    assert first_line(4, 8.9) == (f"{head}Plan 2 has more options and axes (4 to 2); within 2 % the plainer is first.")
    unusual = first_line(2, 9.5, "tp", "micro-batch")
    assert unusual.startswith(f"{head}Plan 2 has rare choices, for which ")
    assert unusual.endswith(" % are added: tp, micro-batch.")
    # A candidate that is not shown has the best score: plan 2 is plainer, and beyond 2 % of that score.
    assert first_line(1, 9.1, "pp", least_s=8.9).endswith(" % are added: pp.")


@pytest.mark.parametrize("name", ["llama2-13b", "mixtral-8x7b", "deepseek-v3", "llama2-13b-lora"])
def test_at_most_twelve_lines_and_120_words_stand_under_the_table(name: str) -> None:
    plan = sample_plan(name)
    job = plan.job.model_copy(update={"precision": "auto"})
    predicted = replace(plan.best.predicted, host_bytes=2e9, interval={"device_bytes": (50e9, 200e9)})
    for shown in (plan, replace(plan, job=job, best=replace(plan.best, predicted=predicted))):
        lines = list(summary(shown))
        assert len(lines) <= 12
        assert len(" ".join(lines).split()) <= 120


def test_explain_has_the_tables_that_the_answer_leaves_out(plan: Plan) -> None:
    text, more = plain(blocks(plan)), footer(replace(plan, search=replace(plan.search, simulated=9)))
    assert "; 81 % compute, 11 % tp communication." in text
    assert "Where plan 1 spends" not in text
    assert "Searched" not in text
    for expected in (
        "123,456 candidates, of which 789 fit",
        "No plan that was compared scores better.",
        "memory of stage 0",
        "90 % interval 10.323 to 11.877 s",
        "9 schedules of the best simulated, all others ranked by a formula.",
    ):
        assert expected in more


def test_a_loss_names_the_part_that_grew_most(plan: Plan) -> None:
    slower = with_time(plan.best, **{"pipeline bubble": 1.6, "tp communication": 1.4})
    assert loss(plan.best, slower) == ("+9.0 %", "pipeline bubble +0.800 s, tp communication +0.200 s")


def test_a_loss_also_says_what_got_better(plan: Plan) -> None:
    other = with_time(plan.best, **{"pipeline bubble": 2.8, "tp communication": 0.2})
    percent, because = loss(plan.best, other)
    assert percent == "+9.0 %"
    assert because == "pipeline bubble +2.000 s, tp communication -1.000 s"


def test_options_at_rest_are_not_listed_and_others_are(plan: Plan) -> None:
    assert others_text(plan.best) == ""
    options = replace(plan.best.configuration, optimizer_offload=0.5, activation_offload=True, param_offload=True)
    text = others_text(replace(plan.best, configuration=options))
    assert text == "optimizer offload 50.0 %, parameter offload, activation offload"


def test_memory_is_held_against_what_the_margin_leaves(plan: Plan) -> None:
    assert plan.usable_bytes == pytest.approx(80 * 2**30 * 0.96)
    assert f"{55e9 / 2**30:.2f} of {80 * 0.96:.2f} GiB usable" in plain(blocks(plan))


def test_the_interval_of_the_memory_is_said_and_whether_it_crosses_the_limit(plan: Plan) -> None:
    def with_high(high: float) -> Plan:
        predicted = replace(
            plan.best.predicted, interval={"device_bytes": (50e9, high)}, interval_from={"memory": "30 runs"}
        )
        return replace(plan, best=replace(plan.best, predicted=predicted))

    has = plan.cluster.gpu.memory_bytes.value
    fits = footer(with_high(has - 1))  # beyond the margin, which is there for that
    assert f"(90 % interval 46.57 to {has / 2**30:.2f} GiB; 30 runs)" in fits
    assert "It may not fit" not in fits
    crossing = with_high(1.2 * has)
    margin = crossing.safe_margin
    assert f"Try: --memory-margin {margin:g}" in plain(blocks(crossing))
    assert f"Try: --memory-margin {margin:g}" in footer(crossing)
    factor = 1.2 * has / plan.best.predicted.device_bytes
    assert (1 - margin) * factor <= 1 < (1 - margin + 0.01) * factor


def test_the_order_of_parts_does_not_change_the_text(plan: Plan) -> None:
    predicted = plan.best.predicted
    turned = replace(
        predicted, time=dict(reversed(predicted.time.items())), memory=dict(reversed(predicted.memory.items()))
    )
    assert plain(blocks(plan)) == plain(blocks(replace(plan, best=replace(plan.best, predicted=turned))))

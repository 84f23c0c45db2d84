"""How many GPUs of which cluster: with plans that come at once, so that the answer can be known beforehand."""

from __future__ import annotations

import json
import re

import pytest

import symconfig
from symconfig.errors import InputError
from symconfig.runs.sweep.run import Row, Status, Task
from symconfig.runs.sweep.size import Size, descending, even_batch, frontier, time_s, token_count
from tests.cli.support import Run
from tests.runs.sweep.support import replace_pool

SPEED = {"h100": 10_000.0, "a100-80gb": 4_000.0}  # tokens/s of a GPU
FEW = {"h100": 0, "a100-80gb": 0}  # of fewer GPUs each does half, as where they have to recompute
SLOW = 1.2
ASKED = ("--model", "llama2-7b", "--tokens", "100B", "--clusters", "h100,a100-80gb")


def answer(task: Task) -> Row:
    """The more GPUs the less each does; 24 GPUs have no plan."""
    job = json.loads(task.job)
    gpus, tokens = job["gpus"], job["global_batch_size"] * job["seq_length"]
    if gpus == 24:
        return Row(task.id, Status.INFEASIBLE, reason="24 does not divide the batch")
    rate = SPEED[job["cluster"]] / (1 + gpus / 1000) / (2 if gpus < FEW[job["cluster"]] else 1)
    step_s = tokens / gpus / rate
    values = {
        "gpus": gpus, "step_s": step_s, "step_high_s": SLOW * step_s, "mfu": 0.4, "tp": 1, "pp": 1, "cp": 1, "ep": 1,
        "dp": gpus,
    }  # fmt: skip
    return Row(task.id, Status.PLANNED, values=values)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    return replace_pool(monkeypatch, answer)


def days(gpus: int, cluster: str = "h100") -> float:
    return 100e9 / gpus / SPEED[cluster] * (1 + gpus / 1000) / 86400


def asked(deadline: str, **more: object) -> Size:
    return symconfig.size("llama2-7b", deadline, "100B", ["h100", "a100-80gb"], **more)


def test_the_fewest_gpus_that_are_in_time_and_the_fewest_that_surely_are(given: list[Task]) -> None:
    h100, a100 = asked("3d").clusters
    every = range(8, 4096, 8)
    assert h100.smallest.gpus == next(n for n in every if n != 24 and days(n) <= 3.001) == 48
    assert h100.surest.gpus == next(n for n in every if n != 24 and SLOW * days(n) <= 3.001) == 56
    assert a100.smallest.gpus == next(n for n in every if days(n, "a100-80gb") <= 3.001)
    assert h100.smallest.run_s == pytest.approx(86400 * days(48), rel=1e-4)
    assert h100.smallest.gpu_hours == pytest.approx(48 * 24 * days(48), rel=1e-4)
    assert all(one.gpus >= h100.least for one in h100.tried)
    assert len({task.id for task in given}) == len(given) < 60


def test_goodput_stretches_the_run_and_prices_make_costs(given: list[Task]) -> None:
    free, priced = asked("3d"), asked("3d", goodput=0.5, prices={"h100": 2.0})
    assert priced.clusters[0].smallest.gpus == next(n for n in range(8, 999, 8) if 2 * days(n) <= 3.001) == 88
    assert free.clusters[0].smallest.cost is None
    one = next(one for one in priced.clusters[0].tried if one.gpus == 96)
    assert one.run_s == pytest.approx(2 * 86400 * days(96), rel=1e-4)
    assert one.cost == pytest.approx(2.0 * one.gpu_hours)
    assert priced.clusters[1].smallest.cost is None


def test_the_frontier_has_nothing_that_another_beats(given: list[Task]) -> None:
    (h100, _) = asked("3d").clusters
    found = frontier(h100.planned, lambda one: one.gpu_hours)
    for one in h100.planned:
        beaten = any(
            other.run_s <= one.run_s and other.gpu_hours <= one.gpu_hours and other is not one for other in h100.planned
        )
        assert (one in found) is not beaten


def test_a_table_for_people(run: Run, given: list[Task]) -> None:
    outcome = run("size", *ASKED, "--deadline", "3d", "--price", "h100=2.5", "--price", "a100-80gb=1.5")
    assert outcome.code == 0
    assert "h100: 48 GPUs, 2.53 days; 56 to be in time at the slow end, too" in outcome.out
    assert "Next:\n  symconfig plan --model llama2-7b" in outcome.out
    assert "--global-batch-size 1024 --cluster h100 --gpus 48 --out out\n" in outcome.out
    assert "failures, evaluation, saving and waiting" in outcome.out


def test_the_fewest_that_another_number_beats_are_told_so(
    run: Run, given: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEW, "h100", 96)
    outcome = run("size", *ASKED[:4], "--clusters", "h100", "--deadline", "4d")
    said = r"h100: 64 GPUs, 3\.8\d days; 80 to be in time .*\n"
    assert re.search(said, outcome.out)
    assert "Fewest GPUs in time, and the Pareto front of time and GPU-hours" in outcome.out
    assert "--cluster h100 --gpus 96 --out out\n" in outcome.out


def test_one_is_told_as_one(run: Run, given: list[Task]) -> None:
    batch = ("--global-batch-size", "1", "--seq-length", "1000")
    outcome = run(
        "size", *ASKED[:2], "--tokens", "1k", "--clusters", "h100", "--deadline", "1h", "--gpus-max", "1", *batch
    )
    assert "llama2-7b: 1,000 tokens in 1 hour\nglobal batch 1 sequence of 1,000 tokens; 1 step\n" in (outcome.out)
    assert "1 number of GPUs planned." in outcome.out


def test_json_is_the_contract(run: Run, given: list[Task]) -> None:
    data = run("size", *ASKED, "--deadline", "3d", "--json").json()
    assert (data["schema"], data["met"], data["steps"]) == ("symconfig.size/1", True, 23842)
    h100 = data["clusters"][0]
    assert (h100["cluster"], h100["smallest_gpus"], h100["surest_gpus"]) == ("h100", 48, 56)
    assert {tried["gpus"]: tried.get("in_time") for tried in h100["tried"]}[48] == "likely"
    without = [tried for tried in h100["tried"] if not tried["planned"]]
    assert all(tried["reason"] for tried in without)


def test_what_cannot_be_met_names_the_fastest_and_is_exit_1(run: Run, given: list[Task]) -> None:
    outcome = run("size", *ASKED, "--deadline", "1d", "--gpus-max", "64")
    assert outcome.code == 1
    assert f"h100: not in time with at most 64 GPUs: the fastest is {days(64):.2f} days on 64" in outcome.out
    assert "a100-80gb: not in time with at most 64 GPUs" in outcome.out


def test_where_none_can_be_in_time_even_at_its_peak_the_largest_are_planned(run: Run, given: list[Task]) -> None:
    words = ("size", *ASKED, "--deadline", "1h", "--gpus-max")
    outcome = run(*words, "64")
    assert outcome.code == 1
    h100 = run(*words, "64", "--json").json()["clusters"][0]
    assert h100["least_gpus_at_peak"] > 64
    assert (h100["smallest_gpus"], h100["fastest_gpus"]) == (None, 64)
    assert len(h100["tried"]) == 4
    assert run(*words, "24", "--json").json()["clusters"][0]["fastest_gpus"] == 16


def test_where_the_largest_has_no_plan_smaller_ones_are_tried() -> None:
    sizes = (1, 2, 4, 8, 16, 24)
    assert descending(sizes, {}) == (24, 16, 8, 4)
    assert descending(sizes, {24: 0.0, 16: 0.0, 8: 0.0, 4: 0.0}) == (2, 1)
    assert descending(sizes, {24: 0.0, 16: 9.0, 8: 9.5, 4: 9.8}) == ()
    assert descending((1,), {1: 0.0}) == ()


@pytest.mark.parametrize("status", [Status.DEFECT, Status.LOST])
def test_a_number_that_could_not_be_planned_is_not_called_infeasible(
    run: Run, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    failing = {48}

    def fail(task: Task) -> Row:
        gpus = json.loads(task.job)["gpus"]
        return Row(task.id, status, reason="KeyError: x") if gpus in failing or not failing else answer(task)

    replace_pool(monkeypatch, fail)
    words = ("size", *ASKED[:4], "--clusters", "h100", "--deadline", "3d")
    outcome = run(*words)
    assert "h100: 56 GPUs" in outcome.out
    assert "h100, 48 GPUs: not known, planning failed: KeyError: x" in outcome.out
    tried = run(*words, "--json").json()["clusters"][0]["tried"]
    assert {"gpus": 48, "planned": False, "failed": True, "reason": "KeyError: x"} in tried
    failing.clear()
    outcome = run(*words)
    assert re.search(r"h100: planning failed for [\d,]+ to [\d,]+ GPUs: KeyError: x", outcome.out)
    assert "no plan for" not in outcome.out


def test_a_batch_in_tokens(given: list[Task]) -> None:
    asked("3d", batch_tokens="1M", seq_length=2048)
    jobs = [json.loads(task.job) for task in given]
    assert {(job["global_batch_size"], job["seq_length"]) for job in jobs} == {(512, 2048)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deadline", "30x"), "--deadline: wrong value (got 30x"),
        (("--tokens", "many"), "--tokens: wrong value"),
        (("--tokens", "1.5"), "--tokens: wrong value (got 1.5, need a whole number of tokens"),
        (("--clusters", "h10"), "--clusters: unknown cluster (got h10"),
        (("--clusters", ","), "--clusters: "),
        (("--price", "h100"), "--price: not of the form CLUSTER=PRICE"),
        (("--price", "h100=-1"), "--price: not of the form CLUSTER=PRICE"),
        (("--price", "h200=2"), "--price: is none of the clusters that are asked for (got h200"),
        (("--goodput", "0"), "--goodput: out of range"),
        (("--goodput", "x"), "--goodput: wrong value"),
        (("--gpus-max", "9999999"), "--gpus-max: out of range"),
        (("--batch-tokens", "4M", "--global-batch-size", "8"), "--batch-tokens: is the global batch a second time"),
        (("--global-batch-size", "0"), "--global-batch-size: out of range"),
        (("--seq-length", "-1"), "--seq-length: "),
        (("--precision", "int4"), "--precision: wrong value"),
        (("--pin", "ttp=8"), "--pin ttp: "),
        (("--jobs", "0"), "--jobs: wrong value"),
    ],
)
def test_an_option_that_is_wrong_is_named_before_any_work(
    run: Run, given: list[Task], words: tuple[str, ...], said: str
) -> None:
    outcome = run("size", *ASKED, "--deadline", "3d", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert given == []


def test_real_plans_are_those_of_the_command_that_is_named() -> None:
    batch = {"global_batch_size": 64, "seq_length": 2048}
    found = symconfig.size("qwen2.5-7b-lora", "2h", "100M", ["h100"], gpus_max=8, **batch)
    (h100,) = found.clusters
    plan = symconfig.plan("qwen2.5-7b-lora", "h100", h100.smallest.gpus, 64, 2048)
    assert h100.smallest.values["step_s"] == plan.best.predicted.step_s
    assert h100.smallest.run_s == found.question.steps * plan.best.predicted.step_s
    fewer = [one for one in h100.tried if one.gpus < h100.smallest.gpus]
    assert all(one.run_s > 7200 for one in fewer)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2592000), ("12h", 43200), ("2w", 1209600), ("1.5 d", 129600), ("90m", 5400), ("10S", 10), ("7", 604800)],
)
def test_times(text: str, seconds: float) -> None:
    assert time_s("deadline", text) == seconds


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2T", 2 * 10**12),
        ("500B", 5 * 10**11),
        ("1.5e12", 1500 * 10**9),
        ("300 m", 3 * 10**8),
        ("4096", 4096),
        ("0.3t", 3 * 10**11),
        ("1.1T", 11 * 10**11),
        ("1e-3k", 1),
        ("1.000000000001T", 10**12 + 1),
    ],
)
def test_tokens(text: str, number: int) -> None:
    assert token_count("tokens", text) == number


@pytest.mark.parametrize("text", ["", "d", "0d", "-3d", "nan", "inf", "1e999d", "30x", "3 0d", "9999999w", "٣d"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(InputError, match="deadline: wrong value"):
        time_s("deadline", text)


@pytest.mark.parametrize("text", ["", "T", "0", "-2T", "2Q", "1e30T", "0.1", "two", "1.5", "1.0005k", "1e-999"])
def test_what_is_no_number_of_tokens_is_named(text: str) -> None:
    with pytest.raises(InputError, match="tokens: wrong value"):
        token_count("tokens", text)


@pytest.mark.parametrize(
    ("tokens_of_step", "length", "sequences"),
    [(4 * 2**20, 4096, 1024), (4_000_000, 4096, 960), (4 * 2**20, 2048, 2048), (10**5, 4096, 16), (100, 4096, 1)],
)
def test_a_batch_in_tokens_is_an_even_number_of_sequences(tokens_of_step: int, length: int, sequences: int) -> None:
    assert even_batch(tokens_of_step, length) == sequences

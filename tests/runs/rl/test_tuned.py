"""Tuning on sequences of many lengths and on pairs: the step around a plan, its choice, and what cannot be run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import symconfig
from symconfig.cli.main import main
from symconfig.descriptor.rl import Lengths
from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.render import llamafactory, render
from symconfig.runs.rl.trained import EXCHANGE
from symconfig.runs.rl.tuned import _budget
from symconfig.solve.lengths import documents, longest_of

LENGTHS = {"mean": 700.0, "p95": 1500.0, "max": 2048}
MODEL, GPUS = "qwen2.5-7b", 8


def planned(model: str = MODEL, **changed: Any) -> Plan:
    return symconfig.plan(model, "h100", GPUS, **{"sequences": LENGTHS, "preference": {"pairs": 64}, **changed}).plan


@cache
def usual() -> Plan:
    return planned()


def phase(plan: Plan, name: str) -> Any:
    return next(each for each in plan.tuned[0].phases if each.name == name)


def test_the_longest_of_several_is_that_of_draws() -> None:
    draws = np.random.default_rng(3).lognormal(mean=6.0, sigma=0.7, size=(50_000, 8))
    lengths = Lengths(mean=draws.mean(), p95=float(np.quantile(draws, 0.95)), max=10**6)
    for count in (1, 2, 4, 8):
        assert longest_of(lengths, count) == pytest.approx(draws[:, :count].max(axis=1).mean(), rel=0.03)


def test_pairs_are_two_sequences_and_a_step_has_all_of_them() -> None:
    batch = usual().best.batch
    assert batch.global_ == 2 * 64
    assert batch.micro % 2 == 0
    assert batch.seq_length == LENGTHS["max"]


def test_the_phases_make_the_step_and_the_shortest_step_is_first() -> None:
    plan = usual()
    assert len(plan.tuned) == 1 + len(plan.alternatives)
    for step in plan.tuned:
        assert step.step_s == pytest.approx(sum(each.seconds for each in step.phases))
        assert step.interval[0] < step.step_s < step.interval[1]
        assert all(each.bytes == pytest.approx(sum(each.holds.values())) for each in step.phases)
        assert max(each.bytes for each in step.phases) <= plan.usable_bytes
    assert [step.step_s for step in plan.tuned] == sorted(step.step_s for step in plan.tuned)


def test_a_padded_update_takes_the_longest_of_each_micro_batch() -> None:
    plan = usual()
    time, batch = plan.best.predicted.time, plan.best.batch
    fixed = time[EXCHANGE] + time["optimizer"] + time["overhead"]
    share = longest_of(Lengths(**LENGTHS), batch.micro) / batch.seq_length
    expected = fixed + share * (sum(time.values()) - fixed)
    assert phase(plan, "update").seconds == pytest.approx(expected)
    assert 0.2 < phase(plan, "reference").seconds / phase(plan, "update").seconds < 0.5


def test_a_reference_is_a_second_copy_but_for_adapters_and_losses_without_one() -> None:
    whole, adapters = usual(), planned(lora={"r": 16})
    assert phase(whole, "reference").holds["reference"] == whole.best.predicted.memory["weights"]
    assert "reference" in phase(whole, "update").holds
    assert phase(adapters, "reference").seconds > 0
    assert all("reference" not in each.holds for each in adapters.tuned[0].phases)
    (only,) = planned(preference={"pairs": 64, "loss": "simpo"}).tuned[0].phases
    assert only.name == "update"


@pytest.mark.parametrize("pins", [{"zero": 1}, {"zero": 2}, {"zero": 3, "mbs": 4}, {"recompute": "full"}])
def test_no_other_layout_makes_the_step_shorter(pins: dict[str, Any]) -> None:
    try:
        other = planned(pins=pins)
    except InfeasibleError:
        return
    if max(each.bytes for each in other.tuned[0].phases) > _budget(other):
        return  # more likely to run out of memory than the job allows, and taken where nothing else is there
    assert other.tuned[0].step_s >= usual().tuned[0].step_s * (1 - 1e-9)


def test_a_step_that_may_run_out_of_memory_is_taken_by_who_takes_the_risk() -> None:
    careful, bold = planned("qwen3-8b"), planned("qwen3-8b", limits={"memory_risk": 1.0})
    fullest = [max(each.bytes for each in plan.tuned[0].phases) for plan in (careful, bold)]
    assert fullest[0] <= _budget(careful) < fullest[1] <= bold.usable_bytes
    assert bold.tuned[0].step_s < careful.tuned[0].step_s


def test_packed_sequences_fill_all_and_are_attended_within() -> None:
    told = {"preference": None, "task": "sft", "global_batch_size": 64, "backend": "deepspeed", "seq_length": 4096}
    packed = planned(sequences=LENGTHS | {"batching": "packed"}, **told)
    assert packed.job.packing == documents(Lengths(**LENGTHS))
    assert packed.tuned[0].step_s == pytest.approx(packed.best.predicted.step_s)
    plain = symconfig.plan(MODEL, "h100", GPUS, 64, 4096, task="sft", backend="deepspeed").plan
    assert packed.best.predicted.step_s < plain.best.predicted.step_s
    loose = planned(sequences=LENGTHS | {"batching": "padding_free"}, **told | {"seq_length": 2048})
    padded = planned(**told | {"seq_length": 2048})
    assert loose.tuned[0].step_s <= padded.tuned[0].step_s


def test_a_plan_is_read_back_and_made_again(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = usual().to_json()
    assert parse_plan(text).tuned == usual().tuned
    with pytest.raises(InputError, match=r"tuned.*was edited"):
        parse_plan(text.replace('"name": "reference"', '"name": "other"'))
    (file := tmp_path / "plan.json").write_text(text)
    assert main(["replan", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "The planner changes nothing" in shown or "the planner changes nothing" in shown
    assert "reference " in shown


def test_llamafactory_is_told_the_pairs() -> None:
    plan = usual()
    found = llamafactory.sections(plan)
    assert found["train"]["per_device_train_batch_size"] * 2 == plan.best.batch.micro
    assert (found["method"]["stage"], found["method"]["pref_loss"]) == ("dpo", "sigmoid")
    assert found["dataset"]["cutoff_len"] == LENGTHS["max"]
    assert "neat_packing" not in found["dataset"]
    files = render(planned(training={"data_path": ["pairs.jsonl"]}), "llamafactory")
    listed = json.loads(files["dataset_info.json"])["data_1"]
    assert listed["ranking"]
    assert listed["columns"] == {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}
    assert "A whole step takes" in files["REPORT.md"]


def test_llamafactory_is_told_to_pack() -> None:
    told = {"preference": None, "task": "sft", "global_batch_size": 64, "target": "llamafactory", "seq_length": 4096}
    data = llamafactory.sections(planned(sequences=LENGTHS | {"batching": "packed"}, **told))["dataset"]
    assert (data["packing"], data["neat_packing"], data["cutoff_len"]) == (True, True, 4097)
    with pytest.raises(InfeasibleError, match=r"sequences.batching: LLaMA-Factory pads sequences, or packs them"):
        planned(sequences=LENGTHS | {"batching": "padding_free"}, **told)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"preference": None, "task": "dpo", "global_batch_size": 64}, "task: dpo and the section preference go tog"),
        ({"global_batch_size": 64}, r"global_batch_size: follows from the section preference.*got 64, need 128"),
        ({"sequences": LENGTHS | {"batching": "packed"}}, "pairs are not packed"),
        ({"seq_length": 1024}, r"sequences.max: is above seq_length .*got 2048, need at most 1024"),
        ({"sequences": {"mean": 700.0, "max": 512}}, r"sequences.mean: is above max"),
    ],
)
def test_what_contradicts_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**changed)


@pytest.mark.parametrize("target", ["megatron", "deepspeed", "verl"])
def test_other_targets_refuse_pairs(target: str) -> None:
    with pytest.raises(InfeasibleError, match=r"cannot train on pairs|learns by reinforcement alone"):
        planned(target=target)


def test_what_fits_nowhere_says_what_is_too_full() -> None:
    said = r"preference: nothing fits: the phase \w+ of the leanest plan is too full \(got [\d.]+ GiB, need 71.19 GiB"
    with pytest.raises(InfeasibleError, match=said):
        planned(
            pins={"zero": 2, "mbs": 2, "recompute": "none", "tp": 1, "optimizer_offload": 0},
            limits={"memory_margin": 0.1},
        )
    with pytest.raises(InfeasibleError):
        planned("llama3.1-405b")

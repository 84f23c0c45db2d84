"""Tuning on sequences of many lengths and on pairs: the step around a plan, its choice, and what cannot be run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

import symconfig
from symconfig.api.files import Wanted
from symconfig.api.files import files as written
from symconfig.cli.main import main
from symconfig.descriptor.tuning import Lengths
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import gib
from symconfig.graph.model import parameters
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.render import render, tuners
from symconfig.render.rl import openrlhf
from symconfig.runs.rl.trained import EXCHANGE
from symconfig.runs.rl.tuned import _budget
from symconfig.solve.lengths import documents, longest_of
from symconfig.solve.predict import restore

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
    time, batch = plan.best.predicted.time, plan.best.configuration
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


KTO, REWARD = {"answers": 128, "loss": "kto"}, {"pairs": 64, "loss": "reward"}
FEW: dict[str, Any] = {"pins": {"zero": 3, "mbs": "..8", "recompute": "full"}}  # plans that are tried


def test_kto_reads_single_answers_and_others_for_its_kl_term() -> None:
    """Two forwards of the reference and one of the model itself, from which nothing is learnt (arXiv:2402.01306)."""
    plan = planned(preference=KTO, target="trl", **FEW)
    assert (plan.task, plan.best.configuration.global_batch, plan.training.lr) == ("kto", 128, 5e-7)
    assert plan.best.configuration.micro > 1  # of one answer there is no other
    assert [each.name for each in plan.tuned[0].phases] == ["KL term", "reference", "update"]
    assert phase(plan, "reference").seconds == pytest.approx(2 * phase(plan, "KL term").seconds)
    assert "policy's activations and logits" not in phase(plan, "KL term").holds
    assert "policy's activations and logits" in phase(plan, "reference").holds
    assert all("reference" in each.holds for each in plan.tuned[0].phases)
    without = planned(preference=KTO | {"loss": "apo_zero_unpaired"}, target="trl", **FEW)
    assert [each.name for each in without.tuned[0].phases] == ["reference", "update"]
    assert planned(preference=KTO, target="llamafactory", pins={"mbs": 1}).best.configuration.micro == 1


def test_a_model_of_rewards_has_a_head_of_one_number_or_both() -> None:
    """LLaMA-Factory's is beside that over the vocabulary; adapters stay, and no copy of the model is there."""
    scored, both = (planned(preference=REWARD, target=target, **FEW) for target in ("trl", "llamafactory"))
    assert [[each.name for each in plan.tuned[0].phases] for plan in (scored, both)] == [["update"], ["update"]]
    assert (scored.task, scored.model.num_labels, both.model.num_labels) == ("reward", 1, None)
    fewer = (both.model.vocab_size - 1) * both.model.hidden_size
    assert parameters(both.model).total - parameters(scored.model).total == fewer
    reread = parse_plan(scored.to_json())
    assert (reread.model, reread.job, reread.tuned) == (scored.model, scored.job, scored.tuned)
    with pytest.raises(InfeasibleError, match="trains another head, so it needs a plan of its own"):
        render(scored, "llamafactory")
    adapted = planned(preference=REWARD, target="trl", lora={"r": 16}, **FEW)
    assert adapted.model.adapter is not None
    said = yaml.safe_load(render(adapted, "trl")["config.yaml"])
    assert (said["lora_task_type"], said["lora_modules_to_save"]) == ("SEQ_CLS", ["score"])
    assert (scored.training.lr, adapted.training.lr) == (1e-5, 2e-4)


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
    asked: dict[str, Any] = {"model": "llama3.1-8b", "seq_length": 5632}
    careful, bold = planned(**asked), planned(**asked, limits={"memory_risk": 1.0})
    fullest = [max(each.bytes for each in plan.tuned[0].phases) for plan in (careful, bold)]
    assert fullest[0] <= _budget(careful) < fullest[1] <= bold.usable_bytes
    assert bold.tuned[0].step_s < careful.tuned[0].step_s
    assert f"{gib(fullest[0])} of a budget of {gib(_budget(careful))} GiB (5 % risk" in careful.binding
    assert f"{gib(fullest[1])} of {gib(bold.usable_bytes)} GiB usable, in the phase" in bold.binding


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
    found = tuners.sections(plan)
    assert found["train"]["per_device_train_batch_size"] * 2 == plan.best.configuration.micro
    assert (found["method"]["stage"], found["method"]["pref_loss"]) == ("dpo", "sigmoid")
    assert found["dataset"]["cutoff_len"] == LENGTHS["max"]
    assert "neat_packing" not in found["dataset"]
    files = written(planned(training={"data_path": ["pairs.jsonl"]}), Wanted("llamafactory"))
    listed = json.loads(files["dataset_info.json"])["data_1"]
    assert listed["ranking"]
    assert listed["columns"] == {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}
    assert "A whole step takes" in files["REPORT.md"]


def test_llamafactory_is_told_to_pack() -> None:
    told = {"preference": None, "task": "sft", "global_batch_size": 64, "target": "llamafactory", "seq_length": 4096}
    data = tuners.sections(planned(sequences=LENGTHS | {"batching": "packed"}, **told))["dataset"]
    assert (data["packing"], data["neat_packing"], data["cutoff_len"]) == (True, True, 4097)
    with pytest.raises(InfeasibleError, match=r"sequences.batching: LLaMA-Factory pads sequences, or packs them"):
        planned(sequences=LENGTHS | {"batching": "padding_free"}, **told)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"preference": None, "task": "dpo", "global_batch_size": 64}, "task: dpo needs a section preference"),
        ({"global_batch_size": 64}, r"global_batch_size: follows from the section preference.*got 64, need 128"),
        ({"sequences": LENGTHS | {"batching": "packed"}}, r"sequences.batching: is not for answers \(got packed"),
        ({"preference": {"pairs": 64, "loss": "kto"}}, r"preference.loss: kto needs a number of answers \(got pairs\)"),
        (
            {"preference": {"answers": 64, "pairs": 64}},
            r"loss sigmoid needs a number of pairs \(got pairs and answers\)",
        ),
        ({"preference": REWARD | {"beta": 0.2}}, "preference.loss: reward has no beta"),
        ({"preference": KTO, "task": "dpo"}, r"task: is not that of the section preference \(got dpo, need kto"),
        ({"seq_length": 1024}, r"sequences.max: is above seq_length .*got 2048, need at most 1024"),
        ({"sequences": {"mean": 700.0, "max": 512}}, r"sequences.mean: is above max"),
    ],
)
def test_what_contradicts_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**changed)


@pytest.mark.parametrize("target", ["megatron", "deepspeed", "verl"])
def test_other_targets_refuse_pairs(target: str) -> None:
    with pytest.raises(InfeasibleError, match=rf"task: {target} is not for this task \(got dpo, need (pretrain|rl)"):
        planned(target=target)


@pytest.mark.parametrize("target", ["trl", "openrlhf"])
def test_programs_count_pairs(target: str) -> None:
    plan = planned(target=target)
    said = yaml.safe_load(render(plan, target)["config.yaml"]) if target != "openrlhf" else options(plan)
    names = {
        "trl": ("per_device_train_batch_size", "max_length", "beta"),
        "openrlhf": ("--train.micro_batch_size", "--data.max_len", "--model.beta"),
    }[target]
    assert tuple(float(said[name]) for name in names) == (plan.best.configuration.micro / 2, LENGTHS["max"], 0.1)
    report = render(plan, target)["REPORT.md"]
    assert f"The reference is on the GPU in every phase, {gib(phase(plan, 'update').holds['reference'])} GiB" in report
    with pytest.raises(InfeasibleError, match="has whole pairs in a micro-batch"):
        render(replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, micro=3))), target)


def test_pairs_in_shards_are_priced_as_the_program_that_nobody_named_runs_them() -> None:
    job = {"model": MODEL, "cluster": "h100", "gpus": GPUS, "global_batch_size": 128, "seq_length": 2048}
    plan = symconfig.plan(**job, backend="fsdp", preference={"pairs": 64}, lora={"r": 16}, top=1).plan
    assert plan.job.target == "llamafactory"
    sizes = restore(plan, plan.best).request.framework.bytes
    assert sizes.frozen + sizes.frozen_rest == 4.0  # which it widens


def options(plan: Plan) -> dict[str, str]:
    words = openrlhf.words(plan)
    return {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def test_openrlhf_has_a_copy_beside_adapters_too() -> None:
    copied, shared = (planned(target=target, lora={"r": 16}) for target in ("openrlhf", "trl"))
    weights = copied.best.predicted.memory["weights"]
    assert phase(copied, "update").holds["reference"] == weights
    assert "reference" not in phase(shared, "update").holds
    with pytest.raises(InfeasibleError, match="has a copy of the model beside adapters, too, so it needs a plan of it"):
        render(shared, "openrlhf")
    assert '"${POLICY[@]}"' in render(copied, "openrlhf")["launch.sh"]
    assert "train.sh" not in render(copied, "openrlhf").paths()


@pytest.mark.parametrize(
    ("target", "changed", "said"),
    [
        (
            "llamafactory",
            {"preference": {"pairs": 64, "loss": "cpo"}},
            "preference.loss: LLaMA-Factory does not support it",
        ),
        ("openrlhf", {"preference": {"pairs": 64, "loss": "hinge"}}, "preference.loss: openrlhf does not support it"),
        ("trl", {"sequences": LENGTHS | {"batching": "padding_free"}}, "sequences.batching: trl does not support it"),
        ("trl", {"preference": KTO, "pins": {"mbs": 1}}, "makes the KL term of other answers of a micro-batch"),
        (
            "ms-swift-deepspeed",
            {"preference": REWARD, "sequences": LENGTHS | {"batching": "padding_free"}},
            "sequences.batching: ms-swift-deepspeed does not support it",
        ),
    ],
)
def test_what_a_program_of_pairs_does_not_know_is_said(target: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InfeasibleError, match=said):
        planned(target=target, **changed)


def test_a_plan_is_made_again_on_pairs() -> None:
    plain = symconfig.plan(MODEL, "h100", GPUS, 64, 2048, task="sft", backend="deepspeed", target="llamafactory")
    again = symconfig.replan(plain.plan, preference={"pairs": 64}).new.plan
    assert (again.task, again.best.configuration.global_batch, again.training.lr) == ("dpo", 128, 5e-7)


def test_what_fits_nowhere_says_what_is_too_full() -> None:
    said = r"preference: nothing fits: the phase \w+ of the leanest plan is too full \(got [\d.]+ GiB, need 71.19 GiB"
    with pytest.raises(InfeasibleError, match=said):
        planned(
            pins={"zero": 2, "mbs": 2, "recompute": "none", "tp": 1, "optimizer_offload": 0},
            limits={"memory_margin": 0.1},
        )

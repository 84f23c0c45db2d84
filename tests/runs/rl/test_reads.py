"""What is read at once of a step's samples; steps that cannot be run or planned, and the sentences that say so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api.planning import PlanResult, read_job
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.tuning import Rl
from symconfig.errors import InfeasibleError, InputError
from symconfig.existing.recover.rl.step import Packed
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.plans.rl import READING
from symconfig.render.rl import nemo_rl, openrlhf, slime, verl
from symconfig.resources import data_dir
from symconfig.runs.rl.choose import answer
from symconfig.runs.rl.layouts import Question
from symconfig.runs.rl.logits import VERL
from symconfig.runs.rl.phases import GAPS
from symconfig.runs.rl.trained import WEIGHTS, Trained
from tests.existing.audit.test_openrlhf import script
from tests.existing.audit.verl_scripts import audited, of_verl, phases
from tests.runs.rl.support import phase, planned, section, step, usual
from tests.sample_plans import learning_plan, sample_plan

LONG: dict[str, Any] = {"prompts": 512, "samples": 8, "updates": 4}


def read_at(plan: Plan, tokens: int) -> tuple[float, float]:
    """The seconds of log-probabilities in micro-batches of so many tokens of a replica, and the bytes of the phase."""
    rl, dp = plan.job.rl, plan.best.configuration.dp
    reader = Trained(plan, plan.best, 1.0, VERL).reading(tokens)
    passes = -(-rl.sequences * rl.mean_tokens // (dp * tokens))
    held = phase(plan, READING).holds
    rest = sum(size for name, size in held.items() if name != "forward")
    seconds = reader.passes_s(passes, rl.sequences * rl.mean_tokens / (dp * tokens * passes))
    return seconds, rest + (1 + GAPS) * reader.forward_bytes(entropy=True)


def test_logits_that_do_not_fit_are_read_in_smaller_micro_batches() -> None:
    """12 bytes of each of 128,256 logits, where the update has 8: 45,056 tokens have room in one of both."""
    pins = {"tp": "1", "pp": "1", "cp": "1", "recompute": "full"}
    plan = planned("llama3.2-1b", pins=pins, tokens_per_gpu=45056, **LONG)
    found = phase(plan, READING)
    assert phase(plan, "update").tokens == 45056
    assert found.tokens == 22528
    assert found.bytes <= plan.usable_bytes < read_at(plan, 45056)[1]


def slowed(times: float, link: str) -> ClusterDescriptor:
    """Nodes of eight H100 whose GPUs, or whose hosts, are so many times further apart."""
    cluster = load_cluster("h100")
    if link == "host":
        rate = cluster.host.link_bytes_per_s
        slow = cluster.host.model_copy(
            update={"link_bytes_per_s": rate.model_copy(update={"value": rate.value / times})}
        )
        return cluster.model_copy(update={"host": slow})
    inner, *outer = cluster.levels
    rate = inner.bandwidth_bytes_per_s
    slower = inner.model_copy(update={"bandwidth_bytes_per_s": rate.model_copy(update={"value": rate.value / times})})
    return cluster.model_copy(update={"levels": (slower, *outer)})


@pytest.mark.parametrize("backend", ["deepspeed", "fsdp"])
def test_every_read_gathers_the_weights_that_rest_in_shards(backend: str) -> None:
    """On links so slow that the forward hides nothing: 16-bit weights of seven other GPUs arrive at each."""

    def seconds(times: float, zero: int) -> float:
        shape: dict[str, Any] = {"tp": 1, "pp": 1, "dp": 8, "zero_stage": zero, "seq_length": 4096}
        plan = sample_plan(load_model("llama3.2-1b"), slowed(times, "nvlink"), backend, **shape)
        prospect = Trained(plan, plan.best, 1.0, VERL).prospect
        return Trained(plan, plan.best, 1.0, VERL, point=prospect, frozen=True).passes_s(10, 1.0)

    fast, slow, slower = (seconds(times, 3) for times in (1.0, 1e4, 2e4))
    link = load_cluster("h100").levels[0].bandwidth_bytes_per_s.value
    wire_s = 10 * 1e4 * 2 * 1.2358e9 * 7 / 8 / link
    assert wire_s < slow < 1.4 * wire_s
    assert slower - slow == pytest.approx(slow, rel=0.01)
    assert seconds(1.0, 2) == seconds(1e4, 2) < fast  # whole weights


def test_a_reference_in_shards_on_the_host_is_copied_for_every_micro_batch() -> None:
    """Of FSDP 2's CPUOffloadPolicy, fp32 shards; of Megatron's workers all weights come once, in 16 bits."""
    copies = {}
    for target, backend in (("verl-fsdp", "fsdp"), ("verl", "megatron")):
        own: dict[str, Any] = {
            "target": target,
            "backend": backend,
            "rl": section(tokens_per_gpu=2560, **LONG),
            "top": 1,
        }
        plans = [symconfig.plan("llama3.2-1b", slowed(times, "host"), 8, **own).plan for times in (1e4, 2e4)]
        one, two = (phase(plan, "reference") for plan in plans)
        rl, plan = plans[0].job.rl, plans[0]
        assert one.tokens == two.tokens
        passes = -(-rl.sequences * rl.mean_tokens // (plan.best.configuration.dp * one.tokens))
        actor = Trained(plan, plan.best, 1.0, VERL)
        copies[target] = (two.seconds - one.seconds) * actor.host_bytes_per_s / actor.memory[WEIGHTS] / passes
    assert copies["verl-fsdp"] == pytest.approx(1.0, rel=0.01)
    assert copies["verl"] < 0.2


def test_programs_are_told_what_is_read_at_once() -> None:
    plan = planned("qwen3-8b", pins={"tp": "2", "pp": "1", "cp": "1"}, tokens_per_gpu=1280, **LONG)
    read = plan.rl[0].read_per_gpu
    words = verl.words(plan)
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1280" in words
    for role in ("rollout", "ref"):
        assert f"actor_rollout_ref.{role}.log_prob_max_token_len_per_gpu={read}" in words
    assert parse_plan(plan.to_json()).rl == plan.rl
    old = replace(plan.rl[0], phases=tuple(replace(each, tokens=0) for each in plan.rl[0].phases))
    assert old.read_per_gpu == old.tokens_per_gpu == 1280  # of a plan that an earlier release wrote
    nemo = planned("qwen3-8b", target="nemo-rl", pins={"tp": "2", "pp": "1", "cp": "1"}, tokens_per_gpu=1280, **LONG)
    packing = nemo_rl.sections(nemo)["policy"]["sequence_packing"]
    assert (packing["train_mb_tokens"], packing["logprob_mb_tokens"]) == (1280, nemo.rl[0].read_per_gpu)
    ray = planned("qwen3-8b", target="openrlhf", tokens_per_gpu=1280, **LONG)
    options = dict(zip(words := openrlhf.words(ray), words[1:], strict=False))
    assert options["--train.max_tokens_per_gpu"] == "1280"
    assert options["--rollout.max_tokens_per_gpu"] == str(ray.rl[0].read_per_gpu)


def test_slime_reads_samples_in_the_micro_batches_of_its_updates(tmp_path: Any) -> None:
    """It has an option for others, which no part of it reads (slime 0.3.1, utils/arguments.py alone names it)."""
    plan = planned("qwen3-8b", target="slime", tokens_per_gpu=1280, **LONG)
    assert phase(plan, READING).tokens == phase(plan, "update").tokens == 1280
    path = script(tmp_path)
    plain = phases(audited(str(path)))
    text = path.read_text()
    path.write_text(
        text.replace("--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 9216 --log-probs-max-tokens-per-gpu 65536")
    )
    assert "65536" in path.read_text()
    assert phases(audited(str(path)))[READING] == plain[READING]
    assert not re.search("log-probs-max-tokens", str(slime.variables(plan)["arrays"]))


def test_a_script_that_reads_more_at_once_is_faster_and_fuller() -> None:
    """Twice as many tokens take twice the memory, and their layers' kernels are no slower."""
    more = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
    small, large = (phases(audited(of_verl(f"{more}={room}", config="ppo_megatron_trainer"))) for room in (6144, 12288))
    assert (small[READING].tokens, large[READING].tokens) == (6144, 12288)
    assert large[READING].holds["forward"] == pytest.approx(2 * small[READING].holds["forward"], rel=0.01)
    assert 0.9 < large[READING].seconds / small[READING].seconds < 1.0
    assert small["update"] == large["update"]
    assert small["reference"].tokens == large["reference"].tokens == 6144


def test_stages_of_several_chunks_take_micro_batches_in_groups() -> None:
    """Of 64 x 4 samples of 400 tokens each of two replicas has 51,200; in an update half of them, 25,600."""
    rl = step()
    packed = Packed(room=5120, length=rl.mean_tokens)
    assert [packed.spread(rl, 2, group) for group in (1, 2, 4)] == [10, 12, 16]
    read = [packed.read(rl, 2, group) for group in (1, 4)]
    assert [(each.passes, each.room) for each in read] == [(10, 5120), (12, 5120)]
    assert [each.fill for each in read] == pytest.approx([1.0, 10 / 12])
    assert packed.as_trained(rl, 2, 4).passes == 2 * 8
    whole = Packed(room=10**6, length=rl.mean_tokens).read(rl, 2)
    assert (whole.room, whole.passes, whole.fill) == (51200, 1, 1.0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"updates": 3}, r"updates: do not divide prompts x samples"),
        ({"critic": "llama3.1-8b"}, r"grpo has no critic"),
        ({"rollout_gpus": 4}, r"rl.rollout_gpus: is for placement: split"),
        ({"prompt_length": {"mean": 300.0, "max": 256}}, r"rl.prompt_length.mean: is above max"),
        (
            {"prompt_length": {"mean": 100.0, "p95": 50.0, "max": 256}},
            r"rl.prompt_length.p95: is not between mean and max",
        ),
        ({"response_length": {"mean": 300.0, "max": 200_000}}, r"longest sequence is longer than the model's"),
    ],
)
def test_what_contradicts_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(**changed)


def test_nothing_fits_names_the_phase_or_the_update() -> None:
    with pytest.raises(InfeasibleError, match="no engine has room"):
        planned(rollout={"tp": 1, "memory_share": 0.2})


@pytest.mark.parametrize(
    ("gpus", "changed", "said"),
    [
        (8, {"tokens_per_gpu": 50}, r"rl.tokens_per_gpu: a micro-batch has no room .*got 50, need 160 tokens or more"),
        (8, {"rollout": {"tp": 3}}, r"rl.rollout.tp: an engine divides attention heads .*got 3, need a divisor of 32"),
        (8, {"rollout": {"tp": 16}}, r"rl.rollout.tp: does not divide the GPUs .*got tp 16, need a divisor of 8"),
        (8, {"rollout": {"tp": 8, "dp": 2}}, r"rl.rollout.dp: does not divide .*got tp 8 x dp 2, need a divisor of 8"),
        (8, {"placement": "split", "rollout_gpus": 8}, r"rl.rollout_gpus: leaves no GPU to train on"),
        (1, {"placement": "split"}, r"rl.rollout_gpus: leaves no GPU to train on"),
    ],
)
def test_what_leaves_nothing_to_plan_is_said(gpus: int, changed: dict[str, Any], said: str) -> None:
    job = {"model": "llama3.1-8b", "cluster": "h100", "gpus": gpus, "task": "rl", "global_batch_size": 128}
    asked = Job.model_validate(job | {"rl": Rl.model_validate(section(**changed))})
    model, cluster = load_model(asked.model), load_cluster(asked.cluster)
    assert asked.rl is not None
    with pytest.raises(InputError, match=said):
        answer(Question(model, cluster, asked, asked.rl, None, lambda of, job, most: usual()), 1)


def test_pins_bound_the_ranks_that_share_a_micro_batch_of_stated_tokens() -> None:
    assert planned(pins={"cp": "2"}, tokens_per_gpu=1280).best.configuration.cp == 2
    with pytest.raises(InputError, match="got 640, need 1280 tokens or more, with cp 1"):
        planned(pins={"cp": "1"}, tokens_per_gpu=640)


def test_a_job_that_names_no_target_goes_to_one_that_can_be_told_it() -> None:
    assert planned(gpus=16, placement="split").job.target == "slime"


def test_verl_divides_prompts_over_updates() -> None:
    with pytest.raises(InfeasibleError, match=r"rl.updates: verl divides a step's prompts .*got 128"):
        planned(target="verl", updates=128)


def test_a_job_of_another_task_has_no_section() -> None:
    with pytest.raises(InputError) as caught:
        symconfig.plan("llama3.1-8b", "h100", 8, 48, 4096, task="sft", rl=section())
    assert {problem.field for problem in caught.value.problems} == {"task", "global_batch_size", "seq_length"}
    with pytest.raises(InputError, match=r"^preference: is of another task than the section rl"):
        symconfig.plan("llama3.1-8b", "h100", 8, preference={"pairs": 64}, rl=section())
    with pytest.raises(InputError, match="task: rl needs a section rl"):
        symconfig.plan("llama3.1-8b", "h100", 8, 64, task="rl")


def test_a_plan_is_not_made_again_for_another_batch_than_its_section_says() -> None:
    with pytest.raises(InputError, match=r"global_batch_size: follows from the section rl.*got 64, need 256"):
        symconfig.replan(PlanResult(learning_plan()), global_batch_size=64)


def test_a_critic_is_looked_for_beside_the_job(tmp_path: Path) -> None:
    """Not in the folder that the program is started in, and the plan has its whole path."""
    own = data_dir("model_zoo") / "models" / "llama3.1-8b.yaml"
    (tmp_path / "small.yaml").write_text(own.read_text())
    job = tmp_path / "job.yaml"
    told = {"model": "llama3.1-8b", "cluster": "h100", "gpus": 16, "rl": section(algorithm="ppo", critic="small.yaml")}
    job.write_text(json.dumps(told))
    read = read_job(load_yaml_strict(job), model_base=tmp_path).job
    assert read.rl.critic == str(tmp_path / "small.yaml")
    job.write_text(json.dumps(told | {"rl": section(algorithm="ppo", critic="none.yaml")}))
    with pytest.raises(InputError, match=r"rl.critic: there is no such model file"):
        read_job(load_yaml_strict(job), model_base=tmp_path)
    words = verl.words(planned(gpus=16, algorithm="ppo", critic="llama3.1-8b"))
    assert "critic.model.path=meta-llama/Llama-3.1-8B" in words

"""What is read at once of a step's samples: against every other size, and as each program is told it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.existing.recover.rl.step import Packed
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.plans.rl import READING
from symconfig.render import nemo_rl, openrlhf, slime, verl
from symconfig.runs.rl.logits import VERL
from symconfig.runs.rl.phases import GAPS
from symconfig.runs.rl.trained import WEIGHTS, Trained
from tests.existing.audit.test_slime import script
from tests.existing.audit.verl_scripts import audited, of_verl, phases
from tests.runs.rl.support import phase, planned, section, step
from tests.sample_plans import sample_plan

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

"""Plans of steps and of preferences in the files of those who tune: what is written comes back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.format import picked
from symconfig.plans.configuration import DEGREES, FIELDS
from symconfig.plans.plan import Plan
from tests.existing.audit.test_tuners import FACTORY, audited, files, written
from tests.runs.rl.support import planned, section


def tuned(job: dict[str, Any], **pins: str) -> Plan:
    return symconfig.plan("qwen3-8b", "h100", 8, pins=pins, top=1, **job).plan


SEQUENCES = {"mean": 600.0, "max": 2048}
SHARDED = {"backend": "fsdp", "target": "llamafactory", "global_batch_size": 64, "seq_length": 2048}
PAIRS, FREE = ({"preference": {"pairs": 32, **loss}, "sequences": SEQUENCES} for loss in ({}, {"loss": "simpo"}))
ROOM = {"tokens_per_gpu": 4096, "response_length": {"mean": 300.0, "max": 1024}}
STEP = {"backend": "fsdp", "target": "trl", "rl": section(reference=False)}
PLANS: dict[str, Callable[[], Plan]] = {
    "trl, GRPO": lambda: planned("qwen3-8b", target="trl"),
    "nemo-rl, GRPO": lambda: planned("qwen3-8b", target="nemo-rl", pins={"pp": "1", "cp": "1"}, **ROOM),
    "openrlhf, GRPO": lambda: planned("qwen3-8b", target="openrlhf", **ROOM),
    "openrlhf, rewards": lambda: planned("qwen3-8b", target="openrlhf", reward_model={"model": "qwen3-4b"}, **ROOM),
    # Through Accelerate's own file, which TRL's script is started with in DeepSpeed's place.
    "trl, GRPO in shards": lambda: tuned(STEP, instances="1"),
    "trl, GRPO in groups": lambda: tuned(STEP, instances="2"),
    # All weights in the shards are fp32 (accelerate, fsdp2_prepare_model), those of a reference, too.
    "llamafactory, all layers recomputed": lambda: tuned(SHARDED | {"task": "sft"}, recompute="full"),
    "llamafactory, in groups": lambda: tuned(SHARDED | {"task": "sft"}, recompute="none", instances="2"),
    "llamafactory, LoRA": lambda: tuned(SHARDED | {"task": "lora", "lora": {"r": 16}}),
    "llamafactory, pairs in shards": lambda: tuned(SHARDED | PAIRS),
    "llamafactory, pairs without a reference": lambda: tuned(SHARDED | FREE),
    **{
        f"{target}, {' '.join(map(str, preference.values()))}": partial(
            tuned, {"target": target, "preference": preference, "sequences": SEQUENCES}, zero="3", mbs="..4"
        )
        for target, preference in (
            *((target, {"pairs": 64}) for target in ("trl", "llamafactory", "ms-swift-deepspeed")),
            ("trl", {"answers": 64, "loss": "kto"}),
            ("trl", {"pairs": 64, "loss": "simpo"}),
            *((target, {"pairs": 64, "loss": "reward"}) for target in ("llamafactory", "ms-swift-deepspeed")),
        )
    },
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]()
    more = {"variables": {"REWARD_MODEL": "Qwen/Qwen3-4B"}} if name.endswith("rewards") else {}
    found = audited(files(plan, tmp_path), gpus=8, prompt_length=100.0, **more)
    assert not [finding.rule for finding in found.findings if finding.severity == "error"]
    assert found.judged is not None, found.unpredicted
    again = found.judged.plan
    names = (*DEGREES, "instances", "zero_stage") if plan.rl else FIELDS
    assert picked(again.best.configuration, *names) == picked(plan.best.configuration, *names)
    if not plan.rl:
        assert again.best.predicted.peak_bytes == pytest.approx(plan.best.predicted.peak_bytes, rel=1e-3)
    if plan.tuned:
        assert (again.job.preference, again.task) == (plan.job.preference, plan.task)
    if not plan.rl and not plan.tuned:
        return
    mine, theirs = (plan.rl or plan.tuned)[0], (again.rl or again.tuned)[0]
    for one, other in zip(mine.phases, theirs.phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-3))
        assert one.holds == pytest.approx(other.holds, rel=1e-3)
    if plan.rl:
        assert (theirs.rollout_tp, theirs.memory_share, theirs.away) == (mine.rollout_tp, mine.memory_share, mine.away)


def test_pairs_have_a_better_plan_for_their_own_trainer(tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", "dpo").replace("KIND", "lora")
    found = audited(written(tmp_path, "job.yaml", text), gpus=8, plan=True)
    assert found.better is not None, found.infeasible
    assert (found.better.job.target, found.better.job.task) == ("llamafactory", "dpo")
    assert found.gain is not None
    assert found.gain > 0.0
    assert found.gain == pytest.approx(1 - found.better.tuned[0].step_s / found.judged.plan.tuned[0].step_s)


def test_ms_swift_on_megatron_is_read_and_no_plan_is_for_it(tmp_path: Path) -> None:
    """Its reference is read before the forward of the policy, whose activations are not there yet."""
    text = (
        "NPROC_PER_NODE=4 megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --tuner_type full --max_length 2048 "
        "--dataset pairs --tensor_model_parallel_size 4 --sequence_parallel true --micro_batch_size 4 "
        "--global_batch_size 16 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1\n"
    )
    found = audited(written(tmp_path, "dpo.sh", text), plan=True)
    assert found.judged is not None, found.unpredicted
    phases = {phase.name: phase.holds for phase in found.judged.plan.tuned[0].phases}
    assert "policy's activations and logits" not in phases["reference"]
    assert found.better is None
    assert "no target trains on preferences with Megatron-LM" in (found.infeasible or "")

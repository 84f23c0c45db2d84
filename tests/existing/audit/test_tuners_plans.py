"""Plans of steps and of preferences in the files of those who tune: what is written comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import symconfig
from tests.existing.audit.test_tuners import (
    FACTORY,
    audited,
    files,
    written,
)
from tests.runs.rl.support import planned, section


@pytest.mark.parametrize("target", ["trl", "nemo-rl"])
def test_a_plan_of_a_step_comes_back(target: str, tmp_path: Path) -> None:
    room = {} if target == "trl" else {"tokens_per_gpu": 4096, "response_length": {"mean": 300.0, "max": 1024}}
    plan = planned("qwen3-8b", target=target, **room)
    found = audited(files(plan, tmp_path), gpus=8, prompt_length=100.0)
    assert not [finding.rule for finding in found.findings if finding.severity != "note"]
    again = found.judged
    assert again is not None, found.unpredicted
    assert again.plan.best.configuration == plan.best.configuration
    assert again.plan.best.configuration.instances == plan.best.configuration.instances == 1
    for one, other in zip(plan.rl[0].phases, again.plan.rl[0].phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-3))


@pytest.mark.parametrize("groups", ["1", "2"])
def test_a_plan_of_a_step_in_the_shards_of_fsdp_comes_back(groups: str, tmp_path: Path) -> None:
    """Through Accelerate's own file, which TRL's script is started with in DeepSpeed's place."""
    step, pins = section(reference=False), {"instances": groups}
    plan = symconfig.plan("qwen3-8b", "h100", 8, target="trl", backend="fsdp", pins=pins, rl=step).plan
    again = audited(files(plan, tmp_path), gpus=8, prompt_length=100.0).judged
    assert again is not None
    assert again.plan.best.configuration.instances == plan.best.configuration.instances == int(groups)
    for one, other in zip(plan.rl[0].phases, again.plan.rl[0].phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-6))


@pytest.mark.parametrize(
    ("pins", "job"),
    [
        ({"recompute": "full"}, {"task": "sft"}),
        ({"recompute": "none", "instances": "2"}, {"task": "sft"}),
        ({}, {"task": "lora", "lora": {"r": 16}}),
        ({}, {"preference": {"pairs": 32}, "sequences": {"mean": 600.0, "max": 2048}}),
        ({}, {"preference": {"pairs": 32, "loss": "simpo"}, "sequences": {"mean": 600.0, "max": 2048}}),
    ],
)
def test_a_plan_of_llamafactory_in_shards_of_fsdp_comes_back(
    pins: dict[str, str], job: dict[str, Any], tmp_path: Path
) -> None:
    """All weights in the shards are fp32 (accelerate, fsdp2_prepare_model), those of a reference, too."""
    given = {"backend": "fsdp", "target": "llamafactory", "global_batch_size": 64, "seq_length": 2048} | job
    plan = symconfig.plan("qwen3-8b", "h100", 8, pins=pins, **given).plan
    again = audited(files(plan, tmp_path), gpus=8).judged
    assert again is not None
    assert (again.plan.best.configuration, again.plan.best.configuration) == (
        plan.best.configuration,
        plan.best.configuration,
    )
    assert again.plan.best.configuration.instances == plan.best.configuration.instances
    assert again.plan.best.configuration.recompute == plan.best.configuration.recompute
    if not plan.tuned:
        assert again.plan.best.predicted.peak_bytes == pytest.approx(plan.best.predicted.peak_bytes, rel=1e-3)
        return
    for one, other in zip(plan.tuned[0].phases, again.plan.tuned[0].phases, strict=True):
        assert (one.name, one.holds) == (other.name, pytest.approx(other.holds, rel=1e-3))


@pytest.mark.parametrize(
    ("target", "preference"),
    [
        *((target, {"pairs": 64}) for target in ("trl", "llamafactory", "ms-swift-deepspeed")),
        ("trl", {"answers": 64, "loss": "kto"}),
        ("trl", {"pairs": 64, "loss": "simpo"}),
        *((target, {"pairs": 64, "loss": "reward"}) for target in ("llamafactory", "ms-swift-deepspeed")),
    ],
)
def test_a_plan_of_preferences_comes_back(target: str, preference: dict[str, Any], tmp_path: Path) -> None:
    pins = {"zero": "3", "mbs": "..4"}
    sequences = {"mean": 600.0, "max": 2048}
    done = symconfig.plan(
        "qwen3-8b", "h100", 8, target=target, pins=pins, preference=preference, sequences=sequences, top=1
    )
    found = audited(files(done.plan, tmp_path), gpus=8)
    again = found.judged
    assert again is not None, found.unpredicted
    assert (again.plan.best.configuration, again.plan.best.configuration) == (
        done.plan.best.configuration,
        done.plan.best.configuration,
    )
    assert (again.plan.job.preference, again.plan.task) == (done.plan.job.preference, done.plan.task)
    for one, other in zip(done.plan.tuned[0].phases, again.plan.tuned[0].phases, strict=True):
        assert (one.name, one.bytes) == (other.name, pytest.approx(other.bytes, rel=1e-3))


def test_pairs_have_a_better_plan_for_their_own_trainer(tmp_path: Path) -> None:
    text = FACTORY.replace("STAGE", "dpo").replace("KIND", "lora")
    found = audited(written(tmp_path, "job.yaml", text), gpus=8, plan=True)
    assert found.better is not None, found.infeasible
    assert (found.better.job.target, found.better.job.task) == ("llamafactory", "dpo")
    assert found.gain is not None
    assert found.gain > 0.0
    assert found.judged is not None
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

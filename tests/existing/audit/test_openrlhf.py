"""OpenRLHF's scripts: what is read of them in either spelling, and the phases of what they start."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.existing.audit.audit import Audit
from symconfig.graph.model import parameters
from tests.existing.audit.support import text
from tests.existing.audit.verl_scripts import audited, phases

COUNT = parameters(load_model("qwen3-8b")).total
RAY = text("openrlhf_ray.sh")
OLD = text("openrlhf_old_names.sh")
TUNED = text("openrlhf_tuned.sh")


def ray(*more: str) -> Audit:
    return audited(RAY.replace("MORE", " ".join(more)))


def tuned(program: str, *more: str) -> Audit:
    return audited(TUNED.replace("PROGRAM", program).replace("MORE", " ".join(more)))


def test_both_spellings_of_its_options_are_one_run() -> None:
    new, old = ray(), audited(OLD)
    assert not new.findings
    plan, rl = new.judged.plan, new.judged.plan.job.rl
    assert (rl.prompts, rl.samples, rl.updates, rl.batch, rl.longest) == (128, 8, 4, 256, 4096)
    assert (plan.best.configuration.zero_stage, plan.best.configuration.num_microbatches) == (3, 256 / 2 / 8)
    assert plan.rl == old.judged.plan.rl
    assert plan.rl[0].away == ("optimizer state",)


def test_zero_3_keeps_sixteen_bytes_of_a_parameter_in_shards_and_the_reference_two() -> None:
    """arXiv:1910.02054: 2 of weights, 2 of gradients, 12 of fp32 weights and moments; the reference has weights."""
    found = ray()
    held = phases(found)["update"].holds
    assert held["actor's optimizer state"] == pytest.approx(12 * COUNT / 8, rel=1e-3)
    assert held["actor's gradients"] == pytest.approx(2 * COUNT / 8, rel=1e-3)
    assert held["reference"] == held["actor's weights"]
    assert "actor's optimizer state" not in phases(found)["generation"].holds
    assert "reference" not in phases(ray("--ref.offload"))["update"].holds
    assert "reference" in phases(ray("--ref.offload --ds.zero_stage 2 --train.micro_batch_size 1"))["update"].holds


def test_roles_with_gpus_of_their_own_work_beside_each_other() -> None:
    """Engines, critic and actor are three pools of 8; the engine waits for the update unless it is asynchronous."""
    apart = RAY.replace("--train.colocate_all", "--train.colocate_actor_ref").replace("group_norm", "gae")
    text = apart.replace("MORE", "--critic.num_nodes 1 --critic.num_gpus_per_node 8")
    found = audited(text)
    assert found.reader.gpus == 24
    by_name = phases(found)
    assert "critic's optimizer state" not in by_name["update"].holds
    assert not {name for name in by_name["update of the critic"].holds if name.startswith("actor's")}
    step = found.judged.plan.rl[0]
    of_critic = sum(phase.seconds for phase in step.phases if phase.name in ("values", "update of the critic"))
    of_actor = sum(phase.seconds for phase in step.phases[1:]) - of_critic
    assert step.step_s == pytest.approx(step.phases[0].seconds + max(of_actor, of_critic))
    beside = audited(text.replace("--vllm.enable_sleep", "--train.async_enable"))
    assert beside.judged.plan.rl[0].step_s == pytest.approx(max(step.phases[0].seconds, of_actor, of_critic))


def held(found: Audit, name: str) -> Any:
    assert found.judged is not None, found.unpredicted
    return next(phase for phase in found.judged.plan.tuned[0].phases if phase.name == name).holds


def test_pairs_are_twice_as_many_sequences_and_a_reference_reads_them() -> None:
    dpo, sft = tuned("train_dpo"), tuned("train_sft")
    assert (dpo.judged.plan.best.configuration.micro, sft.judged.plan.best.configuration.micro) == (4, 2)
    assert (
        dpo.judged.plan.best.configuration.num_microbatches
        == sft.judged.plan.best.configuration.num_microbatches
        == 64 / 2 / 8
    )
    assert held(dpo, "update")["reference"] == held(dpo, "update")["weights"]
    assert "reference" not in held(tuned("train_dpo", "--ref.offload"), "update")
    assert [phase.name for phase in sft.judged.plan.tuned[0].phases] == ["update"]
    # fp32 logits and their gradient: 8 bytes for each of 4 x 2,048 tokens; no variable holds them until that is copied
    # (runs/rl/test_memory.py counts them).
    logits = 8 * 4 * 2048 * 151936
    assert held(dpo, "update")["activations, head and loss"] > logits

"""Plans of steps in verl's options: what is written comes back, and what is put into a script is the plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from symconfig.api import existing
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.render import targets, verl
from symconfig.runs.rl.phases import GAPS
from tests.existing.audit.verl_scripts import MEGATRON, audited, of_verl, phases
from tests.runs.rl.support import planned

WRITTEN = {"verl": {"tp": "2", "recompute": "none"}, "verl-fsdp": {"instances": "2", "mbs": "2"}}


@pytest.mark.parametrize(
    "changed", [{}, {"reference": False}, {"updates": 1, "epochs": 2}, {"lora": {"r": 8}}, {"reward_model": {}},
                {"algorithm": "ppo", "critic": "llama3.2-3b"}],
)  # fmt: skip
@pytest.mark.parametrize("target", WRITTEN)
def test_what_is_planned_and_written_for_verl_comes_back(target: str, changed: dict[str, Any]) -> None:
    """The phases of a plan are those of the script that it becomes."""
    comes_back(target, {"pp": "1", "cp": "1", "mbs": "1..2"} | WRITTEN[target], changed)


@pytest.mark.parametrize(
    "pins", [{"tp": "2", "vpp": "1", "layout": "equal"}, {"tp": "2", "vpp": "4"}, {"tp": "1", "vpp": "2"}]
)
@pytest.mark.parametrize("updates", [2, 8])
def test_stages_take_as_many_micro_batches_as_the_script_makes(pins: dict[str, str], updates: int) -> None:
    """A search has batches that every number of replicas divides; a program makes as few micro-batches as it can."""
    comes_back("verl", {"pp": "2", "cp": "1", **pins}, {"updates": updates})


@pytest.mark.parametrize(
    "pins", [{"recompute": "full", "pp": "1"}, {"recompute": "selective:core_attn", "tp": "2", "pp": "1"}]
)
def test_a_critic_computes_again_what_its_plan_has(pins: dict[str, str]) -> None:
    plan = comes_back("verl", pins, {"algorithm": "ppo", "critic": "llama3.2-3b"})
    step, at = plan.rl[0], "critic.megatron.override_transformer_config.recompute_granularity"
    assert f"{at}={step.critic.recompute}" in verl.words(plan)
    assert parse_plan(plan.to_json()).rl == plan.rl


@pytest.mark.parametrize(("named", "fused"), [("Qwen/Qwen3-8B", False), ("meta-llama/Llama-3.1-8B", True)])
def test_kernels_that_neither_script_nor_bridge_fuses_are_counted(named: str, fused: bool, tmp_path: Path) -> None:
    """Megatron-Bridge switches them on for Llama and not for Qwen; apart, an activation is kept beside the gate."""
    words = (f"{MEGATRON}.tensor_model_parallel_size=2", f"actor_rollout_ref.model.path={named}")
    at = f"+{MEGATRON}.override_transformer_config"
    path = tmp_path / "run.sh"

    def update(*more: str) -> Any:
        path.write_text(of_verl(*words, *more, config="ppo_megatron_trainer"))
        return phases(audited(str(path)))["update"]

    plain, told = update(), update(f"{at}.bias_activation_fusion=True", f"{at}.apply_rope_fusion=True")
    layers, intermediate, tokens = 36, 12288, 6144
    kept = 0.0 if fused else layers * tokens * 2 * intermediate / 2 * (1 + GAPS)
    assert plain.bytes - told.bytes == pytest.approx(kept)
    assert (plain.seconds > told.seconds) is not fused


def comes_back(target: str, pins: dict[str, str], changed: dict[str, Any]) -> Plan:
    """Return a plan whose phases are those of the script that it becomes."""
    plan = planned(response_length={"mean": 300.0, "max": 1024}, pins=pins, target=target, **changed)
    arrays: Any = targets()[target].variables(plan)["arrays"]
    words = [word for lines in arrays.values() for (word,) in lines]
    named = plan.model.huggingface_id
    line = " ".join((f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={named}",
                     *map(shlex.quote, words),
                     f"trainer.nnodes={changed.get('gpus', 8) // 8} trainer.n_gpus_per_node=8"))  # fmt: skip
    line += " reward.reward_model.model_path=meta-llama/Llama-3.1-8B" * ("reward_model" in changed)
    found = existing.audit(line, "h100", prompt_length=100.0, response_length=300.0, plan=False)
    assert not found.findings
    for mine, theirs in zip(plan.rl[0].phases, found.judged.plan.rl[0].phases, strict=True):
        assert (mine.name, mine.bytes) == (theirs.name, pytest.approx(theirs.bytes))
        assert theirs.seconds == pytest.approx(mine.seconds, rel=1e-6)
    mine_, theirs_ = plan.rl[0], found.judged.plan.rl[0]
    assert (mine_.rollout_tp, mine_.memory_share, mine_.tokens_per_gpu, mine_.away) == (
        theirs_.rollout_tp, theirs_.memory_share, theirs_.tokens_per_gpu, theirs_.away)  # fmt: skip
    return plan

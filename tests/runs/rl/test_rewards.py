"""A network that rewards: what it takes and holds where it stands, how its step is planned, and what each program is
told of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api.planning import read_job
from symconfig.cli.main import main
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.load import load_model
from symconfig.errors import InfeasibleError, InputError
from symconfig.graph.model import parameters
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import Plan
from symconfig.plans.rl import REWARDED, REWARDING
from symconfig.render import render
from symconfig.render.rl import openrlhf, slime, verl
from symconfig.runs.rl.engine import ASLEEP_BYTES
from tests.runs.rl.support import phase, section

MODEL = "llama3.1-8b"
OF_REWARDS = "model of rewards"


@cache
def planned(target: str, reward: str | None, gpus: int = 8, rl: str = "{}", model: str = MODEL) -> Plan:
    changed = json.loads(rl) | ({} if reward is None else {"reward_model": json.loads(reward)})
    pins = {"pp": 1, "cp": 1, "recompute": "none"}  # fewer plans of the actor than a search has
    return symconfig.plan(model, "h100", gpus, target=target, rl=section(**changed), pins=pins, top=1).plan


def test_an_engine_of_rewards_sleeps_beside_the_actor_with_its_weights_on_the_host() -> None:
    plan, without = planned("verl", "{}"), planned("verl", None)
    own, step = plan.rl[0].reward, plan.rl[0]
    assert own.gpus == 0
    weights = 2 * parameters(load_model(MODEL).of_values).total / own.tp
    reading = phase(plan, "rewards")
    assert reading.holds[REWARDING] == own.memory_share * plan.cluster.gpu.memory_bytes.value
    assert weights < reading.holds[REWARDING]
    assert all(each.holds[REWARDED] == ASLEEP_BYTES for each in step.phases)
    memory = plan.best.predicted.memory
    expected = sum(memory[name] for name in step.away) + memory["weights"] + weights
    assert step.host_bytes == pytest.approx(expected)
    # A forward of all tokens costs 2 FLOP for each weight at least, at the peak of 8 GPUs at best.
    rl = plan.job.rl
    least = 2 * parameters(load_model(MODEL).of_values).active * rl.sequences * rl.mean_tokens / (8 * 989e12)
    assert least < reading.seconds < 4 * least + 2 * weights / 20e9
    assert step.step_s > without.rl[0].step_s


def test_gpus_of_its_own_reward_while_others_generate() -> None:
    plan = planned("verl", '{"placement": "apart", "gpus": 2}')
    step = plan.rl[0]
    assert (step.reward.gpus, plan.best.configuration.world_size) == (2, 6)
    beside = max(phase(plan, "generation").seconds, phase(plan, "rewards").seconds)
    rest = sum(each.seconds for each in step.phases if each.name not in ("generation", "rewards"))
    assert step.step_s == pytest.approx(beside + rest)
    assert not any(name.startswith("actor's") for name in phase(plan, "rewards").holds)
    assert all(REWARDED not in each.holds for each in step.phases)


def test_workers_of_rewards_are_sharded_as_the_actor_and_stay() -> None:
    """OpenRLHF: ZeRO-3 where the actor has it, else whole weights; on the actor's GPUs in every phase."""
    plan = planned("openrlhf", "{}")
    count = parameters(load_model(MODEL).of_values).total
    p, zero = plan.best.configuration, plan.best.configuration.zero_stage
    least = 2 * count / (p.world_size if zero == 3 else p.tp)
    for each in plan.rl[0].phases:
        assert least <= each.holds[OF_REWARDS] < least + 2.5e9  # and layers that are gathered
    assert phase(plan, "rewards").seconds == pytest.approx(phase(plan, "reference").seconds, rel=0.15)
    assert "forward" in phase(plan, "rewards").holds


def test_workers_of_rewards_apart_work_beside_the_actors() -> None:
    plan = planned("openrlhf", '{"placement": "apart", "gpus": 8}', 24, '{"placement": "split"}')
    step = plan.rl[0]
    assert step.rollout_gpus + step.reward.gpus + plan.best.configuration.world_size == 24
    rewards = phase(plan, "rewards").seconds
    trained = sum(each.seconds for each in step.phases[1:] if each.name != "rewards")
    assert step.step_s == pytest.approx(max(step.phases[0].seconds, trained, rewards))
    words = render(plan, "openrlhf")["train.sh"]
    assert "--train.colocate_actor_ref" in words
    assert "--train.colocate_all" not in words
    assert "--reward.num_gpus_per_node 8" in words


def test_trl_reads_all_responses_of_a_rank_at_once() -> None:
    """In one forward, padded to the longest: its layer has as many times what a micro-batch has."""
    few, many = (planned("trl", '{"model": "llama3.2-1b"}', rl=f'{{"prompts": {n}}}') for n in (64, 128))
    forwards = [phase(plan, "rewards").holds["forward"] for plan in (few, many)]
    ratio = (many.best.configuration.dp / few.best.configuration.dp) ** -1 * 2
    assert forwards[1] / forwards[0] == pytest.approx(ratio, rel=0.05)
    assert forwards[0] > phase(few, "reference").holds["forward"]


def test_nemo_rl_shards_it_over_gpus_of_its_own_and_waits() -> None:
    plan = planned("nemo-rl", '{"placement": "apart", "gpus": 4, "model": "llama3.2-1b"}')
    step = plan.rl[0]
    assert step.step_s == pytest.approx(sum(each.seconds for each in step.phases))
    count = parameters(load_model("llama3.2-1b").of_values).total
    assert phase(plan, "rewards").holds[OF_REWARDS] == pytest.approx(4 * count / 4)  # fp32 shards of FSDP
    files = render(plan, "nemo-rl")
    assert "grpo_rm_1B.yaml" in files["grpo.yaml"]
    assert '"cluster.gpus_per_node=$((GPUS_PER_NODE + 4))"' in files["train.sh"]


def test_a_service_takes_nothing_here() -> None:
    served = '{"placement": "server", "url": "http://rewards:8000"}'
    plan = planned("slime", served)
    assert plan.rl[0].reward is None
    assert all("rewards" not in each.name for each in plan.rl[0].phases)
    words = slime.words(plan)
    assert words[words.index("--rm-url") + 1] == "http://rewards:8000"
    assert "remote_rm" in render(plan, "slime")["train.sh"]
    assert "REWARD_DEFAULT=http://rewards:8000" in render(planned("openrlhf", served), "openrlhf")["train.sh"]


def test_verl_is_told_of_the_engine_that_rewards() -> None:
    words = verl.words(planned("verl", '{"placement": "apart", "gpus": 2}'))
    assert {
        "reward.reward_model.enable=True",
        "reward.reward_model.enable_resource_pool=True",
        "reward.reward_model.n_gpus_per_node=2",
        "reward.reward_model.nnodes=1",
    } <= set(words)
    assert "reward.reward_model.enable_resource_pool=False" in verl.words(planned("verl", "{}"))


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"gpus": 2}, r"rl.reward_model.gpus: is for placement: apart \(got placement: colocated\)"),
        ({"placement": "server"}, r"rl.reward_model: an address, url, and placement: server go together"),
        ({"url": "http://a"}, r"rl.reward_model: an address, url, and placement: server go together"),
        ({"placement": "server", "url": "a", "model": MODEL}, r"the model of placement: server is the server's"),
        ({"placement": "beside"}, r"rl.reward_model.placement"),
        ({"placement": "apart", "gpus": 8}, r"rl.reward_model.gpus: leaves no GPU to train on \(got 8, need fewer th"),
        ({"placement": "apart", "gpus": 12}, r"rl.reward_model.gpus: are whole nodes .*got 12, need a multiple of 8"),
        ({"model": "none.yaml"}, r"there is no such model file"),
    ],
)
def test_what_contradicts_is_said(reward: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        symconfig.plan(MODEL, "h100", 8, target="verl", rl=section(reward_model=reward))


@pytest.mark.parametrize(
    ("target", "changed", "said"),
    [
        ("slime", {"reward_model": {}}, r"rl.reward_model.placement: slime does not support it .*server"),
        (
            "trl",
            {"reward_model": {"placement": "apart"}},
            r"rl.reward_model.placement: trl does not support it .*colocated",
        ),
        ("openrlhf", {"reward_model": {"placement": "apart"}}, r"OpenRLHF's models are all on the engine's GPUs, or n"),
        ("verl", {"rollout": {"sleep_level": 1}}, r"rl.rollout.sleep_level: verl does not support it .*2"),
        ("trl", {"rollout": {"dp": 2}}, r"rl.rollout.dp: trl does not support it \(got 2, need 1\)"),
    ],
)
def test_what_a_program_cannot_run_is_said(target: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InfeasibleError, match=said):
        symconfig.plan(MODEL, "h100", 8, target=target, rl=section(**changed))


def test_ranks_of_data_are_planned_and_told() -> None:
    ranks = '{"rollout": {"tp": 1, "dp": 8}}'
    plan = planned("verl", None, 16, ranks, "qwen3-30b-a3b")
    assert (plan.rl[0].rollout_tp, plan.rl[0].rollout_dp, plan.rl[0].replica_gpus) == (1, 8, 8)
    at = "actor_rollout_ref.rollout"
    words = verl.words(plan)
    assert {f"{at}.data_parallel_size=8", f"{at}.expert_parallel_size=8"} <= set(words)
    told = slime.words(planned("slime", None, 16, ranks, "qwen3-30b-a3b"))
    options = ("--rollout-num-gpus-per-engine", "--sglang-dp-size", "--sglang-ep-size")
    assert [told[told.index(name) + 1] for name in options] == ["8", "8", "8"]
    assert "--sglang-enable-dp-attention" in told
    with pytest.raises(InfeasibleError, match=r"rl.rollout.dp: openrlhf does not support it"):
        render(plan, "openrlhf")


def test_a_plan_and_its_files_say_where_rewards_come_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned("verl", "{}")
    assert parse_plan(plan.to_json()).rl == plan.rl
    sentence = "a network of the actor's size on the GPUs that train, by engines on 1 GPU each"
    assert sentence in render(plan, "verl")["REPORT.md"]
    job = {"model": MODEL, "cluster": "h100", "gpus": 8, "target": "verl", "rl": section(reward_model={})}
    job |= {"pins": {"pp": 1, "cp": 1}}
    (file := tmp_path / "job.yaml").write_text(json.dumps(job))
    assert main(["plan", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert sentence in shown
    assert "engine of rewards: weights, keys and values" in shown
    (saved := tmp_path / "plan.json").write_text(plan.to_json())
    assert main(["explain", str(saved)]) == 0
    assert "rewards" in capsys.readouterr().out


def test_a_model_of_rewards_is_looked_for_beside_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        json.dumps({"model": MODEL, "cluster": "h100", "gpus": 8, "rl": section(reward_model={"model": "absent.yaml"})})
    )
    with pytest.raises(InputError, match=r"rl.reward_model.model: there is no such model file"):
        read_job(load_yaml_strict(tmp_path / "job.yaml"), model_base=tmp_path)


def test_openrlhf_trains_a_critic_as_the_actor_beside_it_or_apart() -> None:
    """One ZeRO stage and one choice of recompute are told for both."""
    plan = planned("openrlhf", None, 16, '{"algorithm": "ppo"}')
    words = openrlhf.words(plan)
    assert words[words.index("--algo.advantage.estimator") + 1] == "gae"
    assert {"--critic.adam.lr", "--train.colocate_all"} <= set(words)
    zero, p = plan.best.configuration.zero_stage, plan.best.configuration
    critic = parameters(load_model(MODEL).of_values).total
    states = phase(plan, "update of the critic").holds["critic's optimizer state"]
    assert states == pytest.approx(12 * critic / (p.dp if zero else 1) / p.tp, rel=0.02)
    step = '{"algorithm": "ppo", "critic_gpus": 8, "placement": "split", "rollout_gpus": 8}'
    apart = planned("openrlhf", None, 24, step)
    assert apart.best.configuration.world_size == 8
    by_pool = [
        sum(each.seconds for each in apart.rl[0].phases[1:] if ("critic" in each.name or each.name == "values") == own)
        for own in (False, True)
    ]
    assert apart.rl[0].step_s == pytest.approx(max(apart.rl[0].phases[0].seconds, *by_pool))
    assert not any(name.startswith("critic's") for name in phase(apart, "update").holds)
    text = render(apart, "openrlhf")["train.sh"]
    assert "--train.colocate_actor_ref" in text
    assert "--critic.num_gpus_per_node 8" in text
    for target, gpus, changed, said in (
        ("verl", 16, {}, r"rl.critic_gpus: verl does not support it \(got 8"),
        ("openrlhf", 16, {}, r"rl.critic_gpus: OpenRLHF's models are all on the engine's GPUs"),
        (
            "openrlhf",
            32,
            {"placement": "split", "reward_model": {}},
            r"rl.reward_model.placement: OpenRLHF's network of rewards is beside the actor where its critic is",
        ),
    ):
        ppo = section(algorithm="ppo", critic_gpus=8, **changed)
        with pytest.raises(InfeasibleError, match=said):
            symconfig.plan(MODEL, "h100", gpus, target=target, rl=ppo)
    with pytest.raises(InputError, match=r"grpo has no critic \(got critic_gpus 8"):
        symconfig.plan(MODEL, "h100", 16, rl=section(critic_gpus=8))

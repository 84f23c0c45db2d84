"""A planned step: the phases against their definitions, the choice against all others, and what cannot be run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import symconfig
from symconfig.cli.main import main
from symconfig.cost.lattice import OF_LAYER
from symconfig.errors import InfeasibleError, InputError
from symconfig.format import picked, seconds
from symconfig.graph.model import parameters
from symconfig.plans.file import parse_plan
from symconfig.plans.rl import BUSIEST
from symconfig.render.rl import verl
from symconfig.report.page import plan_page
from symconfig.report.rl import blocks, compared
from symconfig.runs.rl.engine import ASLEEP_BYTES, UNCERTAIN
from symconfig.runs.rl.layouts import preferred
from symconfig.runs.rl.logits import VERL
from symconfig.runs.rl.phases import GAPS
from symconfig.runs.rl.trained import Trained
from symconfig.schedule.simulate import simulate
from symconfig.solve.choice import TIE, complexity, unusual
from symconfig.solve.costed import costed, times
from symconfig.solve.interval import uneven
from symconfig.solve.predict import restore
from symconfig.solve.usual import PREMIUM, premium
from tests.runs.rl.support import phase, planned, section, usual
from tests.sample_plans import learning_plan

GIB = 2.0**30


def test_the_phases_make_the_step_and_a_plain_one_of_the_shortest_is_first() -> None:
    plan = usual()
    for step in plan.rl:
        assert step.step_s == pytest.approx(sum(each.seconds for each in step.phases))
        assert all(each.bytes == pytest.approx(sum(each.holds.values())) for each in step.phases)
        assert max(each.bytes for each in step.phases) <= plan.usable_bytes
    first, *others = [step.step_s for step in plan.rl]
    assert others == sorted(others)
    points = [restore(plan, each) for each in plan.ranked]
    scores = [step.step_s * float(premium(len(unusual(each)))) for each, step in zip(points, plan.rl, strict=True)]
    assert first <= TIE * min(others) or len(unusual(points[0])) < max(map(len, map(unusual, points)))
    close = [complexity(each) for each, score in zip(points, scores, strict=True) if score <= TIE * min(scores)]
    assert complexity(points[0]) == min(close)


def test_a_batch_of_packed_sequences_has_all_tokens() -> None:
    plan = usual()
    rl, batch = plan.job.rl, plan.best.configuration
    assert batch.seq_length >= rl.longest
    assert batch.global_batch * batch.seq_length >= rl.batch * rl.mean_tokens
    assert plan.rl[0].tokens_per_gpu * plan.best.configuration.cp == batch.micro * batch.seq_length
    update = phase(plan, "update").seconds
    fill = rl.batch * rl.mean_tokens / (batch.global_batch * batch.seq_length)
    time = plan.best.predicted.time
    fixed = time["data-parallel communication"] + time["optimizer"] + time["overhead"]
    assert update == pytest.approx(rl.updates * (fill * (plan.best.predicted.step_s - fixed) + fixed))


@pytest.mark.parametrize(
    "pins", [{"tp": "1", "pp": "1", "cp": "1"}, {"pp": "2", "vpp": "1", "cp": "1", "layout": "equal"}]
)
def test_a_forward_alone_takes_what_its_schedule_takes(pins: dict[str, str]) -> None:
    """Against the pipeline's own simulation with backwards that take no time, and an update against both."""
    plan = planned(pins=pins)
    actor = Trained(plan, plan.best, 1.0, VERL)
    found, parts = actor.prospect, actor.parts
    made = times(found, parts)
    nothing = 0.0 * made.forward
    alone = replace(made, recompute=nothing, backward=nothing, weight=nothing, gather=None, reduce=None)
    m = plan.best.configuration.num_microbatches
    simulated = simulate(alone, m, parts.setting.microbatch_group, found.beside_another).step_s
    assert actor.forward_s(1) == pytest.approx(simulated, rel=0.15)
    assert 0.2 < actor.forward_s(1) / actor.update_s(1) < 0.5


def test_what_is_away_is_on_the_host_and_not_on_the_gpu() -> None:
    plan = usual()
    for candidate, step in zip(plan.ranked, plan.rl, strict=True):
        memory = candidate.predicted.memory
        resting = next(each for each in step.phases if each.name == "generation").holds
        for name in ("weights", "optimizer state"):
            assert (f"actor's {name}" in resting) == (name not in step.away)
        assert ("actor's gradients" in resting) == ("weights" not in step.away)
        reference = memory["weights"]
        assert step.host_bytes == pytest.approx(sum(memory[name] for name in step.away) + reference)


def test_what_comes_and_goes_beside_an_engine_leaves_gaps() -> None:
    plan = usual()
    memory, holds = plan.best.predicted.memory, phase(plan, "update").holds
    passing = sum(memory[name] for name in ("activations", "head and loss", "working set"))
    assert holds["activations, head and loss"] >= (1 + GAPS) * passing * (1 - 1e-9)
    assert holds["engine's process"] == ASLEEP_BYTES


def test_phases_hold_what_the_busiest_gpus_experts_have_beyond_the_mean() -> None:
    """As of the loads that a search lets plans fit with: an update's activations are those of such a point, and a
    forward without logits that of its layer of the busiest rank. Loads that a job states are taken as they are."""
    pins = {"tp": "1", "pp": "1", "cp": "1", "ep": "8", "recompute": "none"}
    plan = planned("qwen3-30b-a3b", 32, pins=pins, tokens_per_gpu=2560, prompts=512)
    update, read = phase(plan, "update").holds, phase(plan, "log-probabilities").holds
    actor = Trained(plan, plan.best, 1.0, VERL)
    point = replace(actor.prospect, request=replace(actor.prospect.request, uneven=True))
    kept = [float(costed(each).cost.memory["activations"].max()) for each in (actor.prospect, point)]
    assert update[BUSIEST] == pytest.approx((1 + GAPS) * (kept[1] - kept[0]), rel=1e-6)
    assert update[BUSIEST] > 0.01 * GIB
    assert BUSIEST not in read  # logits are more than a layer
    load = float(uneven(plan.model, np.array([8.0]), "rl")[OF_LAYER][0])
    logits = replace(VERL, forward=0.0, entropy=0.0)
    layers = Trained(plan, plan.best, 1.0, logits)
    assert 1.0 < layers.busiest.forward_bytes() / layers.forward_bytes() <= load
    stated = symconfig.plan(
        "qwen3-30b-a3b",
        "h100",
        32,
        pins=pins,
        rl=section(tokens_per_gpu=2560, prompts=512),
        limits={"expert_imbalance": 1.0},
    ).plan
    assert BUSIEST not in phase(stated, "update").holds


def test_no_other_engine_or_share_makes_the_step_shorter() -> None:
    """Every engine and every share, pinned in the job: none is shorter by more than what shares are told apart by."""
    best = usual().rl[0].step_s
    for tp in (1, 2, 8):
        for share in (0.3, 0.6):
            try:
                other = planned(rollout={"tp": tp, "memory_share": share}).rl[0]
            except InfeasibleError:
                continue
            assert (other.rollout_tp, other.memory_share) == (tp, share)
            assert other.step_s >= best * 0.99


@pytest.mark.parametrize("target", ["verl", "slime"])
def test_the_engine_has_the_largest_share_beside_what_rests(target: str) -> None:
    """The next share that people write is too large, by sizes of each engine's own definition: of the whole GPU (vLLM),
    or of what its process leaves, beside 1.5 MiB of activations for each of 8,192 tokens (SGLang's own rule). Of a
    process 15 % are left for gaps, of Megatron-LM's tensors 2 %."""
    plan = planned(target=target)
    step, memory = plan.rl[0], plan.cluster.gpu.memory_bytes.value
    holds = phase(plan, "generation").holds
    processes = holds["libraries"] + holds["engine's process"]
    rests = 1.02 * sum(size for name, size in holds.items() if name.startswith("actor's")) + 1.15 * processes
    static = target == "slime"

    def taken(share: float) -> float:
        engine = share * (memory - 2 * GIB) + 1.5 * 2**20 * 8192 if static else share * memory
        return engine + rests

    assert taken(step.memory_share) <= plan.usable_bytes < taken(step.memory_share + 0.05)
    assert 0 < step.at_longest <= step.at_once
    pinned = planned(target=target, rollout={"memory_share": 0.3})
    assert pinned.rl[0].step_s >= 0.95 * step.step_s


def test_adapters_need_no_second_copy_and_go_to_the_engine_alone() -> None:
    """The frozen weights are the reference and the engine's already."""
    plan, whole = planned(lora={"r": 16}), usual()
    moved, reference = phase(plan, "weights to the engine"), phase(plan, "reference")
    assert "reference" not in reference.holds
    assert reference.holds["actor's weights"] == plan.best.predicted.memory["weights"]
    count = parameters(plan.model)
    assert moved.seconds < 0.05 * phase(whole, "weights to the engine").seconds
    assert count.trainable / count.total < 0.01
    words = verl.words(plan)
    assert "actor_rollout_ref.model.lora.rank=16" in words
    with pytest.raises(InfeasibleError, match=r"adapter: Megatron-Bridge keeps no base weights in 4 bits"):
        planned(lora={"method": "qlora"})


def test_a_critic_has_the_actors_degrees_unless_its_own_make_a_shorter_step() -> None:
    """Those of its own are the fastest of its updates alone, which may leave no room beside the plainest actor."""
    lengths = {"prompt_length": {"mean": 200, "max": 1024}, "response_length": {"mean": 1500, "p95": 4000, "max": 8192}}
    plan = planned("llama3.1-8b", algorithm="ppo", prompts=512, samples=4, updates=4, **lengths)
    degrees, step = plan.best.configuration, plan.rl[0]
    assert (degrees.tp, degrees.pp, degrees.cp) == (2, 1, 1)
    assert step.critic is not None
    assert picked(degrees, *("tp", "pp", "vpp", "cp", "ep", "etp")) == picked(
        step.critic, *("tp", "pp", "vpp", "cp", "ep", "etp")
    )
    assert "The critic has the actor's degrees.\n" in str(blocks(plan)[-1])
    other = replace(plan, rl=(replace(step, critic=replace(step.critic, tp=4)), *plan.rl[1:]))
    assert "The critic has tp 4, all else as the actor." in str(blocks(other)[-1])


def test_an_engine_of_its_own_generates_beside_the_update() -> None:
    plan = planned(gpus=16, target="slime", placement="split")
    step = plan.rl[0]
    generation, *rest = (each.seconds for each in step.phases)
    assert step.step_s == pytest.approx(max(generation, sum(rest)))
    assert step.rollout_gpus + plan.best.configuration.world_size == 16
    with pytest.raises(InfeasibleError, match=r"rl.placement: verl does not support it"):
        planned(gpus=16, target="verl", placement="split")


def test_a_rate_of_a_log_is_taken_as_it_is() -> None:
    plan = planned(rollout={"tokens_per_s_per_gpu": 2000.0})
    rl, step = plan.job.rl, plan.rl[0]
    assert rl is not None
    assert step.generated_per_s_per_gpu == pytest.approx(2000.0)
    assert step.interval[1] / step.step_s < usual().rl[0].interval[1] / usual().rl[0].step_s < UNCERTAIN[1]


def test_a_plan_is_read_back_and_an_edit_is_seen() -> None:
    text = usual().to_json()
    assert parse_plan(text).rl == usual().rl
    with pytest.raises(InputError, match=r"rl.*was edited"):
        parse_plan(text.replace('"rollout_gpus": 8', '"rollout_gpus": 4'))


@pytest.mark.parametrize(
    ("stays", "said"), [(0.0, "optimizer state"), (0.25, "optimizer state; 25 % of the optimizer always")]
)
def test_an_optimizer_that_steps_on_the_host_is_in_the_table(stays: float, said: str) -> None:
    plan = learning_plan(away=("optimizer state",))
    best = replace(plan.best, configuration=replace(plan.best.configuration, optimizer_offload=stays))
    (row,) = compared([("1", replace(plan, best=best))]).rows
    assert said in row


def test_an_actor_of_deepspeed_is_an_ordinary_plan_in_the_same_phases() -> None:
    plan = planned(target="openrlhf")
    assert (plan.best.target.backend, plan.best.configuration.pp) == ("deepspeed", 1)
    assert {step.away for step in plan.rl} <= {(), ("optimizer state",)}
    for candidate, step in zip(plan.ranked, plan.rl, strict=True):
        memory = candidate.predicted.memory
        asleep = 2 * parameters(plan.model).total / step.rollout_tp  # OpenRLHF's vLLM sleeps at level 1
        states = sum(memory[name] for name in step.away) + candidate.predicted.host_bytes + asleep
        assert step.host_bytes == pytest.approx(states)
        assert step.phases[0].holds["reference"] == memory["weights"]  # no offload_param below ZeRO-3


def test_sharded_weights_are_gathered_on_their_way_to_the_engine() -> None:
    """ZeRO-3 sends each GPU all of the weights but its own share, as a ring does; ZeRO-1 has them there."""
    whole, sharded = (
        planned(target="openrlhf", pins={"zero": zero, "tp": "1", "optimizer_offload": "0"}, gpus=16)
        for zero in ("1", "3")
    )
    assert phase(whole, "weights to the engine").seconds == 0.0
    total = 2.0 * parameters(sharded.model).total
    least = total * 15 / 16 / 1e12
    assert least < phase(sharded, "weights to the engine").seconds


def test_an_actor_of_fsdp_rests_in_fp32_shards_and_has_gradients_in_an_update_alone() -> None:
    """verl/workers/engine/fsdp: fp32 weights, their gradients and two moments, over all 8 ranks."""
    plan = planned(target="verl-fsdp")
    each = parameters(plan.model).total / 8
    update, generation = phase(plan, "update").holds, phase(plan, "generation").holds
    for name, width in (("weights", 4), ("gradients", 4), ("optimizer state", 8)):
        assert update[f"actor's {name}"] == pytest.approx(width * each)
    away = plan.rl[0].away
    assert {name for name in generation if name.startswith("actor's")} == {
        f"actor's {name}" for name in ("weights", "optimizer state") if name not in away
    }
    assert (plan.best.target.backend, plan.best.configuration.zero_stage, plan.best.configuration.tp) == ("fsdp", 3, 1)


def test_sequences_that_are_not_packed_are_planned_as_so_many() -> None:
    plan = planned(target="trl")
    rl, batch = plan.job.rl, plan.best.configuration
    assert plan.job.packing is None
    assert (batch.seq_length, batch.global_batch) == (rl.longest, rl.batch)
    assert all("reference" in each.holds for each in plan.rl[0].phases)  # TRL keeps it on the GPU
    whole, took = rl.updates * plan.best.predicted.step_s, phase(plan, "update").seconds
    assert 1.5 * rl.mean_tokens / rl.longest * whole < took < whole  # padded to the longest that a rank generates


def test_pinned_chunks_hold_where_a_whole_step_cannot_tell() -> None:
    long: dict[str, Any] = {"response_length": {"mean": 1500.0, "p95": 4000.0, "max": 8192}, "prompts": 512}
    long["prompt_length"] = {"mean": 200.0, "max": 1024}
    pins = {"tp": "2", "pp": "4", "cp": "1", "vpp": "..4"}
    plan = planned("qwen3-next-80b-a3b", 64, pins, samples=8, updates=4, **long)
    assert plan.best.configuration.vpp <= 4
    assert plan.rl[0].step_s <= TIE * PREMIUM[-1] * min(step.step_s for step in plan.rl)


def test_every_answer_about_a_plan_shows_its_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`explain`, `replan` and the page: a row a phase, and the whole step."""
    (file := tmp_path / "plan.json").write_text(usual().to_json())
    for command in (["explain", str(file)], ["replan", str(file), "--html", str(tmp_path / "page.html")]):
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert f"A whole step takes {seconds(usual().rl[0].step_s)} s" in shown
        assert all(re.search(f"^{each.name} ", shown, re.MULTILINE) for each in usual().rl[0].phases)
    page = plan_page(usual(), {})
    assert all(f">{each.name}</td>" in page for each in usual().rl[0].phases)


def test_replicas_are_no_wider_than_they_need_to_be() -> None:
    """What a model of decoding cannot tell apart goes to fewer GPUs."""

    def layout(step_s: float, gpus: int) -> Any:
        replica = SimpleNamespace(engine=SimpleNamespace(gpus=gpus))
        return SimpleNamespace(step_s=step_s, generation_s=50.0, replica=replica)

    wide, narrow, later, slow = layout(100.0, 8), layout(104.0, 4), layout(104.9, 4), layout(105.2, 2)
    assert preferred([wide, narrow, later, slow]) == [narrow, wide, later, slow]
    assert preferred([wide, slow]) == [wide, slow]
    assert preferred([]) == []
    step, pinned = planned("llama3.2-1b").rl[0], planned("llama3.2-1b", rollout={"tp": 2}).rl[0]
    assert step.rollout_tp == 1
    assert step.step_s <= pinned.step_s + 0.1 * pinned.phases[0].seconds

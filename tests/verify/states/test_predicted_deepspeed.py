"""The cost model's weights, gradients and optimizer state against the exact ones of DeepSpeed's first and last rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render.deepspeed import config
from symconfig.render.deepspeed_limits import refuse
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.verify.states.deepspeed import (
    ADAM,
    ALIGNMENT,
    HALF,
    STEP,
    Local,
    Settings,
    flattened,
    local,
    optimizer_groups,
    rank_states,
)
from tests.sample_plans import sample_plan

_PLANS: dict[str, dict[str, Any]] = {
    "without ZeRO": {"dp": 4, "zero_stage": 0},
    "ZeRO 1": {"dp": 16, "zero_stage": 1},
    "ZeRO 2": {"dp": 6, "zero_stage": 2},
    "ZeRO 3": {"dp": 64, "zero_stage": 3},
    "AutoTP": {"tp": 2, "dp": 4, "zero_stage": 1},
    "AutoTP, ZeRO 2": {"tp": 4, "dp": 3, "zero_stage": 2},
    "AutoTP, ZeRO 3": {"tp": 4, "dp": 16, "zero_stage": 3},
    "ZeRO 2 of two": {"dp": 2, "zero_stage": 2},
    "ZeRO 2 of many": {"dp": 512, "zero_stage": 2},
    "AutoEP, ZeRO 2": {"ep": 8, "dp": 16, "zero_stage": 2},
    "AutoEP, ZeRO 2 of many": {"ep": 8, "dp": 64, "zero_stage": 2},
    "AutoEP, ZeRO 2, shares that do not divide": {"ep": 4, "dp": 24, "zero_stage": 2},
    "AutoEP, ZeRO 1": {"ep": 8, "dp": 16, "zero_stage": 1},
    "AutoEP, ZeRO 3": {"ep": 4, "dp": 32, "zero_stage": 3},
    "Ulysses, ZeRO 2": {"cp": 4, "dp": 4, "zero_stage": 2, "cp_comm": "a2a"},
    "Ulysses, ZeRO 3": {"cp": 2, "dp": 8, "zero_stage": 3, "cp_comm": "a2a"},
    "ZeRO 1, offload": {"dp": 8, "zero_stage": 1, "optimizer_offload": 1.0},
    "ZeRO 2, offload": {"dp": 8, "zero_stage": 2, "optimizer_offload": 1.0},
    "AutoTP, ZeRO 2, offload": {"tp": 2, "dp": 8, "zero_stage": 2, "optimizer_offload": 1.0},
    "ZeRO 3, offload": {"dp": 8, "zero_stage": 3, "optimizer_offload": 1.0},
}
_MODELS = [model for model in map(load_model, zoo_models()) if model.adapter is None or model.adapter.method == "lora"]
# Every model is held against a stage without groups of ranks, each kind of groups, and a stage that shards weights. The
# other ways to split see lists of sizes only, of which a model of each structure has all kinds.
_EVERY_MODEL = {kind for kind in _PLANS if "AutoEP" in kind} | {"ZeRO 1", "ZeRO 3", "AutoTP"}
_SOME = {
    "gemma2-9b", "gpt-oss-120b", "gpt3-175b", "granite-4.0-h-small", "llama2-70b-lora", "llama2-7b", "llama3.1-8b",
    "mixtral-8x7b", "qwen2.5-7b", "qwen3-30b-a3b",
}  # fmt: skip


def plans(kind: str) -> Iterator[Plan]:
    """Of the models that DeepSpeed runs so; AutoTP with the embedding for the head, too, and without."""
    for model in _MODELS if kind in _EVERY_MODEL else [model for model in _MODELS if model.name in _SOME]:
        for tied in (False, True) if "tp" in _PLANS[kind] else (model.tie_word_embeddings,):
            asked = model.model_copy(update={"tie_word_embeddings": tied})
            given = {"ep": 1, "tp": 1, "cp": 1, "sequence_parallel": False, "grad_bytes": 2, **_PLANS[kind]}
            plan = sample_plan(asked, "h100", backend="deepspeed", **given)
            try:
                refuse(plan)
            except InfeasibleError:
                continue
            yield plan


def predicted(plan: Plan) -> dict[str, float]:
    """On the device. ZeRO 3 without the blocks that the model counts as gathered."""
    again = costed(restore(plan, plan.best))
    held = {name: float(again.cost.memory[name][0, 0, 0, 0]) for name in ("weights", "gradients", "optimizer state")}
    if plan.best.options.zero_stage == 3:
        held["weights"] -= 2 * HALF * float(again.sums.largest[0, 0])
    return held


def exact(plan: Plan, settings: Settings, mine: Sequence[Local], rank: int) -> dict[str, float]:
    """Of one rank. ZeRO 3 without the small parameters that it leaves whole, ZeRO 1 with the gradients that it adds up
    until the last microbatch's backward shares them out."""
    world = plan.best.parallel.world_size
    found = rank_states(plan.model, config(plan), world, rank)
    weights, gradients = found.parameters.device, found.gradients.device
    if settings.stage == 3:
        cut = {"AutoTP": settings.tp, "AutoEP's experts": settings.ep}
        over = [(parameter.elements, world // cut.get(parameter.made_by, 1)) for parameter in mine]
        weights -= HALF * sum(ceil(size / ranks) * ranks for size, ranks in over if size <= settings.threshold)
    if settings.stage == 1:
        gradients = HALF * found.trained
    return {"weights": weights, "gradients": gradients, "optimizer state": found.optimizer.device}


@pytest.mark.parametrize("kind", _PLANS)
def test_what_is_predicted_is_what_is_held_but_for_padding(kind: str) -> None:
    """Padding: less than two elements of a flat group or one of a parameter, and Adam's count of steps beside each."""
    count = 0
    for plan in plans(kind):
        ours, settings = predicted(plan), Settings.of(config(plan), plan.best.parallel.world_size)
        for rank in (0, plan.best.parallel.world_size - 1):
            mine = local(plan.model, settings, rank)
            trained = [parameter.elements for parameter in mine if parameter.trained]
            room = {
                "weights": 0 if settings.stage == 0 else 2 * HALF * len(mine) * plan.best.parallel.world_size,
                "gradients": 2 * HALF * len(trained),
                "optimizer state": (2 * ADAM + STEP) * len(trained),
            }
            held = exact(plan, settings, mine, rank)
            if settings.stage == 2 and not settings.offload:  # of the rank that has most, below
                del held["gradients"]
            for name, real in held.items():
                assert -1 < real - ours[name] <= room[name], (plan.model.name, rank, name, real, ours[name])
        count += 1
    assert count >= 3


@pytest.mark.parametrize("kind", [kind for kind in _PLANS if "ZeRO 2" in kind and "offload" not in kind])
def test_zero_2_keeps_no_more_gradients_than_predicted(kind: str) -> None:
    """On no rank but for padding. Above its share at most two parameters of each group, nor half as much again."""
    count = 0
    for plan in plans(kind):
        name, world, ours = plan.model.name, plan.best.parallel.world_size, predicted(plan)["gradients"]
        settings = Settings.of(config(plan), world)
        groups = optimizer_groups(local(plan.model, settings, 0))
        every = [[flattened(group, settings, world, rank) for group in groups] for rank in range(world)]
        kept = [HALF * sum(flat.inside + flat.padding_here for flat in flats) for flats in every]
        for rank in (0, world - 1):
            assert kept[rank] == rank_states(plan.model, config(plan), world, rank).gradients.device
        padding = HALF * ALIGNMENT * world * len(groups)
        assert max(kept) <= ours + padding, (name, max(kept), ours)
        above = ours - HALF * sum(flat.part for flat in every[0])
        assert above <= 2 * HALF * sum(flat.largest for flat in every[0]), (name, above)
        assert ours <= 1.5 * max(kept), (name, max(kept), ours)
        count += 1
    assert count >= 3

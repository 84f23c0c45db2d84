"""The cost model's weights, gradients and optimizer state against the exact ones of every stage's ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from symconfig.cost.step import states
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.verify.states.megatron import MAIN_BYTES, MOMENTS_BYTES, WEIGHT_BYTES, rank_states
from tests.sample_plans import sample_plan
from tests.zoo_limits import NOT_IN_MEGATRON

BASES = [
    name
    for name in zoo_models()
    if load_model(name).adapter is None and NOT_IN_MEGATRON.get(name, "rope").startswith("rope")
]
_PLANS = {
    "stages": {"tp": 2, "pp": 4, "dp": 8, "ep": 4},
    "cp": {"tp": 1, "pp": 2, "dp": 16, "cp": 2, "ep": 8},
    "odd dp": {"tp": 2, "pp": 2, "dp": 7, "ep": 2},
    "replicated": {"tp": 2, "pp": 1, "dp": 2, "zero_stage": 0, "overlap_param_gather": False},
    "ZeRO 2": {"tp": 1, "pp": 1, "dp": 6, "zero_stage": 2},
    "ZeRO 3": {"tp": 1, "pp": 1, "dp": 5, "zero_stage": 3},
    "ZeRO 3 beside others": {"tp": 2, "pp": 1, "dp": 4, "cp": 2, "ep": 8, "zero_stage": 3},
}
_EVERY_MODEL = ("stages", "ZeRO 3")
_SOME = {"deepseek-v3", "gpt-oss-120b", "gpt3-175b", "llama2-7b", "llama3.1-8b", "mixtral-8x7b"}


def plan_of(model: str, kind: str) -> Plan:
    given = {"vpp": 1, "cp": 1, "etp": 1, "ep": 1, **_PLANS[kind]}
    described = load_model(model)
    return sample_plan(described, "h100", **{**given, "ep": given["ep"] if described.experts else 1})


def shares(plan: Plan) -> Iterator[tuple[str, int, float, float]]:
    """Of every stage: what is predicted of a rank, and the mean of what its ranks hold, both in bytes, for each part.

    Without padding: of parameters, or of those elements of them that are in the rank's shard. What is predicted is what
    lasts between steps: no queue of gradients, nor more weights gathered ahead than the next block's.
    """
    found = costed(restore(plan, plan.best))
    framework = replace(found.setting.framework, queued_elements=0.0)
    lasting = states(found.sums, found.points, replace(found.setting, framework=framework))
    p, options = plan.best.parallel, plan.best.options
    ranks = p.world_size // p.pp
    for stage in range(p.pp):
        first = stage * ranks
        held = [rank_states(plan, rank) for rank in range(first, first + ranks)]
        owned = sum(buffer.owned for states in held for buffer in states.buffers) / ranks
        whole = sum(states.parameters for states in held) / ranks
        parts = {
            "weights": (WEIGHT_BYTES, 3),
            "gradients": (options.grad_bytes, 2),
            "optimizer state": (MAIN_BYTES + MOMENTS_BYTES, 1),
        }
        for name, (element_bytes, sharded_from) in parts.items():
            part = lasting[name]
            ours = float(part[min(stage, part.shape[0] - 1), 0, 0])
            if name == "weights" and options.zero_stage == 3:  # two blocks are gathered besides
                ours -= 2 * WEIGHT_BYTES * float(found.sums.largest[stage, 0])
            yield name, stage, ours, element_bytes * (owned if options.zero_stage >= sharded_from else whole)


@pytest.mark.parametrize("kind", _PLANS)
def test_what_is_predicted_is_what_is_held_but_for_padding(kind: str) -> None:
    for model in BASES if kind in _EVERY_MODEL else sorted(_SOME.intersection(BASES)):
        for name, stage, ours, exact in shares(plan_of(model, kind)):
            assert ours == pytest.approx(exact, rel=1e-12), (model, name, stage)

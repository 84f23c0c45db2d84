"""The experts' all-to-all beside another microbatch, decided by the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.cost import formulas
from symconfig.cost.pipeline import chunk_times
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.plans.plan import Plan
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import PAIRED_INTERLEAVED
from symconfig.solve.costed import costed, stage_memory, timeline
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect
from symconfig.solve.search import search
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import job
from tests.solve.test_brute_force import MIXTURE

GPUS = 8
H100 = sample_cluster("h100")


def slow() -> ClusterDescriptor:
    """Eight GPUs whose links have a thousandth of their bandwidth: what experts send is worth hiding."""
    data = H100.model_dump(mode="json", by_alias=True)
    for level in data["levels"]:
        level["bandwidth_bytes_per_s"]["value"] /= 1000
    return ClusterDescriptor.model_validate(data, strict=False)


def planned(model: Any = MIXTURE, cluster: ClusterDescriptor | None = None, **fields: Any) -> Plan:
    pins = {"ep": "2..", "cp": "1", **fields.pop("pins", {})}
    return search(model, cluster or H100, job(GPUS, 32, 4096, pins=pins, **fields), top=50)


def restored(plan: Plan) -> Prospect:
    return restore(plan, plan.best)


def test_it_is_taken_where_it_is_faster_and_left_where_not() -> None:
    for cluster in (H100, slow()):
        free, on, off = (
            planned(cluster=cluster, pins=pins)
            for pins in ({"mbs": "1"}, {"mbs": "1", "moe_overlap": "on"}, {"mbs": "1", "moe_overlap": "off"})
        )
        assert free.fastest.predicted.step_s == min(on.fastest.predicted.step_s, off.fastest.predicted.step_s)
        assert all(found.configuration.overlap_moe_a2a for found in on.ranked)
        assert not any(found.configuration.overlap_moe_a2a for found in off.ranked)
    assert free.fastest.configuration.overlap_moe_a2a
    assert not free.best.configuration.overlap_moe_a2a  # what it saves cannot be told


def test_plans_with_it_are_what_megatron_takes() -> None:
    for found in planned(pins={"moe_overlap": "on"}).ranked:
        assert found.configuration.ep > 1
        assert found.configuration.pp == 1 or found.configuration.vpp > 1
        assert found.configuration.recompute != "full"
        assert "moe" not in found.configuration.recompute_modules
        assert found.configuration.zero_stage < 2


@pytest.mark.parametrize("vpp", [2, 4, 12])
def test_the_simulated_step_is_the_formulas(vpp: int) -> None:
    """Of equal chunks; and of the plan's own what every stage holds."""
    pins = {"tp": "1", "cp": "1", "pp": "4", "ep": "8", "mbs": "2", "vpp": str(vpp), "zero": "1", "moe_overlap": "on"}
    found = restored(search(sample_model("qwen3-30b-a3b"), H100, job(64, 512, 4096, pins=pins)))
    parts = costed(found)
    assert timeline(found, costed(found)).schedule is PAIRED_INTERLEAVED
    held = [float(peak.max()) for _, peak in stage_memory(found, parts, timeline(found, parts))]
    assert held[:-1] == pytest.approx(parts.peaks[:-1], rel=1e-4)  # the last stage is judged at its loss
    kind, m = parts.table.kinds.index("moe"), 16
    chunk = tuple(parts.table.kinds[kind] for _ in range(3))
    made = chunk_times(parts.table, parts.sums, parts.points, parts.setting, [chunk] * 4 * vpp, 0)
    assert made.paired is not None
    assert made.paired.min() > 0
    seconds = float(parts.table.seconds[0, kind, 0]) * 3 * vpp + 2 * vpp * made.busy_s
    hidden = float(made.paired.sum()) / 4
    formula = formulas.pipeline_s(m, seconds, 4 * seconds + 3 * hidden, vpp) + formulas.alone_s(hidden, m, vpp, 4)
    simulated = simulate(replace(made, gather=None, reduce=None), m, paired=True)
    assert simulated.step_s == pytest.approx(float(formula), rel=0.01)

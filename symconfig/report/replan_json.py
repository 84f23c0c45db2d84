"""A plan made again, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from symconfig.format import picked
from symconfig.report.diff import listed
from symconfig.runs.replan.carried import Verdict
from symconfig.runs.replan.replan import Replan
from symconfig.runs.replan.schedule import Schedule


def to_dict(replan: Replan) -> dict[str, Any]:
    """Return the JSON contract of `symconfig replan --json`."""
    kept, nearest, changes = replan.kept, replan.near_plan, replan.changes
    return {
        "schema": "symconfig.replan/1",
        "same": replan.same,
        "inputs": [listed(each) for each in replan.inputs],
        "edited": list(replan.edited),
        "drift": None if replan.drift is None else asdict(replan.drift),
        "old": replan.old.best.to_dict(),
        "changes": [
            {"decision": each.decision, "said": each.text, "kept": _verdict(each.kept)} for each in changes.decisions
        ],
        "follows": list(changes.follows),
        "stayed": _verdict(changes.stayed),
        "kept": None
        if kept is None
        else {"pins": kept.pins, "free": kept.free.best.to_dict(), "costs_s": kept.costs_s, "share": kept.share},
        "near": None
        if nearest is None
        else {
            "pins": nearest.pins,
            "best": nearest.plan.best.to_dict(),
            **picked(nearest, "slower", "free", "verdict"),
        },
        "schedule": _schedule(replan.schedule),
        "going_on": replan.going_on if replan.schedule.step else None,
        "checkpoint": replan.checkpoint.to_dict(),
        "files": None if replan.files is None else list(replan.files),
        "plan": replan.new.to_dict(),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data, with the numbers of what can run at all."""
    if verdict.refused:
        return {"runs": False, "fits": False, "why": verdict.refused}
    return {
        "runs": True,
        **picked(verdict, "fits", "step_s", "slower", "device_bytes"),
        "over_bytes": max(0.0, verdict.over_bytes),
        "host_over_bytes": max(0.0, verdict.host_over_bytes),
    }


def _schedule(schedule: Schedule) -> dict[str, Any]:
    return {
        "step": schedule.step,
        "consumed_sequences": schedule.consumed,
        "consumed_tokens": schedule.run.tokens,
        "lost_step": schedule.lost,
        "rescaled": [
            {"field": each.field, "before": each.before, "after": each.after, "exact": float(each.exact)}
            for each in schedule.rescaled
        ],
        "options": list(schedule.options),
        "notes": list(schedule.notes),
    }

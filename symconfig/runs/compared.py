"""Comparisons of a plan that take searches of their own, made where somebody asks why it is the first."""

from __future__ import annotations

from dataclasses import replace

from symconfig.plans.plan import Plan
from symconfig.runs.recipes.near import near_recipe
from symconfig.solve.faster import faster


def with_comparisons(plan: Plan) -> Plan:
    """Return the plan with what is faster if every option is allowed and, for Megatron-LM, with the nearest published
    recipe. A plan whose step has phases of its own is returned as it is."""
    if plan.steps:
        return plan
    recipe = near_recipe(plan) if plan.job.backend == "megatron" else None
    return replace(plan, beside=replace(faster(plan), recipe=recipe))

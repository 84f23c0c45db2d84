"""What the tests against Megatron share: rendered samples, and its code or a skip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.verify import megatron, megatron_session, megatron_source
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_session import Result
from symconfig.verify.megatron_source import MegatronSource
from tests.sample_plans import sample_plan

LIMIT_S = 300.0  # of a job that takes seconds: on a machine with much else to do, minutes. Nothing waits for it.


def source() -> MegatronSource:
    """Megatron's code as `verify` finds it, or a skip that says how to get it."""
    pytest.importorskip("torch")
    found = megatron_source.find()
    if found is None:
        pytest.skip(f"Megatron's argument parser is not here: {megatron_source.COMMAND}")
    return found


def rendered(plan: Plan | str = "llama2-13b", *more: str, cluster: str = "a100-80gb", **overrides: Any) -> Rendered:
    """A sample plan's arguments, with `more` behind them, and the environment of its launcher."""
    plan = sample_plan(plan, cluster, **overrides) if isinstance(plan, str) else plan
    version = plan.best.target.version
    return Rendered(
        plan, [*render.arguments(plan), *more], {item.name: item.value for item in environment.variables(plan, version)}
    )


def replaced(item: Rendered, option: str, *values: str) -> Rendered:
    """The same with other values for one option, or without it when there are none."""
    words = list(item.args)
    start = words.index(option)
    end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
    words[start:end] = [option, *values] if values else []
    return Rendered(item.plan, words, item.env)


def checked(
    built: Mapping[str, Rendered], parsed: Mapping[str, Rendered]
) -> tuple[dict[str, list[Check]], dict[str, Result]]:
    """Checks of all lists, and Megatron's answers on them, in one process; those of `built` with their ranks."""
    found = source()
    items = {**built, **parsed}
    jobs = {name: megatron.session_jobs(name, item, found, build=name in built) for name, item in items.items()}
    answers = megatron_session.run(found, [job for each in jobs.values() for job in each], LIMIT_S)
    checks = {
        name: [*megatron.offline(item), *megatron.judge(item, answers, jobs[name], found)]
        for name, item in items.items()
    }
    return checks, answers

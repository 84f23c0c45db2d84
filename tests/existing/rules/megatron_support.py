"""What tests of Megatron-LM's rules share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from symconfig.existing.launch.reading import Word, settings
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron import findings
from symconfig.existing.rules.rule import BASE
from symconfig.frameworks.megatron import environment
from symconfig.frameworks.megatron.flags import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render

NEWEST = "core_v0.19.0"


def facts(
    options: str,
    version: str = NEWEST,
    *,
    base: bool = True,
    environment: Mapping[str, str] | None = None,
    **others: Any,
) -> MegatronFacts:
    """Of options behind the examples' base, on eight GPUs of a Hopper node."""
    given = settings(shlex.split(f"{BASE} {options}" if base else options), "launch.sh")
    variables = (
        None if environment is None else {name: Word.of(value, given[0].place) for name, value in environment.items()}
    )
    known = {"world_size": 8, "gpus_per_node": 8, "architecture": "hopper", "program": "pretrain_gpt.py"}
    return MegatronFacts(Namespace(given, flags(version)), environment=variables, **{**known, **others})


def said(found: MegatronFacts) -> dict[str, str]:
    """The sentence of each broken rule, the last of several."""
    return {finding.rule: str(finding.problem) for finding in findings(found)}


def of_plan(plan: Plan) -> MegatronFacts:
    """What symconfig itself writes for a plan."""
    version = plan.best.target.version
    given = settings(render.arguments(plan), "launch.sh")
    exported = {item.name: Word.of(item.value, given[0].place) for item in environment.variables(plan, version)}
    return MegatronFacts(
        Namespace(given, flags(version)),
        world_size=plan.best.configuration.world_size,
        environment=exported,
        gpus_per_node=plan.cluster.gpus_per_node,
        architecture=plan.cluster.gpu.architecture,
        program="pretrain_gpt.py",
    )

"""Python modules that options of a plan want where it runs, which launch.sh looks for before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from symconfig.frameworks.maturity import Need, Option
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Want:
    """A module that an option of a plan wants. attribute: a name that it must have; nothing: any build will do.

    named: the module with that name, in words.
    """

    option: str
    label: str
    module: str
    attribute: str
    named: str
    why: str
    hint: str


def wants(plan: Plan) -> tuple[Want, ...]:
    """Return the modules that options of a Megatron plan want, in the order of the options."""
    wanted = (_wanted(option, need) for option in environment.used(plan) for need in option.needs)
    return tuple(want for want in wanted if want is not None)


def _wanted(option: Option, need: Need) -> Want | None:
    if need.module is None:
        return None
    return Want(option.name, option.label, need.module, need.attribute or "", need.named, need.why, need.hint)

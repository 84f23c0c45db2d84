"""How grown up what a plan may use is: the options of a framework, and what is known of each by release.

Each stands in one table: `maturity.py` in the folder of its framework. What is not stable is closed to a search unless
it is allowed by its name, asked for by a pin, or nothing else fits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.configuration_set import UNKNOWN

ALL = "all"  # opens every option that need not be named


class Maturity(StrEnum):
    """How much is known of an option, the best first: where nothing else fits, options are opened in this order."""

    UNUSUAL = "unusual"  # it works, and hardly any published run has it
    YOUNG = "young"
    CHANGES_NUMBERS = "changes what is computed"  # sound and common, but a run with it is another experiment
    DEFECT = "a known defect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The standing of an option in some releases. why: a sentence without its full stop, of what was found where.

    source: release notes, an issue, a file of the code. since, until: the first and the last release it is known of,
    of Megatron-LM; of DeepSpeed files are written for one release.
    """

    maturity: Maturity
    why: str
    source: str
    since: str | None = None
    until: str | None = None

    def in_force(self, release: str) -> bool:
        """Return whether a release lies between `since` and `until`, both included; None is no bound."""
        return between(release, self.since, self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that an option wants where a job runs. module: a Python module, which a launcher looks for.

    attribute: a name that the module must have, since builds without it exist. environment: variables that must have
    these values. why: what is missing without it, as a sentence says it; hint: where it comes from.
    """

    why: str
    hint: str
    module: str | None = None
    attribute: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def named(self) -> str:
        """Return the module's name, with the attribute it must have; "" without a module."""
        return f"{self.module}, with {self.attribute}" if self.attribute else self.module or ""

    def is_there(self) -> bool:
        """Return whether the module is installed here, without importing it; False if the need names no module.

        An attribute must occur in the text of the module's file; a module that is no Python file counts as having it.
        """
        spec = importlib.util.find_spec(self.module) if self.module else None
        if spec is None or spec.origin is None:
            return False
        if self.attribute is None or not spec.origin.endswith(".py"):
            return True
        return self.attribute in Path(spec.origin).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """Something that a plan may use or leave.

    name: for --allow and --without. label: as sentences say it. uses: true where a point has it, as a constraint's
    predicate. example: facts at which it is used, beside those of a model that runs. doubt: what keeps it from
    being stable; None: nothing. needs: what a site must have for it. asked: neither ALL nor a lack of memory opens it.
    """

    name: str
    label: str
    uses: Callable[[Any, Any], Any]
    about: str
    example: Mapping[str, Any]
    doubt: Standing | None = None
    needs: tuple[Need, ...] = ()
    asked: bool = False

    def standing(self, release: str) -> Standing | None:
        """Return what keeps the option from being stable in a release; None if nothing does."""
        return None if self.doubt is None or not self.doubt.in_force(release) else self.doubt

    def used(self, fixed: Any, point: Any) -> bool:
        """Return whether a point is known to use the option; False if facts that decide it are unknown."""
        found = self.uses(fixed, point)
        return found is not UNKNOWN and bool(np.all(found))


@lru_cache(maxsize=256)
def _forbidden(option: Option, why: str, source: str) -> Constraint:
    """Return the constraint that forbids an option, with `--allow` as its hint; the same object for equal arguments."""
    return Constraint(
        name=option.name,
        predicate=option.uses,
        rule=f"{option.label}: {why}",
        about=option.about,
        hint=f"--allow {option.name}",
        source=source,
        example=option.example,
    )


def closed(
    options: Iterable[Option], release: str, allow: Collection[str], without: Collection[str]
) -> tuple[Constraint, ...]:
    """Return constraints that forbid options in a release: those in `without`, and those not stable and not in `allow`.

    ALL in `allow` opens every option, except those in `without` and those that must be named.
    """
    needs = []
    for option in options:
        standing = option.standing(release)
        if option.name in without:
            needs.append(_forbidden(option, "this site is without it", "the job's `without`"))
        elif standing is not None and option.name not in allow and (option.asked or ALL not in allow):
            needs.append(_forbidden(option, f"{standing.maturity}: {standing.why}", standing.source))
    return tuple(needs)

"""A constraint: one thing that a framework's releases cannot run, asked of arrays of points or of a single one.

The search reads constraints as masks, the renderers as refusals, the audit as rules, and recovery as facts. Each stands
in one table: `frameworks/shared.py`, or `constraints.py` in the folder of its framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.errors import Problem
from symconfig.frameworks.facts import FIXED, Fixed
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.configuration import FIELD_OF_PIN, Configuration
from symconfig.plans.configuration_set import COLUMNS, ConfigurationSet
from symconfig.plans.unknown import UNKNOWN, Unknown


class Verdict(Enum):
    """What a constraint says of one point."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"  # what it asks for is not known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constraint:
    """A combination that cannot run.

    name: stable and unique in its table. predicate: true where a point cannot run, of the fixed facts and the point;
    written with &, | and no(), so that it takes arrays and UNKNOWN alike. rule: said of all points, for a search.
    sentence: said of one, a template in `f` (Fixed) and `p` (Configuration); without one, the rule. about, got: what of
    a plan it is about, and a template of its value. hint: what else helps. pins: of which every plan without the
    problem has one; `tp` stands for every other tp, and `tp=1` for itself. source: where it is known from. since,
    until: the first and the last release that it holds for. divides: shares would not be whole, so that no
    figure can be given. unsaid: a plan can want it and no launch have it, since its releases lack the option, or the
    model what the option is for. example: facts at which it fails, beside those of a model that runs, by name.
    """

    name: str
    predicate: Callable[[Any, Any], Any]
    rule: str
    about: str
    source: str
    example: Mapping[str, Any]
    sentence: str = ""
    got: str | None = None
    hint: str | None = None
    pins: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    divides: bool = False
    unsaid: bool = False
    asks: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", _columns(self.predicate))
        object.__setattr__(self, "sentence", self.sentence or self.rule)

    def in_force(self, release: str) -> bool:
        """Return whether a release lies between `since` and `until`, both included; None is no bound."""
        return between(release, self.since, self.until)

    def mask(self, fixed: Fixed, points: ConfigurationSet, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return which points cannot run, as an array of this shape; an UNKNOWN answer counts as able to run."""
        fails = self.predicate(fixed, points)
        known = np.asarray(False if fails is UNKNOWN else fails, dtype=bool)
        return known if known.shape == shape else np.full(shape, known)

    def verdict(self, fixed: Any, point: Any) -> Verdict:
        """Return whether a point fails the constraint: FAILS, HOLDS, or UNKNOWN if facts that decide it are not known.

        fixed, point: anything with the attributes of Fixed and Configuration. Of arrays all elements must fail.
        """
        fails = self.predicate(fixed, point)
        if isinstance(fails, Unknown):
            return Verdict.UNKNOWN
        return Verdict.FAILS if (fails.all() if isinstance(fails, np.ndarray) else fails) else Verdict.HOLDS

    def sentence_at(self, fixed: Any, point: Any) -> str:
        """Return the sentence with the values of one point filled in."""
        return self.sentence.format(f=fixed, p=point)

    def problem(self, fixed: Any, point: Configuration) -> Problem:
        """Return the problem of one point that fails the constraint, with the pins that avoid it."""
        got = None if self.got is None else self.got.format(f=fixed, p=point)
        pins = self.avoiding(point)
        return Problem(self.sentence_at(fixed, point), field=self.about, got=got, hint=self.hint, pins=pins)

    def avoiding(self, point: Configuration) -> tuple[str, ...]:
        """Return pins of which every plan without the problem satisfies one; () if none are known.

        A degree alone in `pins` becomes ranges below and above the point's value: `tp=..3`, `tp=5..`.
        """
        return tuple(pin for name in self.pins for pin in ((name,) if "=" in name else other(name, _of(point, name))))


def of_module(names: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Return the constraints among a module's values, in the order of their definition. names: its `globals()`."""
    return tuple(one for one in list(names.values()) if isinstance(one, Constraint))


def in_force(constraints: Iterable[Constraint], release: str) -> tuple[Constraint, ...]:
    """Return the constraints that hold for a release, in order."""
    return tuple(one for one in constraints if one.in_force(release))


def failing(constraints: Iterable[Constraint], fixed: Any, point: Any) -> tuple[Constraint, ...]:
    """Return the constraints that one point is known to fail; those whose facts are unknown are left out."""
    return tuple([one for one in constraints if one.verdict(fixed, point) is Verdict.FAILS])


def possible(constraints: Iterable[Constraint], fixed: Any, point: Any) -> tuple[Constraint, ...]:
    """Return the constraints that one point fails, or may fail, as their facts are unknown."""
    return tuple([one for one in constraints if one.verdict(fixed, point) is not Verdict.HOLDS])


def other(name: str, value: int) -> tuple[str, ...]:
    """Return two pins, or one, that together admit every value of a degree but this one: `tp=..3`, `tp=5..`.

    The pin below is left out for a value of 1 or less; for zero, whose least value is 0, only for 0.
    """
    below = (f"{name}=..{value - 1}",) if value > 1 or (name == "zero" and value) else ()
    return (*below, f"{name}={value + 1}..")


def _of(point: Configuration, pin: str) -> int:
    return int(getattr(point, FIELD_OF_PIN.get(pin, pin)))


@dataclass(slots=True)
class _Probe:
    """Facts that are all UNKNOWN and record which names are read in `reads`; AttributeError for any other name."""

    names: tuple[str, ...]
    reads: set[str]

    def __getattr__(self, name: str) -> Unknown:
        if name not in self.names:
            raise AttributeError(f"{name} is no fact that a constraint can ask for")
        self.reads.add(name)
        return UNKNOWN


def _columns(predicate: Callable[[Any, Any], Any]) -> frozenset[str]:
    """Return the names of the facts and columns that a predicate reads.

    Raises:
        TypeError: it decides by `if`, `and`, `or` or `not` instead of &, | and no().
        AttributeError: it reads a name that is neither of Fixed nor of ConfigurationSet.
    """
    columns: set[str] = set()
    predicate(_Probe(FIXED, columns), _Probe(COLUMNS, columns))
    return frozenset(columns)

"""What is asked of a framework that plans are made for: every fact about it that another room's answer depends on.

A new one fills in every field; who wants to know something else of a framework adds a field here, not its name there.
Among the facts are options, and what is known of each by release: what is not stable is closed to a search unless it is
allowed by its name, asked for by a pin, or nothing else fits.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from symconfig.cost.framework import Framework
from symconfig.descriptor.job import Backend as Name
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import AdapterTarget
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.configuration import Precision, ZeroStage
from symconfig.plans.configuration_set import UNKNOWN

ALL = "all"  # opens every option that need not be named


class Maturity(StrEnum):
    """How much is known of an option, the best first: where nothing else fits, options are opened in this order."""

    UNUSUAL = "unusual"  # it works, and hardly any published run has it
    YOUNG = "young"
    CHANGES_NUMBERS = "changes what is computed"  # sound and common, but a run with it is another experiment
    DEFECT = "a known defect"


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
    predicate. example: facts at which it is used, beside those of a model that runs. maturity: what keeps it from
    being stable; None: nothing. why: a sentence without its full stop, of what was found where. source: release notes,
    an issue, a file of the code. since, until: the first and the last release that it is known of, of Megatron-LM; of
    DeepSpeed files are written for one release. needs: what a site must have for it. asked: neither ALL nor a lack of
    memory opens it.
    """

    name: str
    label: str
    uses: Callable[[Any, Any], Any]
    about: str
    example: Mapping[str, Any]
    maturity: Maturity | None = None
    why: str = ""
    source: str = ""
    since: str | None = None
    until: str | None = None
    needs: tuple[Need, ...] = ()
    asked: bool = False

    def standing(self, release: str) -> Self | None:
        """Return the option if its `maturity` keeps it from being stable in a release; None if nothing does."""
        return self if self.maturity is not None and between(release, self.since, self.until) else None

    def used(self, fixed: Any, point: Any) -> bool:
        """Return whether a point is known to use the option; False if facts that decide it are unknown."""
        found = self.uses(fixed, point)
        return found is not UNKNOWN and bool(np.all(found))


@lru_cache(maxsize=256)
def _forbidden(option: Option, why: str, source: str) -> Constraint:
    """Return the constraint that fails wherever the option is used; `closed` makes none for allowed options.

    Its hint is `--allow`. Cached: the same object for equal arguments.
    """
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


_RELEASE = re.compile(r"\d{1,9}(\.\d{1,9})*")


class Medium(Enum):
    """What says how a run is configured."""

    OPTIONS = auto()  # options of the training program
    JSON = auto()  # a DeepSpeed JSON, beside the arguments of the program that loads it
    CODE = auto()  # the training program itself


def numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release as pip writes it, without a build's suffix: 0.19.8+cu128 -> (0, 19, 8).

    () if it does not begin with a number.
    """
    match = _RELEASE.match(release)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """A framework's releases: how they are named, ordered and asked for.

    asked_by: the field of a job that names the release to write for; None: files are for `pinned` alone.
    prefix: of a release's name here, before what pip calls it. order: a key by which releases sort; raises InputError
    for one that it does not know. minor: its first two numbers, between which options change; NEWEST: a main branch.
    resolve: the name of a release in full; raises InputError.
    """

    pinned: str
    asked_by: str | None = None
    prefix: str = ""
    order: Callable[[str], tuple[int, ...]] = numbers
    minor: Callable[[str], tuple[int, ...]] = lambda release: numbers(release)[:2]
    resolve: Callable[[str], str] = str

    def of(self, job: Job) -> str:
        """Return the release that a job's files are written for: the job's own field, else the pinned one."""
        return str(getattr(job, self.asked_by)) if self.asked_by is not None else self.pinned

    def fields(self, release: str) -> dict[str, str]:
        """Return the job's field that asks for a release, with its value; {} if no field does."""
        return {} if self.asked_by is None else {self.asked_by: release}

    def installed(self, distribution: str) -> str:
        """Return the release of a version of pip's distribution, by its first two numbers: 0.16.1 -> core_v0.16."""
        return self.prefix + ".".join(map(str, numbers(distribution)[:2]))

    def older(self, one: str, other: str) -> bool:
        """Return whether `one` sorts before `other` by `order`.

        Raises:
            InputError: `order` does not know one of them.
        """
        return self.order(one) < self.order(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A framework, by the name that a job's `backend` has.

    label: as its authors write it. program: what its own target starts, with whose options checkpoints are told.
    distribution: what pip calls it. usual: its behaviour in the cost model's terms, as files ask for it.
    constraints: what no plan for it may have, of all releases. options: those that have a maturity.
    low_precisions: words beside bf16 and fp16 that `precision: auto` tries.
    adapters: its own program trains them; else another one does, of which `refused_adapters` speaks.
    refused_adapters: what keeps a model's adapters from being trained, as sentences: of a model and a target.
    fuses: the fused layers of a model there, beside each of which lies one adapter.
    gradient_buckets: where gradient buffers close their buckets decides which rank has which part of the optimizer.
    pads_vocabulary: the embedding's rows depend on tp.
    generators_by_replica: whether each replica of a release saves its own random generators' states where ep > 1.
    writes: the kind of checkpoint that the files' run writes at a ZeRO stage, of a release.
    names_release: its checkpoints say the release that wrote them; else only their format bounds it.
    """

    name: Name
    label: str
    program: str
    distribution: str
    releases: Releases
    told_by: Medium
    usual: Framework
    constraints: tuple[Constraint, ...]
    options: tuple[Option, ...]
    low_precisions: tuple[Precision, ...]
    adapters: bool
    refused_adapters: Callable[..., tuple[str, ...]]
    fuses: Callable[[ModelDescriptor], frozenset[AdapterTarget]]
    gradient_buckets: bool
    pads_vocabulary: bool
    generators_by_replica: Callable[[str], bool]
    writes: Callable[[ZeroStage, str], Kind]
    names_release: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """Written as one word, `torch_dist:dp_reshardable`; a format alone means what a release writes unasked."""

    format: str
    optimizer: str = ""

    def __str__(self) -> str:
        return f"{self.format}:{self.optimizer}" if self.optimizer else self.format

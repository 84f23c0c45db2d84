"""What is asked of a framework that plans are made for: every fact about it that another room's answer depends on.

A new one fills in every field; who wants to know something else of a framework adds a field here, not its name there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from symconfig.cost.framework import Framework
from symconfig.descriptor.job import Backend as Name
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import AdapterTarget
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.maturity import Option
from symconfig.plans.configuration import Precision, ZeroStage

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

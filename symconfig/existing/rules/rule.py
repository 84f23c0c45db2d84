"""A rule: its name and reasons, what it is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeAlias, TypeVar

from symconfig.errors import Problem
from symconfig.existing.launch.text import Place
from symconfig.frameworks.constraint import Constraint

Severity = Literal["error", "warning", "note"]
Facts = TypeVar("Facts")

GPUS_PER_NODE = 8
# A dense model on eight replicas that breaks no rule. Examples with a --hidden-size and layers of their own are whole;
# the others stand behind this.
BASE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather"
)
# The same, of which every replica has the whole optimizer.
UNSHARDED = BASE.replace("--use-distributed-optimizer ", "").replace(" --overlap-param-gather", "")


@dataclass(frozen=True, slots=True)
class Rule(Generic[Facts]):
    """One thing that can be wrong.

    name: stable, kebab-case; people silence and search by it. severity: error: it does not start, fails in the first
    step or trains something else; warning: slower or other than it seems; note: worth knowing. title: what is wrong, in
    a line. why: what happens and how that is known, with the framework's file. since, until: the first and the last
    version of the framework that it holds for; None: all that are known. constraints: of the framework's table, whose
    sentences it says. example: a configuration that breaks it, as a user would write it (options of one line; JSON for
    DeepSpeed). gpus: of the example; joined: those of them that the fastest links join; None: those of a node.
    check: yields a Problem for each place where it is broken; `Problem.field` is the option (or JSON key) it is about.
    """

    name: str
    severity: Severity
    title: str
    why: str
    example: str
    check: Callable[[Facts], Iterator[Problem]]
    gpus: int = 8
    since: str | None = None
    until: str | None = None
    environment: Mapping[str, str] | None = None  # of the example
    architecture: str | None = None  # of the example's GPUs, where they matter
    joined: int | None = None
    constraints: tuple[Constraint, ...] = ()


Check: TypeAlias = Callable[[Facts], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken, and where."""

    rule: str
    severity: Severity
    problem: Problem


def findings(rules: Sequence[Rule[Facts]], facts: Facts, place: Place | None = None) -> list[Finding]:
    """Return every rule that is broken, at `place` where the problem has no place of its own."""
    return [
        Finding(rule.name, rule.severity, problem if problem.file or place is None else _at(problem, place))
        for rule in rules
        for problem in rule.check(facts)
    ]


def _at(problem: Problem, place: Place) -> Problem:
    return replace(problem, file=place.file, line=place.line, column=place.column)

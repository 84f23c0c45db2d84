"""A rule: its name and reasons, what it is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

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
class Rules(Generic[Facts]):
    """The rules of one file, in its order: each is entered by the function that checks it. holds: of which facts they
    speak; None: of all."""

    entered: list[Rule[Facts]] = field(default_factory=list)
    holds: Callable[[Facts], bool] | None = None

    def rule(
        self, severity: Severity, title: str, why: str, example: str, **more: Any
    ) -> Callable[[Check[Facts]], Check[Facts]]:
        """Enter the function below as the check of the rule of its name. more: other fields of a Rule."""

        def enter(check: Check[Facts]) -> Check[Facts]:
            name = check.__name__.replace("_", "-")
            self.entered.append(Rule(name, severity, title, why, example, check, **more))
            return check

        return enter

    def findings(self, facts: Facts, place: Place | None = None) -> list[Finding]:
        """Return every rule that is broken, at a place where the problem has none of its own."""
        if self.holds is not None and not self.holds(facts):
            return []
        return [
            Finding(rule.name, rule.severity, problem if problem.file else placed(problem, place))
            for rule in self.entered
            for problem in rule.check(facts)
        ]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken, and where."""

    rule: str
    severity: Severity
    problem: Problem


def placed(problem: Problem, place: Place | None) -> Problem:
    """Put the problem at a place, where there is one."""
    if place is None:
        return problem
    return replace(problem, file=place.file, line=place.line, column=place.column)

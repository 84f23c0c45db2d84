"""What an existing configuration runs, in the planner's own terms, and what a person says beside it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import ADAM, Optimizer
from symconfig.errors import Problem
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.rl.step import Alone, Step
from symconfig.graph.implementation import LossKernel
from symconfig.plans.plan import Target
from symconfig.solve.prospect import Setup


@dataclass(frozen=True, slots=True)
class Supplied:
    """What the user states in addition to the files.

    model: for configurations that describe none, or name a recipe. seq_length, vocab_size: used where the files give
    none. megatron_version: None: the newest that has most options. prompt_length, response_length: mean tokens, for RL.
    """

    model: ModelDescriptor | None = None
    gpus: int | None = None
    seq_length: int | None = None
    vocab_size: int | None = None
    megatron_version: str | None = None
    prompt_length: float | None = None
    response_length: float | None = None


@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption that the prediction needs, as the configuration leaves it open.

    what: is assumed to be `value`, for the reason `why`. place: where the configuration concerns it; None if nowhere.
    """

    what: str
    value: str
    why: str
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible(Problem):
    """A problem of numbers that no run can have, as they do not divide. rule: the audit's rule that reports it."""

    rule: str

    @classmethod
    def of(cls, problem: Problem, rule: str) -> Impossible:
        return cls(**{item.name: getattr(problem, item.name) for item in fields(problem)}, rule=rule)


@dataclass(frozen=True, slots=True)
class Described:
    """The model that options describe.

    zoo: name of the zoo's model that computes the same, if any; else nearest: the most similar model and the fields
    that differ, with their values here. assumed: assumptions made about the model.
    """

    model: ModelDescriptor
    zoo: str | None = None
    assumed: tuple[Assumed, ...] = ()
    nearest: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A model, and how it is run.

    Args:
        configuration: for `solve.predict`; its framework has the behaviour that the options switch on and off.
        step: of reinforcement learning, around this run; None without one.
        critic: run of the critic that is trained in the step; None without one.
        program: target whose program trains adapters; None without one.
        alone: update of a trainer that generates nothing; None without one.
    """

    target: Target
    described: Described
    configuration: Setup
    assumed: tuple[Assumed, ...] = ()
    optimizer: Optimizer = ADAM
    step: Step | None = None
    critic: Run | None = None
    alone: Alone | None = None
    program: str | None = None

    def with_loss(self, kernel: LossKernel) -> Run:
        """Return a copy of the run with another loss kernel."""
        how = (framework := self.configuration.framework).implementation
        how = replace(how, loss=replace(how.loss, kernel=kernel))
        return replace(
            self, configuration=replace(self.configuration, framework=replace(framework, implementation=how))
        )

    @property
    def around(self) -> Step | Alone | None:
        """Return the step or the update around the run; None for plain training."""
        return self.step or self.alone

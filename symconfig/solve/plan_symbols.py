"""A candidate's costs as SymPy expressions, their numbers, and what moves the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from symconfig.cost.tape import Array, Term
from symconfig.errors import InputError, Problem, among
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.formulas import Formula, Formulas
from symconfig.solve.restore import restore
from symconfig.solve.symbolic import At, Traced, traced
from symconfig.solve.symbols import MOVED, From, meaning, source, unit


@dataclass(frozen=True, slots=True)
class Known:
    """A symbol: what it is now, in which unit, where its number comes from, and what it is in words.

    elasticity: by how many percent the step grows where it grows by one.
    """

    name: str
    value: float
    unit: str
    source: From
    meaning: str
    elasticity: float


@dataclass(frozen=True)
class Symbolic:
    """A plan's step and memory as expressions; all in SI units.

    Expressions are in symbols and in named quantities, of which each has an expression of its own; `whole` puts
    everything in. What is no closed form is a symbol with its number: an event simulation's seconds over the formula's.
    """

    traced: Traced
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def formulas(self) -> Formulas:
        """Return the named quantities in the order in which they follow from each other."""
        parts = (*self.traced.time.values(), *(term for stage in self.traced.memory for term in stage.values()))
        return Formulas(self.traced.tape, (*parts, self.traced.step))

    @property
    def step(self) -> Any:
        """Return the SymPy expression of the step's seconds."""
        return self._of(self.traced.step)

    @property
    def time(self) -> dict[str, Any]:
        """Return the SymPy expression of each part of the step."""
        return {name: self._of(term) for name, term in self.traced.time.items()}

    @property
    def memory(self) -> tuple[dict[str, Any], ...]:
        """Return the SymPy expression of each part of each stage's bytes."""
        return tuple({name: self._of(term) for name, term in stage.items()} for stage in self.traced.memory)

    @property
    def definitions(self) -> dict[Any, Any]:
        """Return the expression of each named quantity, by its SymPy symbol, each after those that it uses."""
        import sympy as sp

        formulas = self.formulas
        symbol = {name: self._made.setdefault(name, sp.Symbol(name, real=True)) for name in formulas.names.values()}
        return {symbol[one.name]: formulas.sympy(one.line, self._made) for one in formulas}

    @property
    def numbers(self) -> dict[Any, float]:
        """Return what each symbol is now, by its SymPy symbol: the substitution that gives the plan's own numbers."""
        import sympy as sp

        return {
            self._made.setdefault(name, sp.Symbol(name, real=True)): self.traced.tape.nodes[line].value
            for name, line in self.formulas.symbols.items()
        }

    @property
    def known(self) -> tuple[Known, ...]:
        """Return every symbol, those first that move the step most."""
        tape, step_s, slopes = self.traced.tape, self.step_s, self.derivatives()
        every = []
        for name, line in self.formulas.symbols.items():
            value = tape.nodes[line].value
            moves = slopes.get(name, 0.0) * value / step_s
            every.append(Known(name, value, unit(name), source(name), meaning(name), moves))
        return tuple(sorted(every, key=lambda one: (-abs(one.elasticity), one.name)))

    @property
    def movers(self) -> tuple[Known, ...]:
        """Return the rates, times and sizes of the job that move the step, those first that move it most."""
        return tuple(one for one in self.known if one.name in MOVED and abs(one.elasticity) >= 1e-4)

    @property
    def step_s(self) -> float:
        """Return the step's seconds at the plan."""
        step: Term = self.traced.step
        return step.value

    def whole(self, term: Any) -> Any:
        """Return a cost of `traced` as one expression of symbols alone."""
        return self.formulas.sympy(term.line, self._made, whole=True) if isinstance(term, Term) else term

    def derivatives(self) -> dict[str, float]:
        """Return the step's derivative by each symbol at the plan; by one that is rounded, between its roundings."""
        return self.traced.tape.slopes(self.traced.step.line)

    def at(self, numbers: Mapping[str, Array | float]) -> At:
        """Return the costs at other numbers of some symbols. Raises InputError for a name that is none."""
        self._check(numbers)
        return self.traced.at(numbers)

    def _check(self, names: Iterable[str]) -> None:
        known = self.formulas.symbols
        wrong = [
            Problem("is no symbol of this plan", field="symbol", got=name, **among(name, sorted(known)))
            for name in names
            if name not in known
        ]
        if wrong:
            raise InputError(wrong)

    def _of(self, term: Any) -> Any:
        return self.formulas.sympy(term.line, self._made) if isinstance(term, Term) else float(term)


def symbolic(plan: Plan, candidate: Candidate) -> Symbolic:
    """Return the costs of a plan's candidate as expressions."""
    return Symbolic(traced(restore(plan, candidate)))


def reached(formulas: Formulas, top: Formula, most: int) -> list[Formula]:
    """Return the named quantities that a formula leads to within so many steps, each once, nearest first."""
    lines, wave = dict[int, None](), [top.line]
    for _ in range(most):
        wave = [at for line in wave for at in formulas.formula(line).uses if at in formulas.names and at not in lines]
        lines |= dict.fromkeys(wave)
    return [formulas.formula(line) for line in lines]

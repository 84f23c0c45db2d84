"""A plan's costs as formulas: the functions that weighed it, run once more on symbols, and what moves the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from symconfig.cost.blocks import PASSES
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Stages
from symconfig.cost.table import Table, block_costs, resolve, table
from symconfig.cost.tape import Array, Tape, Term
from symconfig.errors import InputError, Problem, among
from symconfig.graph.model import derived
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.costed import BUBBLE, EXCHANGE, STAGES, choices_of, costed, detailed, refined_time
from symconfig.solve.formulas import FRAMEWORK, MOVED, Formulas, From, described, import_sympy
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice, loads, priced


@dataclass(frozen=True, slots=True)
class Known:
    """A symbol with its value in the plan, unit (empty for ratios and counts), source and description.

    elasticity: by how many percent the step grows if the value grows by one percent.
    """

    name: str
    value: float
    unit: str
    source: From
    meaning: str
    elasticity: float


@dataclass(frozen=True, slots=True)
class At:
    """A plan's costs with other values. holds: where every branch of the formulas (max, floor) is the plan's own."""

    time: dict[str, Array | float]
    memory: tuple[dict[str, Array | float], ...]
    holds: Any

    @property
    def step_s(self) -> Any:
        return sum(self.time.values())


@dataclass(frozen=True)
class Symbolic:
    """A plan's step and memory in SI units: as terms of a tape, and as SymPy expressions.

    seconds: terms by part of the step; bytes: by part of each stage's memory. Expressions use symbols and named
    quantities, each of which has its own expression. What has no closed form is a symbol with a number: the ratio of
    the event simulation's seconds to the formula's.
    """

    tape: Tape
    seconds: dict[str, Any]
    bytes: tuple[dict[str, Any], ...]

    @cached_property
    def whole(self) -> Any:
        """Return the sum of the parts of the step, as a term of the tape. Cached."""
        return sum(self.seconds.values())

    @cached_property
    def formulas(self) -> Formulas:
        """Return the named quantities of step and memory, each after those that it depends on. Cached."""
        parts = (*self.seconds.values(), *(term for stage in self.bytes for term in stage.values()))
        return Formulas(self.tape, (*parts, self.whole))

    @property
    def step(self) -> Any:
        """Return the step in seconds as a SymPy expression of symbols and named quantities."""
        return self._of(self.whole)

    @property
    def time(self) -> dict[str, Any]:
        """Return the seconds of each part of the step as SymPy expressions."""
        return {name: self._of(term) for name, term in self.seconds.items()}

    @property
    def memory(self) -> tuple[dict[str, Any], ...]:
        """Return the bytes of each part as SymPy expressions, by stage."""
        return tuple({name: self._of(term) for name, term in stage.items()} for stage in self.bytes)

    @property
    def definitions(self) -> dict[Any, Any]:
        """Return the expression of each named quantity by its SymPy symbol, each after those that it uses."""
        symbol = import_sympy().Symbol
        return {symbol(one.name, real=True): self.formulas.sympy(one.line) for one in self.formulas}

    @property
    def numbers(self) -> dict[Any, float]:
        """Return the plan's value of each SymPy symbol: the substitution that gives the plan's own numbers."""
        symbol, nodes = import_sympy().Symbol, self.tape.nodes
        return {symbol(name, real=True): nodes[line].value for name, line in self.formulas.symbols.items()}

    @property
    def known(self) -> tuple[Known, ...]:
        """Return every symbol with its value, what it is (`described`) and its elasticity, the largest effect first."""
        slopes, every = self.derivatives(), []
        for name, line in self.formulas.symbols.items():
            value = self.tape.nodes[line].value
            every.append(Known(name, value, *described(name), slopes.get(name, 0.0) * value / self.step_s))
        return tuple(sorted(every, key=lambda one: (-abs(one.elasticity), one.name)))

    @property
    def movers(self) -> tuple[Known, ...]:
        """Return those of `known` in MOVED (rates, times, batch, length) with an elasticity of at least 1e-4."""
        return tuple(one for one in self.known if one.name in MOVED and abs(one.elasticity) >= 1e-4)

    @property
    def step_s(self) -> float:
        """Return the step of the plan in seconds."""
        return float(self.whole.value)

    def derivatives(self) -> dict[str, float]:
        """Return the derivative of the step's seconds by each symbol at the plan; rounding counts as constant."""
        return self.tape.slopes(self.whole.line)

    def at(self, numbers: Mapping[str, Array | float]) -> At:
        """Return the plan's seconds and bytes with other values for some symbols, numbers or arrays that broadcast.

        Symbols that are not in `numbers` keep the plan's values; costs that are no terms stay numbers. `holds` says
        where the branches (max, floor) that the plan took still hold. Raises InputError with a problem for each name
        that is no symbol of this plan.
        """
        known = sorted(self.formulas.symbols)
        wrong = [
            Problem("is no symbol of this plan", field="symbol", got=name, **among(name, known))
            for name in numbers
            if name not in known
        ]
        if wrong:
            raise InputError(wrong)
        values = self.tape.evaluated(numbers)

        def of(term: Any) -> Array | float:
            return values[term.line] if isinstance(term, Term) else float(term)

        return At(
            time={name: of(term) for name, term in self.seconds.items()},
            memory=tuple({name: of(term) for name, term in stage.items()} for stage in self.bytes),
            holds=self.tape.holds(values),
        )

    def _of(self, term: Any) -> Any:
        return self.formulas.sympy(term.line) if isinstance(term, Term) else float(term)


def symbolic(plan: Plan, candidate: Candidate) -> Symbolic:
    """Return the costs of a plan's candidate as formulas; the candidate is computed again."""
    return traced(restore(plan, candidate))


def traced(prospect: Prospect) -> Symbolic:
    """Return the costs of a candidate as terms of a new tape, by running the cost functions on symbols.

    Symbols: numbers of job, degrees, machine, model and FRAMEWORK (those that are not 0). Parts of the time and of each
    stage's memory are named on the tape, as are the sums and operators that they come from. With a pipeline the time
    has the ratios of `_simulated`.
    """
    tape = Tape()
    request = prospect.request
    job: dict[str, Any] = {
        **{"tp": 1, "pp": 1, "cp": 1, "dp": tape.symbol("gpus", request.gpus)},  # whose product counts
        "global_batch": tape.symbol("global_batch_size", request.global_batch),
        "seq_length": tape.symbol("seq_length", request.seq_length),
    }
    of_framework = {name: getattr(request.framework, name) for name in FRAMEWORK}
    known_framework: dict[str, Any] = {name: tape.symbol(name, value) for name, value in of_framework.items() if value}
    request = replace(request, framework=replace(request.framework, **known_framework)).having(**job)
    of_machine = [one.name for one in fields(Machine) if one.name != "levels"]
    numbers: dict[str, Any] = {name: tape.symbol(name, getattr(prospect.machine, name)) for name in of_machine}
    levels: dict[str, Any] = {name: tape.symbol(name, float(rate)) for name, rate in prospect.machine.levels.items()}
    known = replace(prospect, machine=replace(prospect.machine, levels=levels, **numbers), request=request)
    where = _columns(prospect, known, tape)
    small = _table(known, prospect, where, tape)
    parts = detailed(known, small, where)
    _name_stages(parts.sums, tape)
    cost = parts.cost
    time = {name: part[0, 0, 0] for name, part in cost.time.items()}
    memory = tuple(
        {name: part[stage, 0, 0, 0] if len(part) > 1 else part[0, 0, 0, 0] for name, part in cost.memory.items()}
        for stage in range(prospect.configuration.pp)
    )
    time = _simulated(prospect, time, tape)
    for name, term in time.items():
        tape.name(term, f"time.{name}")
    for stage, held in enumerate(memory):
        for name, term in held.items():
            tape.name(term, f"memory.stage{stage}.{name}")
    return Symbolic(tape, time, memory)


def _columns(prospect: Prospect, known: Prospect, tape: Tape) -> ConfigurationSet:
    """Return the candidate's columns with tp, cp, ep, etp, pp and micro-batch as symbols.

    dp and the number of microbatches follow from them and are named on the tape.
    """
    p, every = prospect.configuration, prospect.columns()
    degrees: dict[str, Any] = {name: tape.symbol(name, getattr(p, name)) for name in ("tp", "cp", "ep", "etp", "pp")}
    micro = tape.symbol("micro_batch", prospect.configuration.micro)
    some = {name: np.array([degrees[name]], dtype=object) for name in ("tp", "cp", "ep", "etp")}
    some["micro"] = np.array([micro], dtype=object)
    where = priced(known.request, every.having(some), degrees["pp"])
    tape.name(where.dp[0], "dp")
    tape.name(where.num_microbatches[0], "num_microbatches")
    return where


def _table(known: Prospect, prospect: Prospect, where: ConfigurationSet, tape: Tape) -> Table:
    """Return the cost table of the blocks as terms, with symbols for the model's numbers.

    known, prospect: the candidate with symbols, and with numbers. Expert load imbalance is a constant of the plan's ep.
    Seconds and bytes of operators, collectives and kept tensors are named on the tape, as are the passes of each kind.
    """
    request, choices = known.request, choices_of(prospect)
    uneven = loads(prospect.request, prospect.columns().ep)  # of the plan's ranks, however many there are
    uneven = {name: float(np.ravel(number)[0]) for name, number in uneven.items()}
    numbers: dict[str, Any] = dict(lattice(request, where, uneven).numbers)
    for name, number in numbers.items():
        if isinstance(number, int | float):
            numbers[name] = tape.symbol(name, number)
        elif isinstance(number, np.ndarray) and not number.dtype.hasobject:
            numbers[name] = float(number[0])
        else:
            tape.name(number if isinstance(number, Term) else number[0], name)
    of_kind = derived(request.model, request.framework.implementation, known.scheme)
    costs = block_costs(of_kind, Lattice(numbers, 1), known.machine, request.framework)
    for cost in costs:
        block = cost.derived
        for (op, phase), term in cost.work_s.items():
            tape.name(term[0], f"{block.name}.{op}.{phase.value}")
        for collective, term in zip(block.collectives, cost.comm_s, strict=True):
            tape.name(term[0], f"{block.name}.{collective.owner}.{collective.kind.value}.{collective.phase.value}")
        for held, term in zip(block.held, cost.held_bytes, strict=True):
            tape.name(term[0], f"{block.name}.{held.tensor}.bytes")
    result = table(costs, choices, resolve(of_kind, choices), known.machine, request.framework)
    for at, name in enumerate(PASSES):
        for kind, each in enumerate(result.kinds):
            for row in range(len(result.policies)):
                which = f".policy{row}" if len(result.policies) > 1 else ""
                tape.name(result.passes[at, row, kind, 0], f"{each}.{name}{which}")
    return result


def _name_stages(sums: Stages, tape: Tape) -> None:
    """Name on the tape what each stage sums over its blocks."""
    for one in fields(Stages):
        rows = getattr(sums, one.name)
        for stage in range(len(rows)) if rows.ndim > 1 else ():
            tape.name(rows[stage].flat[0], f"stage{stage}.{one.name}")


def _simulated(prospect: Prospect, time: dict[str, Any], tape: Tape) -> dict[str, Any]:
    """Return the time by part with the event simulation's part as symbols; unchanged without a pipeline.

    One symbol is the ratio of simulation to formula for the pipeline, whose difference goes to the bubble, and one that
    for the data-parallel exchange (its seconds, where the formula has 0). The symbols' values are the plan's; they
    hardly move with the numbers, as both sides grow alike.
    """
    if prospect.configuration.pp == 1:
        return time
    formula, refined = costed(prospect), refined_time(prospect, costed(prospect))
    plain = {name: float(part[0, 0, 0]) for name, part in formula.cost.time.items()}
    names = (*STAGES, BUBBLE)
    alone = sum(plain[name] for name in names)
    ratio = tape.symbol("simulated_pipeline", sum(refined[name] for name in names) / alone)
    whole = sum(time[name] for name in names) * ratio
    result = {**time, BUBBLE: whole - sum(time[name] for name in STAGES)}
    if plain[EXCHANGE] > 0.0:
        result[EXCHANGE] = time[EXCHANGE] * tape.symbol("simulated_exchange", refined[EXCHANGE] / plain[EXCHANGE])
    else:
        result[EXCHANGE] = tape.symbol("simulated_exchange_s", refined[EXCHANGE])
    return result

"""A plan's costs as formulas: the functions that weighed it, run once more on symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from symconfig.cost.blocks import PASSES
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import Machine
from symconfig.cost.stages import Stages
from symconfig.cost.table import Table, block_costs, resolve, table
from symconfig.cost.tape import Array, Tape, Term
from symconfig.graph.model import derived
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.solve.costed import BUBBLE, EXCHANGE, STAGES, choices_of, costed, detailed, refined_time
from symconfig.solve.prospect import Prospect
from symconfig.solve.space import lattice, loads, priced

# Constants of a framework that become symbols; the others are choices or shares and stay numbers.
FRAMEWORK = (
    "step_overhead_s",
    "microbatch_overhead_s",
    "host_kernel_s",
    "low_rate",
    "attention_rate",
    "adam_bytes",
    "copied_bytes",
)


@dataclass(frozen=True, slots=True)
class Traced:
    """A plan's costs as terms on a tape. time: seconds by part; memory: bytes by part, for each stage."""

    tape: Tape
    time: dict[str, Any]
    memory: tuple[dict[str, Any], ...]

    @property
    def step(self) -> Any:
        """Return the sum of the parts of the time, as a term of the tape."""
        return sum(self.time.values())

    def at(self, numbers: Mapping[str, Array | float]) -> At:
        """Return the costs with other values for some symbols, numbers or arrays that broadcast together.

        Symbols that are not in `numbers` keep the plan's values; costs that are no terms stay numbers. `holds` says
        where the branches (max, floor) that the plan took still hold.
        """
        values = self.tape.evaluated(numbers)

        def of(term: Any) -> Array | float:
            return values[term.line] if isinstance(term, Term) else float(term)

        return At(
            time={name: of(term) for name, term in self.time.items()},
            memory=tuple({name: of(term) for name, term in stage.items()} for stage in self.memory),
            holds=self.tape.holds(values),
        )


@dataclass(frozen=True, slots=True)
class At:
    """A plan's costs with other values. holds: where every branch of the formulas (max, floor) is the plan's own."""

    time: dict[str, Array | float]
    memory: tuple[dict[str, Array | float], ...]
    holds: Any

    @property
    def step_s(self) -> Any:
        return sum(self.time.values())


def traced(prospect: Prospect) -> Traced:
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
    return Traced(tape, time, memory)


def _objects(*terms: Any) -> Any:
    objects = np.empty(len(terms), dtype=object)
    objects[:] = terms
    return objects


def _columns(prospect: Prospect, known: Prospect, tape: Tape) -> ConfigurationSet:
    """Return the candidate's columns with tp, cp, ep, etp, pp and micro-batch as symbols.

    dp and the number of microbatches follow from them and are named on the tape.
    """
    p, every = prospect.configuration, prospect.columns()
    degrees: dict[str, Any] = {name: tape.symbol(name, getattr(p, name)) for name in ("tp", "cp", "ep", "etp", "pp")}
    micro = tape.symbol("micro_batch", prospect.configuration.micro)
    some = {name: _objects(degrees[name]) for name in ("tp", "cp", "ep", "etp")}
    where = priced(known.request, every.having(some, micro=_objects(micro)), degrees["pp"])
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

"""A candidate's costs as SymPy expressions, their numbers, and what moves the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from symconfig.cost.machine import Machine
from symconfig.cost.tape import Array, Term
from symconfig.cost.uneven import LOAD, OF_STEP
from symconfig.errors import InputError, Problem, among
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.formulas import Formulas, import_sympy
from symconfig.solve.restore import restore
from symconfig.solve.symbolic import FRAMEWORK, At, Traced, traced


@dataclass(frozen=True, slots=True)
class Known:
    """A symbol with its value in the plan, unit, source and description.

    elasticity: by how many percent the step grows if the value grows by one percent.
    """

    name: str
    value: float
    unit: str
    source: From
    meaning: str
    elasticity: float


@dataclass(frozen=True)
class Symbolic:
    """A plan's step and memory as SymPy expressions, in SI units.

    Expressions use symbols and named quantities, each of which has its own expression; `whole` expands them. What has
    no closed form is a symbol with a number: the ratio of the event simulation's seconds to the formula's.
    """

    traced: Traced
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def formulas(self) -> Formulas:
        """Return the named quantities of step and memory, each after those that it depends on."""
        parts = (*self.traced.time.values(), *(term for stage in self.traced.memory for term in stage.values()))
        return Formulas(self.traced.tape, (*parts, self.traced.step))

    @property
    def step(self) -> Any:
        """Return the step in seconds as a SymPy expression of symbols and named quantities."""
        return self._of(self.traced.step)

    @property
    def time(self) -> dict[str, Any]:
        """Return the seconds of each part of the step as SymPy expressions."""
        return {name: self._of(term) for name, term in self.traced.time.items()}

    @property
    def memory(self) -> tuple[dict[str, Any], ...]:
        """Return the bytes of each part as SymPy expressions, by stage."""
        return tuple({name: self._of(term) for name, term in stage.items()} for stage in self.traced.memory)

    @property
    def definitions(self) -> dict[Any, Any]:
        """Return the expression of each named quantity by its SymPy symbol, each after those that it uses."""
        sp = import_sympy()
        formulas = self.formulas
        symbol = {name: self._made.setdefault(name, sp.Symbol(name, real=True)) for name in formulas.names.values()}
        return {symbol[one.name]: formulas.sympy(one.line, self._made) for one in formulas}

    @property
    def numbers(self) -> dict[Any, float]:
        """Return the plan's value of each SymPy symbol: the substitution that gives the plan's own numbers."""
        sp = import_sympy()
        return {
            self._made.setdefault(name, sp.Symbol(name, real=True)): self.traced.tape.nodes[line].value
            for name, line in self.formulas.symbols.items()
        }

    @property
    def known(self) -> tuple[Known, ...]:
        """Return every symbol with its value, unit, source and elasticity, the largest effect on the step first."""
        tape, step_s, slopes = self.traced.tape, self.step_s, self.derivatives()
        every = []
        for name, line in self.formulas.symbols.items():
            value = tape.nodes[line].value
            moves = slopes.get(name, 0.0) * value / step_s
            every.append(Known(name, value, unit(name), source(name), meaning(name), moves))
        return tuple(sorted(every, key=lambda one: (-abs(one.elasticity), one.name)))

    @property
    def movers(self) -> tuple[Known, ...]:
        """Return those of `known` in MOVED (rates, times, batch, length) with an elasticity of at least 1e-4."""
        return tuple(one for one in self.known if one.name in MOVED and abs(one.elasticity) >= 1e-4)

    @property
    def step_s(self) -> float:
        """Return the step of the plan in seconds."""
        step: Term = self.traced.step
        return step.value

    def whole(self, term: Any) -> Any:
        """Return a cost of `traced` as a SymPy expression of symbols alone; a plain number comes back as it is."""
        return self.formulas.sympy(term.line, self._made, whole=True) if isinstance(term, Term) else term

    def derivatives(self) -> dict[str, float]:
        """Return the derivative of the step's seconds by each symbol at the plan; rounding counts as constant."""
        return self.traced.tape.slopes(self.traced.step.line)

    def at(self, numbers: Mapping[str, Array | float]) -> At:
        """Return the costs with other values for some symbols, numbers or arrays that broadcast.

        Raises InputError for names that are no symbols of this plan.
        """
        known = self.formulas.symbols
        wrong = [
            Problem("is no symbol of this plan", field="symbol", got=name, **among(name, sorted(known)))
            for name in numbers
            if name not in known
        ]
        if wrong:
            raise InputError(wrong)
        return self.traced.at(numbers)

    def _of(self, term: Any) -> Any:
        return self.formulas.sympy(term.line, self._made) if isinstance(term, Term) else float(term)


def symbolic(plan: Plan, candidate: Candidate) -> Symbolic:
    """Return the costs of a plan's candidate as expressions; the candidate is computed again."""
    return Symbolic(traced(restore(plan, candidate)))


class From(StrEnum):
    """Where a symbol's number comes from."""

    JOB = "job"
    DEGREES = "degrees"
    MODEL = "model"
    CLUSTER = "cluster"
    FRAMEWORK = "framework"
    SIMULATION = "simulation"


_LEVELS = tuple(f"level{level}_{what}" for level in range(4) for what in ("size", "bytes_per_s", "latency_s", "mesh"))
_DEGREES = ("tp", "pp", "cp", "ep", "etp", "micro_batch")
_JOB = ("gpus", "global_batch_size", "seq_length", LOAD, OF_STEP)
_SIMULATION = ("simulated_pipeline", "simulated_exchange", "simulated_exchange_s")
_CLUSTER = frozenset((*(one.name for one in fields(Machine)), *_LEVELS))
_UNITS = ("bytes_per_s", "flops", "bytes", "s")
_SHOWN = {"bytes_per_s": "B/s", "flops": "FLOP/s", "bytes": "B", "s": "s"}
_OWN_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "gpus": "GPUs",
        "global_batch_size": "sequences",
        "micro_batch": "sequences",
        "seq_length": "tokens",
        "keys_full": "tokens",
        "keys_window": "tokens",
        "keys_chosen": "tokens",
        "host_memory_bytes_per_gpu": "B",
        **dict.fromkeys(("adam_bytes", "copied_bytes", "cast_bytes"), "B/element"),
        **dict.fromkeys(("transpose_bytes", "quantised_bytes"), "B/element"),
        **{f"level{level}_size": "GPUs" for level in range(4)},
    }
)
_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "tp": "ranks of tensor parallelism",
        "pp": "pipeline stages; the layers of each stay as they are",
        "cp": "ranks of context parallelism",
        "ep": "ranks that the experts are spread over",
        "etp": "ranks that an expert is cut over",
        "micro_batch": "sequences of a microbatch on one data rank",
        "global_batch_size": "sequences of a step",
        "seq_length": "tokens of a sequence",
        "gpus": "GPUs of the run",
        OF_STEP: "tokens of the rank that each layer waits for over the mean, at the plan's ep",
        "peak_flops": "dense peak of most matrix products, of the slowest GPU",
        "high_peak_flops": "dense peak in 16 bits, of the slowest GPU",
        "efficiency": "of the peak, one full wave of tiles",
        "low_efficiency": "of the peak in low precision, one full wave of tiles",
        "k_half": "summed length at which a product reaches half of that",
        "hbm_bytes_per_s": "memory bandwidth that kernels reach",
        "launch_s": "floor of one kernel",
        "attention_flops": "rate of attention forward",
        "attention_backward_flops": "rate of attention backward",
        "compute_units": "of a GPU, over which tiles are dealt out",
        "host_bytes_per_s": "link to the host",
        "launching": "of the launching thread, over an x86 server's",
        "low_rate": "of the framework's products in low precision, over those with one scale for a tensor",
        "attention_rate": "of the framework's attention, over the newest kernels'",
        "host_kernel_s": "of the host to launch an operator",
        "adam_bytes": "moved by a step of Adam",
        "step_overhead_s": "once a step: data, logging, Python",
        "microbatch_overhead_s": "once a microbatch",
        "simulated_pipeline": "pipeline by the event simulation of the schedule, over the formula's",
        "simulated_exchange": "exchange beside the pipeline by the simulation, over the formula's",
        "simulated_exchange_s": "exchange beside the pipeline by the simulation",
        **{f"level{level}_bytes_per_s": f"of a GPU at network level {level}, innermost 0" for level in range(4)},
        **{f"level{level}_latency_s": f"of a message at network level {level}" for level in range(4)},
        **{f"level{level}_size": f"in one domain of network level {level}" for level in range(4)},
        **{f"level{level}_mesh": f"1: level {level} links pairs and has no switch" for level in range(4)},
    }
)
# Constants that can be changed independently: rates and times. The number of compute units, say, is tied
# to the peak.
MOVED = frozenset(
    (
        *("peak_flops", "high_peak_flops", "efficiency", "low_efficiency", "k_half", "hbm_bytes_per_s", "launch_s"),
        *("attention_flops", "attention_backward_flops", "host_bytes_per_s", "launching"),
        *(name for name in _LEVELS if name.endswith("_s")),
        *FRAMEWORK,
        "global_batch_size",
        "seq_length",
    )
)


def source(name: str) -> From:
    """Return where a symbol's number comes from; names that are not listed belong to the model."""
    places = {From.DEGREES: _DEGREES, From.JOB: _JOB, From.SIMULATION: _SIMULATION}
    places |= {From.CLUSTER: tuple(_CLUSTER), From.FRAMEWORK: FRAMEWORK}
    return next((place for place, names in places.items() if name in names), From.MODEL)


def unit(name: str) -> str:
    """Return a symbol's unit, such as "B/s"; empty for ratios and plain counts."""
    if name in _OWN_UNITS:
        return _OWN_UNITS[name]
    return next((_SHOWN[each] for each in _UNITS if name.endswith(f"_{each}")), "")


def meaning(name: str) -> str:
    """Return the description of a symbol; for unlisted ones its name with spaces."""
    return _MEANINGS.get(name) or name.replace("_", " ")

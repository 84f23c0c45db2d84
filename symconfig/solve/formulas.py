"""Formulas on a tape: named quantities as text and as SymPy expressions, and what each symbol in them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from symconfig import install
from symconfig.cost.lattice import LOAD, OF_STEP
from symconfig.cost.machine import Machine
from symconfig.cost.tape import INPUT, NUMBER, Tape, Term
from symconfig.errors import InputError

_LONGEST = 40  # most operations of a formula: parts of longer ones get a name
_SHARED = 6  # shared subexpressions with more operations get a name
_SIGNS = {"add": (" + ", 1), "subtract": (" - ", 1), "multiply": (" * ", 2), "divide": (" / ", 2), "power": ("^", 3)}
_SHORT = {"maximum": "max", "minimum": "min"}  # names of functions other than the operation's


@dataclass(frozen=True, slots=True)
class Formula:
    """A named quantity. line: its line on the tape; value: in the plan."""

    name: str
    line: int
    value: float


class Formulas:
    """The named quantities that some costs depend on, each after those that it depends on.

    names: of lines of the tape: those that the tape has, and x0, x1, … for long or shared subexpressions. symbols: line
    by name.
    """

    def __init__(self, tape: Tape, roots: Iterable[Any]) -> None:
        reached = _below(tape, *(term.line for term in roots if isinstance(term, Term)))
        self.tape, self.names = tape, {line: name for line, name in tape.names.items() if line in reached}
        self.symbols = {name: line for name, line in tape.inputs.items() if line in reached}
        self._symbol_at = {line: name for name, line in tape.inputs.items()}
        used = Counter(at for line in reached for at in (tape.nodes[line].first, tape.nodes[line].second))
        sizes = dict[int, int]()  # operations of a line's formula, 0 if it has a name
        for line in sorted(reached):
            node = tape.nodes[line]
            inner = 0 if node.operation in (INPUT, NUMBER) else 1
            sizes[line] = inner + sum(sizes[at] for at in (node.first, node.second) if at >= 0)
            if line not in self.names and (sizes[line] > _LONGEST or (used[line] > 1 and sizes[line] > _SHARED)):
                self.names[line] = f"x{len(self.names)}"
            if line in self.names:
                sizes[line] = 0

    def __iter__(self) -> Iterator[Formula]:
        for line in sorted(self.names):
            yield Formula(self.names[line], line, self.tape.nodes[line].value)

    def text(self, line: int) -> str:
        """Return the formula of a line as plain text."""
        return str(self._folded(line, lambda name: (name, 4), _number, _text)[0])

    def sympy(self, line: int) -> Any:
        """Return the formula of a line as a SymPy expression; lines with a name, other than it, and inputs are symbols.

        Raises InputError if SymPy is not installed.
        """
        sp = import_sympy()

        def number(value: float) -> Any:
            return sp.Integer(int(value)) if value.is_integer() else sp.Float(value, 17)

        return self._folded(line, lambda name: sp.Symbol(name, real=True), number, _sympy)

    def _folded(
        self, line: int, named: Callable[[str], Any], number: Callable[[float], Any],
        made: Callable[[str, Any, Any], Any],
    ) -> Any:  # fmt: skip
        """Return a line's formula built bottom-up, without recursion; named lines within it are not expanded.

        named, number, made: build the part for a named quantity or symbol, for a number, and for an operation on one or
        two parts (None for a missing second one).
        """
        results = dict[int, Any]()
        for at in sorted(_below(self.tape, line, until=self.names)):
            node = self.tape.nodes[at]
            if node.operation == NUMBER:
                results[at] = number(node.value)
            elif node.operation == INPUT:
                results[at] = named(self._symbol_at[at])
            elif at != line and at in self.names:
                results[at] = named(self.names[at])
            else:
                results[at] = made(node.operation, results[node.first], results.get(node.second))
        return results[line]


def _below(tape: Tape, *lines: int, until: Container[int] = ()) -> frozenset[int]:
    """Return the lines given and all that they depend on; of other lines in `until` what they depend on is left out."""
    below, left = set[int](), list(lines)
    while left:
        line = left.pop()
        if line >= 0 and line not in below:
            below.add(line)
            if line in lines or line not in until:
                left += (tape.nodes[line].first, tape.nodes[line].second)
    return frozenset(below)


def _text(operation: str, a: tuple[str, int], b: tuple[str, int] | None) -> tuple[str, int]:
    """Return (text, precedence 1 to 4) of an operation on such parts; operands of lower precedence get brackets.

    Operations without a sign, and those on one part, are written as calls, which have precedence 4.
    """
    if operation not in _SIGNS or b is None:
        return f"{_SHORT.get(operation, operation)}({a[0] if b is None else f'{a[0]}, {b[0]}'})", 4
    sign, level = _SIGNS[operation]
    right = level if operation in ("add", "multiply") else level + 1
    left, other = (text if own >= least else f"({text})" for (text, own), least in ((a, level), (b, right)))
    return left + sign + other, level


def _number(value: float) -> tuple[str, int]:
    """Return (text, precedence) of a number, with six significant digits unless it is an integer below a million."""
    return f"{int(value)}" if value.is_integer() and abs(value) < 1e6 else f"{value:.6g}", 4 if value >= 0 else 1


def import_sympy() -> Any:
    """Return the module SymPy; raises InputError with the command that installs it if it is missing."""
    try:
        import sympy
    except ModuleNotFoundError:
        raise InputError("SymPy is not installed", hint=install.SYMBOLIC) from None
    return sympy


def _sympy(operation: str, a: Any, b: Any) -> Any:
    """Return the SymPy expression of an operation on `a` and, if it takes two, `b`.

    max and min are not evaluated, which would compare all arguments; "above" is 1 if a > b, else 0. Raises KeyError for
    an unknown operation.
    """
    sp = import_sympy()

    made: dict[str, Callable[[], Any]] = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "divide": lambda: a / b,
        "power": lambda: a**b,
        "maximum": lambda: sp.Max(a, b, evaluate=False),
        "minimum": lambda: sp.Min(a, b, evaluate=False),
        "above": lambda: sp.Piecewise((1, sp.Gt(a, b)), (0, True)),
        "floor": lambda: sp.floor(a),
        "ceiling": lambda: sp.ceiling(a),
        "log": lambda: sp.log(a),
    }
    return made[operation]()


class From(StrEnum):
    """Where a symbol's number comes from."""

    JOB = "job"
    DEGREES = "degrees"
    MODEL = "model"
    CLUSTER = "cluster"
    FRAMEWORK = "framework"
    SIMULATION = "simulation"


def described(name: str) -> tuple[str, From, str]:
    """Return (unit, source, description) of a symbol; the unit is empty for ratios and counts.

    The source is the part of `_MEANINGS` that lists it, else the cluster for a field of Machine, else the model;
    without a meaning there its name in words stands for one.
    """
    place = next((place for place, names in _MEANINGS.items() if name in names), From.MODEL)
    if place is From.MODEL and name in Machine.__slots__:
        place = From.CLUSTER
    unit = _UNITS.get(name) or next((shown for end, shown in _ENDS.items() if name.endswith(end)), "")
    return unit, place, _MEANINGS.get(place, {}).get(name) or name.replace("_", " ")


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
_LEVELS = tuple(f"level{level}_{what}" for level in range(4) for what in ("bytes_per_s", "latency_s"))
_ENDS = {"_bytes_per_s": "B/s", "_flops": "FLOP/s", "_bytes": "B", "_s": "s"}  # unit by the end of a name
_UNITS = {
    "gpus": "GPUs",
    **dict.fromkeys(("global_batch_size", "micro_batch"), "sequences"),
    **dict.fromkeys(("seq_length", "keys_full", "keys_window", "keys_chosen"), "tokens"),
    "host_memory_bytes_per_gpu": "B",
    **dict.fromkeys(("adam_bytes", "copied_bytes", "cast_bytes", "transpose_bytes", "quantised_bytes"), "B/element"),
    **{f"level{level}_size": "GPUs" for level in range(4)},
}
# What each symbol is, by where its number comes from; of other symbols the name says it. Those of the model are not
# listed.
_MEANINGS: Mapping[From, Mapping[str, str]] = {
    From.DEGREES: {
        "tp": "ranks of tensor parallelism",
        "pp": "pipeline stages; the layers of each stay as they are",
        "cp": "ranks of context parallelism",
        "ep": "ranks that the experts are spread over",
        "etp": "ranks that an expert is split over",
        "micro_batch": "sequences of a microbatch on one data rank",
    },
    From.JOB: {
        "global_batch_size": "sequences of a step",
        "seq_length": "tokens of a sequence",
        "gpus": "GPUs of the run",
        LOAD: "",
        OF_STEP: "tokens of the rank that each layer waits for over the mean, at the plan's ep",
    },
    From.SIMULATION: {
        "simulated_pipeline": "pipeline by the event simulation of the schedule, over the formula's",
        "simulated_exchange": "exchange beside the pipeline by the simulation, over the formula's",
        "simulated_exchange_s": "exchange beside the pipeline by the simulation",
    },
    From.CLUSTER: {
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
        **{f"level{level}_bytes_per_s": f"of a GPU at network level {level}, innermost 0" for level in range(4)},
        **{f"level{level}_latency_s": f"of a message at network level {level}" for level in range(4)},
        **{f"level{level}_size": f"in one domain of network level {level}" for level in range(4)},
        **{f"level{level}_mesh": f"1: level {level} links pairs and has no switch" for level in range(4)},
    },
    From.FRAMEWORK: dict.fromkeys(FRAMEWORK, "")
    | {
        "low_rate": "of the framework's products in low precision, over those with one scale for a tensor",
        "attention_rate": "of the framework's attention, over the newest kernels'",
        "host_kernel_s": "of the host to launch an operator",
        "adam_bytes": "moved by a step of Adam",
        "step_overhead_s": "once a step: data, logging, Python",
        "microbatch_overhead_s": "once a microbatch",
    },
}
# Constants that can be changed independently: rates and times. The number of compute units, say, is tied to the peak.
MOVED = frozenset(
    (
        *("peak_flops", "high_peak_flops", "efficiency", "low_efficiency", "k_half", "hbm_bytes_per_s", "launch_s"),
        *("attention_flops", "attention_backward_flops", "host_bytes_per_s", "launching"),
        *_LEVELS,
        *FRAMEWORK,
        "global_batch_size",
        "seq_length",
    )
)

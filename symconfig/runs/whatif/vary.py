"""What may be varied of a plan's inputs, and its ranges as a person writes them: `64..4096`, `0.5..2x`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from symconfig.descriptor.cluster import ClusterDescriptor, Quantity
from symconfig.descriptor.job import Job
from symconfig.descriptor.mesh import NETWORK
from symconfig.errors import InputError, Problem, nearest
from symconfig.plans.plan import Plan

FIELD = "--vary"
MOST = 2**24  # sequences or tokens
LEAST_FACTOR, MOST_FACTOR = 0.01, 100.0
_RANGE = re.compile(r"(?P<low>[^.]*(?:\.\d+)?)\.\.(?P<high>.*?)(?P<times>x?)")
_NEED = "NAME=LOW..HIGH, as global_batch_size=64..4096 or network=0.5..2x"
SIZES = ("global_batch_size", "seq_length")
Change = Callable[[ClusterDescriptor, float], ClusterDescriptor]


@dataclass(frozen=True, slots=True)
class Vary:
    """A name with the range of its values. step: of whole numbers; 0: a factor. now: what the plan has."""

    name: str
    low: float
    high: float
    step: int
    now: float

    @property
    def whole(self) -> bool:
        """Return whether values are whole numbers, not factors."""
        return self.step > 0

    def between(self, low: float, high: float) -> float | None:
        """Return the value half way between two, by their ratio; None where a border between them is known."""
        if not self.whole:
            return None if high / low <= 1.0 + 1e-3 else math.sqrt(low * high)
        steps = round((high - low) / self.step)
        if steps <= 1:
            return None
        middle = round((math.sqrt(low * high) - low) / self.step)
        return low + self.step * min(max(middle, 1), steps - 1)

    def samples(self, count: int) -> list[float]:
        """Return so many values between the ends, evenly by their ratio, and the plan's own; each once, rising."""
        ratio = self.high / self.low
        even = [self.low * ratio ** (place / (count - 1)) for place in range(1, count - 1)]
        inner = [
            self.low + self.step * round((value - self.low) / self.step) if self.whole else value for value in even
        ]
        own = [self.now] if self.low <= self.now <= self.high and self._reached(self.now) else []
        return sorted({self.low, self.high, *inner, *own})

    def _reached(self, value: float) -> bool:
        return not self.whole or (value - self.low) % self.step == 0


def _scaled(quantity: Quantity, factor: float) -> Quantity:
    return quantity.model_copy(update={"value": quantity.value * factor})


def _levels(inside: bool) -> Change:
    def change(cluster: ClusterDescriptor, factor: float) -> ClusterDescriptor:
        levels = [
            level.model_copy(update={"bandwidth_bytes_per_s": _scaled(level.bandwidth_bytes_per_s, factor)})
            if (level.name not in NETWORK) is inside
            else level
            for level in cluster.levels
        ]
        return cluster.model_copy(update={"levels": type(cluster.levels)(levels)})

    return change


def _compute(cluster: ClusterDescriptor, factor: float) -> ClusterDescriptor:
    peaks = cluster.gpu.peak_flops
    stated = {name: getattr(peaks, name) for name in type(peaks).model_fields}
    faster = peaks.model_copy(update={name: _scaled(peak, factor) for name, peak in stated.items() if peak is not None})
    return cluster.model_copy(update={"gpu": cluster.gpu.model_copy(update={"peak_flops": faster})})


def _of_gpu(name: str) -> Change:
    def change(cluster: ClusterDescriptor, factor: float) -> ClusterDescriptor:
        gpu = cluster.gpu.model_copy(update={name: _scaled(getattr(cluster.gpu, name), factor)})
        return cluster.model_copy(update={"gpu": gpu})

    return change


RATES = MappingProxyType(
    {
        "network": _levels(inside=False),
        "links": _levels(inside=True),
        "compute": _compute,
        "memory_bandwidth": _of_gpu("memory_bandwidth_bytes_per_s"),
        "memory": _of_gpu("memory_bytes"),
    }
)


def varied(plan: Plan, words: Sequence[str]) -> tuple[Vary, ...]:
    """Return what some `NAME=LOW..HIGH` ask for. Raises InputError with all that is wrong."""
    problems: list[Problem] = []
    varies: list[Vary] = []
    for word in words:
        try:
            varies.append(_one(plan, word))
        except InputError as error:
            problems += error.problems
    twice = sorted(one for one, other in pairwise(sorted(each.name for each in varies)) if one == other)
    problems += [Problem("is varied twice", field=FIELD, got=name, need="one range") for name in dict.fromkeys(twice)]
    if not words:
        problems.append(Problem("nothing is varied", field=FIELD, need=_NEED))
    if problems:
        raise InputError(problems)
    return tuple(varies)


def _one(plan: Plan, word: str) -> Vary:
    name, _, text = (part.strip() for part in word.partition("="))
    match = _RANGE.fullmatch(text)
    problems = list(_wrong_name(plan.job, name))
    if match is None:
        raise InputError([*problems, Problem("is no range", field=FIELD, got=word, need=_NEED)])
    ends = [_number(match[end], f"{FIELD} {name}", problems) for end in ("low", "high")]
    if name in RATES and not match["times"]:
        problems.append(Problem("is varied by a factor", field=f"{FIELD} {name}", got=text, need=f"{text}x"))
    if name in SIZES and match["times"]:
        problems.append(Problem("is a number, no factor", field=f"{FIELD} {name}", got=text, need=text[:-1]))
    if None not in ends:
        problems += _wrong_range(name, text, *(end for end in ends if end is not None))
    if problems:
        raise InputError(problems)
    low, high = (end for end in ends if end is not None)
    return _of(plan, name, low, high)


def _wrong_name(job: Job, name: str) -> Iterator[Problem]:
    derived = _derived(job)
    able = [each for each in (*SIZES, *RATES) if each not in derived]
    if name not in able:
        what = f"follows from the section {derived[name]}" if name in derived else "cannot be varied"
        yield Problem(what, field=FIELD, got=name, need=f"one of {', '.join(able)}", hint=nearest(name, able))


def _derived(job: Job) -> dict[str, str]:
    """Return the sizes that a section of the job says, with its name."""
    if job.rl is not None:
        return dict.fromkeys(SIZES, "rl")
    return {} if job.sequences is None else {"seq_length": "sequences"}


def _number(text: str, field: str, problems: list[Problem]) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > 0:
        return value
    problems.append(Problem("is no number above 0", field=field, got=text or "nothing", need=_NEED))
    return None


def _wrong_range(name: str, text: str, low: float, high: float) -> Iterator[Problem]:
    field = f"{FIELD} {name}"
    if low >= high:
        yield Problem("is an empty range", field=field, got=text, need="the lower end first")
    if name in SIZES and not (low.is_integer() and high.is_integer() and high <= MOST):
        yield Problem("is no range of whole numbers", field=field, got=text, need=f"whole numbers up to {MOST:,}")
    if name in RATES and not (low >= LEAST_FACTOR and high <= MOST_FACTOR):
        yield Problem("is out of range", field=field, got=text, need=f"{LEAST_FACTOR:g}..{MOST_FACTOR:g}x")


def _of(plan: Plan, name: str, low: float, high: float) -> Vary:
    """Return the range. A size moves in steps in which the plan itself can run: batches of whole microbatches on all
    its data ranks, sequences that its context and tensor ranks share."""
    if name in RATES:
        return Vary(name, low, high, 0, 1.0)
    best = plan.best
    p, batch = best.parallel, best.batch
    if name == "global_batch_size":
        step, now = batch.micro * p.dp * (p.pp if p.vpp > 1 else 1), batch.global_
    else:
        step, now = math.lcm(128, 2 * p.cp * p.tp), batch.seq_length
    first, last = math.ceil(low / step) * step, math.floor(high / step) * step
    if first >= last:
        what = f"holds less than two values at which this plan can run, multiples of {step}"
        raise InputError(what, field=f"{FIELD} {name}", got=f"{low:g}..{high:g}", need="a wider range")
    return Vary(name, float(first), float(last), step, float(now))

"""Options beside the degrees that a search weighs: which of them a job leaves open, and requests that have them on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn

from symconfig.descriptor.job import Job
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.format import picked
from symconfig.frameworks import extras
from symconfig.frameworks.known import BACKENDS
from symconfig.plans import pipeline_layout
from symconfig.plans.configuration import Configuration
from symconfig.plans.options import EXTRAS, FIELD_OF_PIN, Extra
from symconfig.plans.plan import Candidate
from symconfig.plans.searched import one_length
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins
from symconfig.solve.space import Request, divisors


def values_of(extra: Extra, gpus: int) -> Mapping[str, Any]:
    """Return the value of each word that an option's pin may have, the framework's default first.

    Options without listed values are numbers of groups: the divisors of `gpus` that leave two GPUs to each, and 1.
    """
    return extra.values or {str(count): count for count in divisors(gpus) if count == 1 or 2 * count <= gpus}


def _pinned(extra: Extra, plain: Request) -> list[Any]:
    """Return the values of an option that a job's pins allow; empty if a pin allows none."""
    return [value for word, value in values_of(extra, plain.gpus).items() if plain.pins.leaves(extra.pin, word)]


def _columns(extra: Extra, value: Any) -> dict[str, Any]:
    """Return the columns of a point with this value of an option, with the columns in `fixed`."""
    dispatcher = {"moe_dispatcher": "flex" if value else "alltoall"} if extra.name == "moe_flex_backend" else {}
    return {**extra.fixed, extra.name: value, **dispatcher}


def switched_on(request: Request, options: Configuration | None = None, architecture: str = "") -> Request:
    """Return the request with exactly the options of a configuration on, and limits for them and its precision.

    options: None for the request's own, which its framework has; those that the framework lacks are dropped.
    architecture: of the GPUs; read only if options change. The limits before narrowing are kept in `whole`.
    """
    whole, framework, now = request.whole or request.limits, request.framework, request.configuration
    wanted = now if options is None else replace(now, **picked(options, *extras.NAMES))
    wanted = extras.supported(wanted, framework)
    if options is not None and wanted != now:
        framework = extras.put_on(framework, architecture, wanted, now)
    limits = whole.choosing({**extras.columns(wanted), "precision": request.precision})
    return replace(request, framework=framework, limits=limits, whole=whole, configuration=wanted)


def requests(plain: Request, architecture: str, usual: bool) -> tuple[Request, ...]:
    """Return one request per combination of options that the pins and the target allow, the plainest first.

    usual: the framework has its defaults; if not, the options that it has on are tried last, too, unless an option is
    pinned. ZeRO stages that another request with one more option covers are left out (`_separate`). Raises InputError
    for a pin that the target does not support, or a combination of pins.
    """
    plain = replace(plain, limits=plain.whole or plain.limits)
    _refuse_pins(plain)
    able = [extra for extra in EXTRAS if plain.job.backend in extra.of]
    now, names = plain.configuration, [extra.name for extra in able]
    every = product(*(tuple(_values(extra, plain)) for extra in able))
    wanted = [replace(now, **dict(zip(names, values, strict=True))) for values in every]
    if not usual and now not in wanted and not any(plain.pins.fixes(extra.pin) for extra in EXTRAS):
        wanted.append(now)
    runs = [one for one in wanted if plain.limits.runs(**extras.columns(one), precision=plain.precision)]
    if not runs:
        _refuse_together(plain, wanted[0])
    return tuple(_separate(switched_on(plain, one, architecture), runs) for one in runs)


def _separate(request: Request, every: Sequence[Configuration]) -> Request:
    """Return the request without the ZeRO stages that a request with one more `alone` option has, too.

    These are the stages from the one on that the option needs; it must have its default here. The request itself is
    returned if `every` has no such request, or if the option rules out anything else.
    """
    mine, limits = request.configuration, request.limits
    for extra in EXTRAS:
        zero = extra.fixed.get("zero_stage")
        if not extra.alone or zero is None or getattr(mine, extra.name) != extra.usual:
            continue
        more = [other for other in every if other != mine and replace(other, **{extra.name: extra.usual}) == mine]
        if more and not _rules_out_more(
            extra, getattr(more[0], extra.name), request.whole or limits, request.precision
        ):
            return replace(request, limits=replace(limits, zero=limits.zero[:zero]))
    return request


def _values(extra: Extra, plain: Request) -> Iterator[Any]:
    """Yield the values of one option to search.

    Pinned: all that the pin allows. If it needs sequences of equal length (`still`) and the job's differ: the default.
    Else the default and all others that the target runs, with `whole` only the last of these. With `alone` the last of
    these, then the default only if there is no other, the option needs a ZeRO stage, or the value rules out something
    else.
    """
    usual, known = extra.usual, dict.fromkeys(_pinned(extra, plain))
    if plain.pins.fixes(extra.pin):
        yield from known
        return
    if extra.still and not one_length(plain.job, plain.seq_length):
        yield usual
        return
    others = [value for value in known if value != usual and _runs(extra, value, plain)]
    if not extra.alone:
        yield usual
        yield from others[-1:] if extra.whole else others
        return
    yield from others[-1:]
    sharded = extra.fixed.get("zero_stage", 0) > 0
    if not others or sharded or _rules_out_more(extra, others[-1], plain.limits, plain.precision):
        yield usual


def _runs(extra: Extra, value: Any, plain: Request) -> bool:
    """Return whether the target supports a value of the option at some degrees.

    False if the option needs a ZeRO stage and the pins exclude all from that one up.
    """
    zero = extra.fixed.get("zero_stage")
    pinned_out = zero is not None and not any(plain.pins.allows("zero", stage) for stage in plain.limits.zero[zero:])
    return not pinned_out and plain.limits.runs(**_columns(extra, value), precision=plain.precision)


def _rules_out_more(extra: Extra, value: Any, limits: Limits, precision: str) -> bool:
    """Return whether a value leaves other choices than the option's default does, ZeRO stages aside.

    Compared are modules to recompute, full recompute, offloads at the ZeRO stages that the option needs, and the fewest
    stages and chunks.
    """
    columns = {name: meaning for name, meaning in _columns(extra, value).items() if name not in extra.fixed}
    one, other = (limits.choosing({**chosen, "precision": precision}) for chosen in ({}, columns))
    fewest = extra.fixed.get("zero_stage", 0)
    return one.offloads[fewest:] != other.offloads[fewest:] or any(
        getattr(one, name) != getattr(other, name) for name in _MAY_LOSE
    )


_MAY_LOSE = ("modules", "full_recompute", "activation_offload", "least_stages", "least_chunks")


def facts(pins: Pins, name: str) -> dict[str, Any]:
    """Return the columns that a pin fixes for every plan; empty for a range, a layout, or no pin of this name.

    The share of optimizer_offload is a number, on and off are bools, of recompute only the kind is given; columns that
    an option needs in addition (`fixed`) are left out. Raises KeyError for a word that an option does not have.
    """
    word, extra = pins.words.get(name), next((one for one in EXTRAS if one.pin == name), None)
    if word is None:
        return {name: pins.fraction} if name == "optimizer_offload" and pins.fraction is not None else {}
    if extra is not None:
        columns = _columns(extra, extra.values[word])
        return {column: value for column, value in columns.items() if column not in extra.fixed}
    on = pins.switch(name)
    return {FIELD_OF_PIN.get(name, name): word.partition(":")[0] if on is None else on}


def _violated_pins(pins: Pins, candidate: Candidate) -> list[str]:
    """Return the names of pins that a candidate does not meet; empty if it meets all.

    A name may come twice. Of the dispatcher only the flex backend is compared; cp_comm is not compared at cp = 1. A
    layout is compared chunk by chunk, pinned recompute modules as a set.
    """
    has = candidate.configuration
    how = {"moe_dispatcher"} | ({"cp_comm"} if has.cp == 1 else set())
    laid = [pipeline_layout.letters(chunk) for chunk in candidate.chunks]
    ranges = (name for name in pins.ranges if not pins.allows(name, getattr(has, FIELD_OF_PIN.get(name, name))))
    words = (
        name
        for name in (*pins.words, "optimizer_offload")
        if any(getattr(has, column) != value for column, value in facts(pins, name).items() if column not in how)
    )
    wrong = {
        "recompute": pins.modules and pins.modules != set(has.recompute_modules),
        "layout": pins.layout is not None and pipeline_layout.expanded(pins.layout) != laid,
    }
    return [*ranges, *words, *(name for name, is_wrong in wrong.items() if is_wrong)]


def check_pins(job: Job, pins: Pins, candidates: Iterable[Candidate]) -> None:
    """Raise InfeasibleError with one problem per pin that some candidate does not meet; else do nothing."""
    if names := dict.fromkeys(name for one in candidates for name in _violated_pins(pins, one)):
        what = "no plan was found that has it"
        raise InfeasibleError([Problem(what, field=f"pins.{name}", got=job.pins[name]) for name in names])


def _refuse_pins(plain: Request) -> None:
    """Raise InputError for the first pin, or the precision, that no degrees of the target support; else do nothing.

    Also for a number that does not divide the GPUs, and for an option of another framework unless the pin allows its
    default.
    """
    chosen = {"precision": plain.precision}
    pinned = {"precision": plain.precision, **plain.job.pins}
    for name, got in pinned.items():
        at = name if name not in plain.job.pins else f"pins.{name}"
        extra = next((one for one in EXTRAS if one.pin == name), None)
        values = [] if extra is None else _pinned(extra, plain)
        if extra is not None and not values:
            need = " or ".join(values_of(extra, plain.gpus))
            raise InputError(Problem(f"does not divide {plain.gpus} GPUs", field=at, got=got, need=need))
        if extra is None:
            ways = [facts(plain.pins, name) or (chosen if name == "precision" else {})]
        else:
            ways = [] if extra.usual in values else [_columns(extra, value) for value in values]
        if name == "optimizer_offload":
            ways = [{**ways[0], "param_offload": on} for on in (False, True)]
        lacks = [plain.limits.lacking(**{**chosen, **way}) for way in ways if way]
        if lacks and all(lacks):
            raise InputError(Problem(lacks[0][0].rule, field=at, got=got, hint=lacks[0][0].hint))
        if extra is not None and ways and plain.job.backend not in extra.of:
            hint = " or ".join(f"--backend {backend}" for backend in BACKENDS if backend in extra.of)
            raise InputError(Problem("is no option of this framework", field=at, got=got, hint=hint))


def _refuse_together(plain: Request, options: Configuration) -> NoReturn:
    """Raise InputError with the first constraint that refuses these options together, and all pins of options."""
    lacks = plain.limits.lacking(**extras.columns(options), precision=plain.precision)[0]
    pinned = [f"{extra.pin}={plain.job.pins[extra.pin]}" for extra in EXTRAS if plain.pins.fixes(extra.pin)]
    raise InputError(Problem(lacks.rule, field="pins", got=", ".join(pinned), hint=lacks.hint))

"""Options beside the degrees: which of them a job leaves open, requests that have them on, and experimental ones.

Stable options are used unless the job is without them; experimental ones where they are allowed, pinned, or nothing
fits without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, product
from typing import Any

import numpy as np

from symconfig.descriptor.job import Job
from symconfig.errors import InfeasibleError, InputError, Problem, Right, among
from symconfig.format import picked
from symconfig.frameworks import extras
from symconfig.frameworks.backend import ALL, Maturity, closed
from symconfig.frameworks.constraint import Constraint, Fixed
from symconfig.frameworks.known import BACKENDS
from symconfig.plans import pipeline_layout
from symconfig.plans.configuration import EXTRAS, FIELD_OF_PIN, Configuration, Extra
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.plans.plan import Candidate, Opened
from symconfig.plans.sentences import one_length
from symconfig.solve.limits import Limits
from symconfig.solve.pins import Pins, parse
from symconfig.solve.space import Request, divisors


def values_of(extra: Extra, gpus: int) -> Mapping[str, Any]:
    """Return value by word for all words that an option's pin may have, the framework's default first.

    Options without listed values are numbers: 1, and the divisors of `gpus` that leave `extra.least` GPUs to each part.
    """
    numbers = (count for count in divisors(gpus) if count == 1 or extra.least * count <= gpus)
    return extra.values or {str(count): count for count in numbers}


def _pinned(extra: Extra, plain: Request) -> list[Any]:
    """Return the values of an option that a job's pins allow; empty if a pin allows none."""
    return [value for word, value in values_of(extra, plain.gpus).items() if plain.pins.leaves(extra.pin, word)]


def _columns(extra: Extra, value: Any) -> dict[str, Any]:
    """Return the columns of a point with this value of an option, with the columns in `fixed`."""
    dispatcher = {"moe_dispatcher": "flex" if value else "alltoall"} if extra.name == "moe_flex_backend" else {}
    return {**extra.fixed, extra.name: value, **dispatcher}


def switched_on(request: Request, options: Configuration | None = None, architecture: str = "") -> Request:
    """Return the request with the options of a configuration, its framework with them, its limits narrowed to them.

    options: None for the request's own, which its framework has; those that the framework lacks are dropped.
    architecture: of the GPUs; read only if options change. Limits are narrowed to the request's precision, too; those
    before are kept in `whole`.
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
    pinned. ZeRO stages that another request with one more option covers are left out (`_without_covered_stages`).
    Raises InputError for a pin that the target does not support, or a combination of pins.
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
        lacks = plain.limits.lacking(**extras.columns(wanted[0]), precision=plain.precision)[0]
        pinned = [f"{extra.pin}={plain.job.pins[extra.pin]}" for extra in EXTRAS if plain.pins.fixes(extra.pin)]
        raise InputError(Problem(lacks.rule, field="pins", got=", ".join(pinned), hint=lacks.hint))
    return tuple(_without_covered_stages(switched_on(plain, one, architecture), runs) for one in runs)


def _without_covered_stages(request: Request, every: Sequence[Configuration]) -> Request:
    """Return the request without the ZeRO stages that are better searched with one more option on, by another request.

    The option is one with `alone` that needs a ZeRO stage; it has its default here. Stages from the needed one on are
    left to the request in `every` that differs in this option only. The request itself is returned if there is none, or
    if the option rules out anything else.
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
    Else the default and all others that the target runs; with `whole` the default and the last of these. With `alone`
    the last of these, then the default only if there is no other, the option needs a ZeRO stage from 1 on, or the value
    rules out something else (`_rules_out_more`). An option that needs a ZeRO stage has no other value if neither that
    stage nor a later one is allowed.
    """
    usual, known = extra.usual, dict.fromkeys(_pinned(extra, plain))
    if plain.pins.fixes(extra.pin):
        yield from known
        return
    if extra.still and not one_length(plain.job, plain.seq_length):
        yield usual
        return
    zero = extra.fixed.get("zero_stage")  # which must be possible, from that one up
    able = zero is None or any(plain.pins.allows("zero", stage) for stage in plain.limits.zero[zero:])
    others = [
        value
        for value in known
        if able and value != usual and plain.limits.runs(**_columns(extra, value), precision=plain.precision)
    ]
    if not extra.alone:
        yield usual
        yield from others[-1:] if extra.whole else others
        return
    yield from others[-1:]
    if not others or zero or _rules_out_more(extra, others[-1], plain.limits, plain.precision):
        yield usual


def _rules_out_more(extra: Extra, value: Any, limits: Limits, precision: str) -> bool:
    """Return whether a value of an option leaves other choices in `limits` than its default does, ZeRO stages aside.

    Compared are modules to recompute, full recompute, offload of activations, other offloads at the ZeRO stages that
    the option needs, and the fewest stages and chunks.
    """
    columns = {name: meaning for name, meaning in _columns(extra, value).items() if name not in extra.fixed}
    one, other = (limits.choosing({**chosen, "precision": precision}) for chosen in ({}, columns))
    fewest, may_lose = extra.fixed.get("zero_stage", 0), ("modules", "full_recompute", "activation_offload")
    return one.offloads[fewest:] != other.offloads[fewest:] or any(
        getattr(one, name) != getattr(other, name) for name in (*may_lose, "least_stages", "least_chunks")
    )


def columns_of_pin(pins: Pins, name: str) -> dict[str, Any]:
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


def check_pins(job: Job, candidates: Iterable[Candidate]) -> None:
    """Raise InfeasibleError with one problem per pin that some candidate does not meet; else do nothing.

    Of the dispatcher only the flex backend is compared; cp_comm is not compared at cp = 1. A layout is compared chunk
    by chunk, pinned recompute modules as a set.
    """
    missed, pins = dict[str, None](), parse(job.pins)
    for candidate in candidates:
        has = candidate.configuration
        ignored = {"moe_dispatcher"} | ({"cp_comm"} if has.cp == 1 else set())
        laid = [pipeline_layout.letters(chunk) for chunk in candidate.chunks]
        words = {name: columns_of_pin(pins, name).items() for name in (*pins.words, "optimizer_offload")}
        wrong = {name: not pins.allows(name, getattr(has, FIELD_OF_PIN.get(name, name))) for name in pins.ranges}
        wrong |= {
            name: any(getattr(has, column) != value for column, value in columns if column not in ignored)
            for name, columns in words.items()
        }
        wrong["recompute"] = wrong.get("recompute") or bool(pins.modules and pins.modules != {*has.recompute_modules})
        wrong["layout"] = pins.layout is not None and pipeline_layout.expanded(pins.layout) != laid
        missed |= dict.fromkeys(name for name, is_wrong in wrong.items() if is_wrong)
    if missed:
        what = "no plan was found that has it"
        raise InfeasibleError([Problem(what, field=f"pins.{name}", got=job.pins[name]) for name in missed])


def _refuse_pins(plain: Request) -> None:
    """Raise InputError for the first pin, or the precision, that the target supports at no degrees; else do nothing.

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
            ways = [columns_of_pin(plain.pins, name) or (chosen if name == "precision" else {})]
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


NOTHING_KNOWN = ConfigurationSet()


def excluded_options(job: Job, fixed: Fixed, has: ConfigurationSet = NOTHING_KNOWN) -> tuple[Constraint, ...]:
    """Return a constraint for each of a framework's options that a search must not use, which forbids it.

    Forbidden are those in `job.without`, and those not stable in the job's release that the job does not allow (ALL:
    any but those that must be named) and neither its pins nor the columns `has` use.
    """
    known, pinned = BACKENDS[job.backend].options, pinned_columns(job)
    wanted = (one.name for one in known if one.used(fixed, pinned) or one.used(fixed, has))
    return closed(known, BACKENDS[job.backend].releases.of(job), (*job.allow, *wanted), job.without)


def unknown_options(job: Job) -> Iterator[Problem]:
    """Yield a problem for each name in the job's `allow` and `without` that is no option of its framework.

    `allow` may also have ALL. The problem names similar options, or says that the framework has none.
    """
    known = [option.name for option in BACKENDS[job.backend].options]
    for field, names, more in (("allow", job.allow, [ALL]), ("without", job.without, [])):
        for name in names:
            if name not in (*known, *more):
                right: Right = {"need": "none: it has no options to open or close"}
                right = among(name, [*known, *more]) if known else right
                yield Problem("is no option of this framework", field=field, got=name, **right)


def needed_options(job: Job, fixed: Fixed, fits: Callable[[Job], bool]) -> tuple[str, ...]:
    """Return the names of experimental options without which nothing fits; those in `job.without` are never among them.

    fits: whether a job has any plan; called repeatedly. Options are opened maturity by maturity, in the order of
    Maturity, until something fits. Of the last maturity only those are returned each of which is enough with the
    maturities before; all of it if no single one is. All excluded options if nothing fits with them either. Those that
    a job must name (`Option.asked`) are left out.
    """
    release = BACKENDS[job.backend].releases.of(job)
    names = {constraint.name for constraint in excluded_options(job, fixed)} - set(job.without)
    options = (one for one in BACKENDS[job.backend].options if one.name in names and not one.asked)
    known = {one.name: one.standing(release) for one in options}
    better = tuple[str, ...]()
    for maturity in Maturity:
        own = tuple(name for name, standing in known.items() if standing and standing.maturity is maturity)
        if own and fits(allowing(job, *better, *own)):
            return (*better, *(tuple(name for name in own if fits(allowing(job, *better, name))) or own))
        better = (*better, *own)
    return better


def allowing(job: Job, *names: str) -> Job:
    """Return a copy of the job that allows these options, too."""
    return job.model_copy(update={"allow": (*job.allow, *names)})


def used_experimental(job: Job, fixed: Fixed, candidate: Candidate) -> Iterator[Opened]:
    """Yield the experimental options that a candidate uses and its job does not allow by name; pinned ones are marked.

    Nothing if the job allows all, and none for options that are not experimental in the job's release.
    """
    release, pinned = BACKENDS[job.backend].releases.of(job), pinned_columns(job)
    for option in BACKENDS[job.backend].options:
        known = option.standing(release)
        if (
            known is not None
            and not {option.name, ALL} & set(job.allow)
            and option.used(fixed, candidate.configuration)
        ):
            yield Opened(option.name, option.label, str(known.maturity), known.why, option.used(fixed, pinned))


def pinned_columns(job: Job) -> ConfigurationSet:
    """Return the columns that a job and its pins fix for all plans: degrees, options, offloaded share, sequence length.

    A range of degrees becomes an array along an axis of its own, up to the GPUs or the global batch, whichever is
    larger. A precision not pinned is the job's, or bf16 if that is open. Columns that are None are left out.
    """
    most, pins = max(int(job.gpus) if job.gpus != "auto" else 1, job.global_batch_size), parse(job.pins)
    axes, words = count(), dict[str, object](seq_length=job.seq_length)
    for name, (low, high) in pins.ranges.items():
        values, axis = np.arange(low, min(high, max(most, low)) + 1), next(axes)
        words[FIELD_OF_PIN.get(name, name)] = values.reshape(-1, *(1 for _ in range(axis)))
    for name in (*pins.words, "optimizer_offload"):
        words |= columns_of_pin(pins, name)
    if words.get("precision", "auto") == "auto":
        words["precision"] = "bf16" if job.precision in (None, "auto") else job.precision
    return ConfigurationSet(**{name: value for name, value in words.items() if value is not None})

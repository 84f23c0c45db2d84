"""What the statements of a program file build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from symconfig.errors import nearest
from symconfig.graph.operator import Operator, Tensor, Use, loops_of
from symconfig.graph.program.build import (
    ALL,
    ANY,
    FP32_BYTES,
    FUNCTIONS,
    NORMALISE,
    OF_INPUTS,
    STATISTICS,
    Function,
    Window,
    build,
    causal_keys,
    matching_dims,
)  # fmt: skip
from symconfig.graph.program.notation import ELEMENT_BYTES, Mistake, Statement, size_of_number

INDEX_BYTES = 4.0


def checked(statement: Statement) -> Statement:
    """Return the statement with its function's flags moved from `terms` to `flags`.

    Raise Mistake for an unknown function, a wrong number of operands or targets, an option that is unknown, empty or
    of the wrong form, and a missing required option.
    """
    name = statement.function
    function = FUNCTIONS.get(name)
    if function is None:
        need = "one of " + ", ".join(sorted(FUNCTIONS.keys() - {"*"}))
        raise Mistake("there is no such function", statement.at, got=name, need=need, hint=nearest(name, FUNCTIONS))
    flags = frozenset(term.name for term in statement.terms if term.loops is None and term.name in function.flags)
    terms = tuple(term for term in statement.terms if term.loops is not None or term.name not in flags)
    fewest, most = function.operands
    if not fewest <= len(terms) <= most:
        need = str(fewest) if fewest == most else f"{fewest} or more" if most == ANY else f"{fewest} to {most}"
        raise Mistake(f"{name} has the wrong number of operands", statement.at, got=str(len(terms)), need=need)
    if len(statement.targets) != function.targets:
        got, need = str(len(statement.targets)), str(function.targets)
        raise Mistake(f"{name} makes another number of tensors", statement.targets[0].at, got=got, need=need)
    known = (*function.needs, *function.takes)
    for option, given in statement.options.items():
        if option not in known:
            need = "one of " + ", ".join((*known, *function.flags)) if known or function.flags else "no option"
            raise Mistake(f"{name} has no such option", given.at, got=option, need=need, hint=nearest(option, known))
        if given.listed and option != "over":
            raise Mistake(f"{option} is one value", given.at, got="a list")
        if not given.values:
            raise Mistake(f"{option} is empty", given.at)
        if option == "window" and not (given.values[0].isdecimal() and int(given.values[0]) > 0):
            raise Mistake(f"{option} is a number", given.at, got=given.values[0], need=">= 1")
    for option in function.needs:
        if option not in statement.options:
            raise Mistake(f"{name} needs an option", statement.at, need=f"{option}=…")
    return replace(statement, terms=terms, flags=flags)


@dataclass(slots=True)
class Site:
    """Hold a statement with its operands.

    names: of the targets in the whole program; the first one also names the operator. made: tensors that the
    statement creates, filled as they are requested.
    """

    call: Statement
    uses: tuple[Use, ...]
    names: tuple[str, ...]
    path: str
    sizes: Mapping[str, int]
    element_bytes: float
    made: dict[str, Tensor] = field(default_factory=dict)

    @property
    def loops(self) -> tuple[str, ...]:
        """Return the dims of the first target."""
        return self.call.targets[0].dims

    def target(self, index: int = 0, element_bytes: float | None = None, *, gradient: bool = True) -> Use:
        """Return a use of target `index`, a new tensor that is recorded in `made`.

        Its element size in bytes is that of the element type in the statement, else `element_bytes`, else that of
        the first input with a gradient, else the file's default. It has a gradient if `gradient` and some input has
        one.
        """
        given = self.call.targets[index]
        width = element_bytes or next(
            (use.tensor.element_bytes for use in self.uses if use.gradient), self.element_bytes
        )
        width = ELEMENT_BYTES[given.element] if given.element else width
        return self.new(self.names[index], given.dims, width, gradient=gradient)

    def new(self, name: str, dims: tuple[str, ...], element_bytes: float, *, gradient: bool = False) -> Use:
        """Return a use of a new tensor, e.g. statistics or a mask, and record it in `made`. It has a gradient only if
        `gradient` and some input has one.
        """
        self.made[name] = Tensor(name, dims, element_bytes, gradient and any(use.gradient for use in self.uses))
        return Use(self.made[name])

    def mistake(self, what: str, operand: int | None = None, **parts: str | None) -> Mistake:
        """Return (not raise) a Mistake at the position of an operand, or of the first target if `operand` is None.
        parts: got, need, hint.
        """
        at = self.call.targets[0].at if operand is None else self.call.terms[operand].at
        return Mistake(what, at, **parts)

    def words(self, option: str) -> tuple[str, ...]:
        given = self.call.options.get(option)
        return given.values if given else ()

    def covered(self, there: Iterable[str]) -> None:
        """Raise Mistake if the first target has a dim that is not in `there`."""
        for loop in self.loops:
            if loop not in there:
                raise self.mistake("no operand has this dim of the result", got=loop)

    def check(self, function: Function) -> None:
        """Raise Mistake if operands and target break one of the function's rules for dims, or ids have a gradient.

        Rules in `function.dims`: same: the first operand has the target's dims; within: operands have no other dims
        than the target; covered: each dim of the target is in an operand; fewer: the target has fewer dims than the
        first operand; over: the option `over` names dims of the first operand; one: exactly one of them.
        """
        x, over = self.uses[0], self.words("over")
        if "same" in function.dims and set(x.loops) != set(self.loops):
            got, need = shown(x.loops), shown(self.loops)
            raise self.mistake("operand and result differ in their dims", 0, got=got, need=need)
        for operand, use in enumerate(self.uses if "within" in function.dims else ()):
            for loop in use.loops:
                if loop not in self.loops:
                    raise self.mistake("the result lacks a dim of an operand", operand, got=loop)
        if "covered" in function.dims:
            self.covered(loops_of(self.uses))
        if "fewer" in function.dims and len(self.loops) == len(x.loops):
            raise self.mistake("nothing is summed: the result has all dims", 0)
        for word in over if {"over", "one"}.intersection(function.dims) else ():
            if word not in x.loops:
                need = "one of " + ", ".join(x.loops)
                at = self.call.options["over"].at
                raise Mistake("over names no dim of the first operand", at, got=word, need=need)
        if "one" in function.dims and len(over) != 1:
            raise Mistake("over is one dim here", self.call.options["over"].at, got=", ".join(over))
        if function.ids and self.uses[function.ids].gradient:
            need = "an input, or indices that a route makes"
            raise self.mistake("ids have no gradient", function.ids, got=self.uses[function.ids].name, need=need)


def make(site: Site) -> list[Operator]:
    """Return the operators of a statement: one, or two for a norm over several dims, whose statistics come first.

    Records new tensors in `site.made`. Raise Mistake if the dims or options do not fit the function.
    """
    name = site.call.function
    site.check(FUNCTIONS[name])
    given: dict[str, Any] = {"function": name, "inputs": site.uses, "over": site.words("over")}
    given |= SPECIAL[name](site) if name in SPECIAL else {}
    if "outputs" not in given:
        given["outputs"] = [site.target()]
    first = given.pop("first", [])
    op = build(name=site.names[0], sizes=site.sizes, path=site.path, **given)
    site.made |= {use.name: use.tensor for use in op.residues}
    return [*first, op]


def _norm(site: Site) -> dict[str, Any]:
    """Return further `build` arguments of a norm over several dims, as in a batch norm: an operator that computes the
    statistics (fp32, one set per remaining element) is to go first (`first`), and the norm becomes NORMALISE, which
    reads them, with a gradient. Over one dim there are none ({}).
    """
    (x, *weights), over = site.uses, site.words("over")
    if len(over) == 1:
        return {}
    name, rest = f"{site.names[0]}.statistics", tuple(loop for loop in x.loops if loop not in over)
    stats = site.new(name, rest, FP32_BYTES * FUNCTIONS[site.call.function].sums, gradient=True)
    first = build(STATISTICS, name, [x], [stats], path=site.path)
    return {"first": [first], "function": NORMALISE, "inputs": (x, stats, *weights), "over": ()}


def _attention(site: Site) -> dict[str, Any]:
    """Return the `build` arguments of an attention: `attended`, the mean number of keys per query (all keys; with
    `causal` or `window`, its own and those before it, within the window), and head groups.

    Raise Mistake if an operand has fewer than two dims, `over` is not exactly one dim of keys and values that the
    result lacks, or the last dims of queries and keys, or of values and result, differ.
    """
    q, k, v = site.uses[:3]
    for operand, use in enumerate((q, k, v)):
        if len(use.loops) < 2:
            raise site.mistake("attention needs a dim of tokens and one of channels", operand)
    over = site.words("over")
    if len(over) != 1 or over[0] not in k.loops or over[0] not in v.loops or over[0] in site.loops:
        raise site.mistake("over is the dim of keys, of the second and third operand only", 1, got=", ".join(over))
    if q.loops[-1] != k.loops[-1]:
        raise site.mistake("queries and keys end in the same channels", 1, got=k.loops[-1], need=q.loops[-1])
    if v.loops[-1] != site.loops[-1]:
        raise site.mistake("the result ends in the values' channels", got=site.loops[-1], need=v.loops[-1])
    keys, window = site.sizes[over[0]], next(map(int, site.words("window")), None)
    masked = window is not None or "causal" in site.call.flags
    return {
        "attended": causal_keys(keys, window) if masked else float(keys),
        "groups": _head_groups(site, q, k, over[0]),
    }


def _head_groups(site: Site, q: Use, k: Use, over: str) -> list[tuple[str, ...]]:
    """Return the pairs (query loop, key loop) that are split together: for each loop of the keys but `over` that
    queries lack, the query loop at the same position; empty if there is none.

    Raise Mistake if queries and keys differ in rank, the query loop is one of the keys, too, or its size is no
    multiple.
    """
    groups: list[tuple[str, ...]] = []
    for loop in (loop for loop in k.loops if loop not in q.loops and loop != over):
        partner = q.loops[k.loops.index(loop)] if len(q.loops) == len(k.loops) else None
        if partner is None or partner in k.loops:
            need = "the dim at its place among those of the queries"
            raise site.mistake("no dim of the queries goes with one of the keys", 1, got=loop, need=need)
        if site.sizes[partner] % site.sizes[loop]:
            got = f"{site.sizes[partner]} for {site.sizes[loop]}"
            raise site.mistake("heads do not share keys evenly", 1, got=got, need="a multiple")
        groups.append((partner, loop))
    return groups


def _cross_entropy(site: Site) -> dict[str, Any]:
    """Return the `build` arguments of a cross-entropy, whose output is one loss per row, fp32 unless the statement
    says. Raise Mistake if the result's dims are not those of the logits but `over`.
    """
    logits, over = site.uses[0], site.words("over")
    if set(site.loops) != set(logits.loops) - {*over}:
        rows = [loop for loop in logits.loops if loop not in over]
        raise site.mistake("there is one loss of each row", got=", ".join(site.loops), need=", ".join(rows))
    return {"outputs": [site.target(0, FP32_BYTES)]}


def _reshape(site: Site) -> dict[str, Any]:
    """Return {"groups", "traffic"} for `build`. groups: the outermost dims (old, new) of each pair of shortest runs of
    dims that hold the same number of elements on both sides; dims of size 1 are in no group. traffic: that of a copy
    with the flag `copy`, else None.

    Raise Mistake if the number of elements changes.
    """
    old, new = site.uses[0].loops, site.loops
    before, after = ([site.sizes[loop] for loop in some] for some in (old, new))
    if prod(before) != prod(after):
        raise site.mistake("a reshape keeps the number of elements", got=", ".join(new))
    groups = [tuple(dict.fromkeys((old[a[0]], new[b[0]]))) for a, b in matching_dims(before, after)]
    return {"groups": groups, "traffic": ALL if "copy" in site.call.flags else None}


def _convolution(site: Site) -> dict[str, Any]:
    """Return the `build` arguments of a convolution: inputs along the loops of the result, and a Window for each
    spatial loop.

    The weight's own dims are the window sizes. They pair, in order, with the last dims of the operand and of the result
    that the weight lacks. Raise Mistake if there are too few of those, a dim of the result is in no operand, or a
    pair's sizes fit no window: the result's is larger, or no divisor although windows do not overlap.
    """
    x, weight = site.uses
    within = [loop for loop in weight.loops if loop not in x.loops and loop not in site.loops]
    candidates = [loop for loop in x.loops if loop not in weight.loops]
    results = [loop for loop in site.loops if loop not in weight.loops]
    count = len(within)
    if count > min(len(candidates), len(results)):
        raise site.mistake("the weight's window has more dims than there are to walk", 1, got=str(count))
    walked = dict(zip(candidates[len(candidates) - count :], results[len(results) - count :], strict=True))
    sized = zip(walked.items(), within, strict=True)
    windows = {new: _window(site, old, new, site.sizes[size]) for (old, new), size in sized}
    along = Use(x.tensor, tuple(walked.get(loop, loop) for loop in x.loops))
    site.covered({*along.loops, *weight.loops})
    return {"inputs": (along, weight), "windows": windows}


def _pool(site: Site) -> dict[str, Any]:
    """Return the `build` arguments of a pool: the input along the loops of the result and a Window for each dim in
    `over`. With the flag `max` its input is kept for the backward pass, else nothing.

    Raise Mistake if operand and result differ in rank, a dim of the result is not the operand's, or a dim's sizes fit
    no window: the result's is larger, or no divisor although windows do not overlap.
    """
    x, over = site.uses[0], site.words("over")
    if len(x.loops) != len(site.loops):
        raise site.mistake("a pool keeps the number of dims", got=", ".join(site.loops))
    walked = {loop: new for loop, new in zip(x.loops, site.loops, strict=True) if loop in over}
    along = Use(x.tensor, tuple(walked.get(loop, loop) for loop in x.loops))
    site.covered(along.loops)
    windows = {new: _window(site, old, new, int(site.words("window")[0])) for old, new in walked.items()}
    most = {"function": OF_INPUTS} if "max" in site.call.flags else {}
    return {"inputs": (along,), "windows": windows, "over": ()} | most


def _window(site: Site, old: str, new: str, size: int) -> Window:
    """Return a Window of `size` rows whose stride is the ratio of the sizes of dims `old` and `new`, rounded, at least
    1.

    Raise Mistake if `new` is larger than `old`, or the ratio is not an integer and windows do not overlap.
    """
    before, after = site.sizes[old], site.sizes[new]
    if after > before:
        raise site.mistake("a window makes no dim longer", got=f"{after} of {before}")
    window = Window(size, max(1, round(before / after)))
    if before % after and not window.halo:
        raise site.mistake("a dim is used with two sizes", 0, got=f"{old} = {before}, {new} = {after}")
    return window


def _route(site: Site) -> dict[str, Any]:
    """Return the `build` arguments of a router, with two outputs: weights, and indices (4 bytes, no gradient).

    Raise Mistake unless both targets have the same dims: those of the logits with `over` replaced by a dim of choices.
    """
    over, logits = site.words("over"), site.uses[0]
    tokens = set(logits.loops) - {*over}
    weights, routes = (target.dims for target in site.call.targets)
    if weights != routes or len(weights) != len(logits.loops) or not tokens < set(weights) or over[0] in weights:
        got, need = ", ".join(weights), "its dims and one of choices, for both results"
        raise site.mistake("a route makes the choices of each token", got=got, need=need)
    return {"outputs": [site.target(0), site.target(1, INDEX_BYTES, gradient=False)]}


def _slots(site: Site) -> dict[str, Any]:
    """Return {"slots": dim}, the `build` argument of a dispatch or combine: the dim of an expert's slots.

    Raise Mistake if the tensor [experts, slots, channels] does not have exactly two dims that tokens [rows, channels]
    lack, one of them the option `slots`.
    """
    there = site.call.function == "dispatch"
    tokens, slotted = (site.uses[0].loops, site.loops) if there else (site.loops, site.uses[0].loops)
    word = ", ".join(site.words("slots"))
    new = [loop for loop in slotted if loop not in tokens]
    if word not in new or len(new) != 2:
        need = "slots=… and a dim of experts, that tokens lack"
        raise site.mistake("slots have two dims of their own", got=", ".join(new) or "none", need=need)
    return {"slots": word}


SPECIAL: Mapping[str, Callable[[Site], dict[str, Any]]] = {
    **dict.fromkeys(("norm", "layernorm", "batchnorm"), _norm),
    "attention": _attention,
    "cross_entropy": _cross_entropy,
    "reshape": _reshape,
    "conv": _convolution,
    "pool": _pool,
    "route": _route,
    **dict.fromkeys(("dispatch", "combine"), _slots),
}


def check_dims(dims: tuple[str, ...], sizes: Mapping[str, int], at: int) -> None:
    """Raise Mistake at character `at` if a dim is undefined, is the number 0, or occurs twice in the tensor."""
    for dim in dims:
        if size_of_number(dim) == 0:
            raise Mistake("a dim has no elements", at, got=dim)
        if dim not in sizes and size_of_number(dim) is None:
            raise Mistake("the dim is undefined", at, got=dim)
    for dim in dims:
        if dims.count(dim) > 1:
            raise Mistake("a dim is used twice in a tensor", at, got=dim, hint="a second dim of the same size")


def used(tensor: Tensor, loops: tuple[str, ...] | None, sizes: Mapping[str, int], at: int) -> Use:
    """Return a use of the tensor along `loops`; None: along its own dims.

    Raise Mistake if the rank or a size differs, or a loop is undefined or repeated. A dim of the tensor that is
    undefined is accepted, since it was reported at its declaration.
    """
    if loops is None or loops == tensor.dims:
        return Use(tensor)
    if len(loops) != len(tensor.dims):
        raise Mistake("the rank does not match", at, got=shown(loops), need=shown(tensor.dims))
    check_dims(loops, sizes, at)
    for loop, dim in zip(loops, tensor.dims, strict=True):
        if sizes[loop] != sizes.get(dim, sizes[loop]):  # an undefined one is reported at its declaration
            raise Mistake("a dim is used with two sizes", at, got=f"{loop} = {sizes[loop]}, {dim} = {sizes[dim]}")
    return Use(tensor, loops)


def shown(dims: Iterable[str]) -> str:
    return f"[{', '.join(dims)}]"

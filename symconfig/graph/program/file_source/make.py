"""What the functions of a program file build."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from symconfig.graph.operator import Operator, Use
from symconfig.graph.program import build
from symconfig.graph.program.file_source.site import Site
from symconfig.graph.program.functions import FUNCTIONS, LINEAR, NORMALISE, OF_INPUTS

FP32_BYTES, INDEX_BYTES, MASK_BYTES = 4.0, 4.0, 1.0


def make(site: Site) -> list[Operator]:
    """Make the operators of a statement. Raises Mistake."""
    return _MAKERS.get(site.call.statement.function, _elementwise)(site)


def _elementwise(site: Site) -> list[Operator]:
    site.within()
    function = FUNCTIONS[site.call.statement.function]
    return [build.elementwise(site.name, site.uses, site.target(), function, path=site.path)]


def _rope(site: Site) -> list[Operator]:
    site.within()
    whole = site.option("over")
    target = site.target()
    return [build.elementwise(site.name, site.uses, target, FUNCTIONS["rope"], whole=whole, path=site.path)]


def _bias(site: Site) -> list[Operator]:
    """Return the traffic of a bias: none forward; backward, its sum reads the gradient of the result once, of the two
    that are counted.
    """
    site.within()
    target, traffic = site.target(), (0.0, 0.5)
    return [build.elementwise(site.name, site.uses, target, FUNCTIONS["bias"], traffic=traffic, path=site.path)]


def _dropout(site: Site) -> list[Operator]:
    site.same()
    mask = site.extra("mask", site.loops, MASK_BYTES)
    return [build.dropout(site.name, site.uses[0], site.target(), mask, path=site.path)]


def _product(site: Site) -> list[Operator]:
    site.covered()
    x, y = site.uses
    return [build.product(site.name, x, y, site.target(), path=site.path)]


def _gather(site: Site) -> list[Operator]:
    site.covered()
    table = site.uses[0]
    return [build.gather(site.name, table, site.ids(1), site.target(), site.sizes, path=site.path)]


def _softmax(site: Site) -> list[Operator]:
    site.same()
    return [build.softmax(site.name, site.uses[0], site.target(), site.one("over"), path=site.path)]


def _norm(site: Site) -> list[Operator]:
    """Make a norm: over one dim in one kernel; over several, as of a batch, with a pass of its own for the
    statistics.
    """
    site.same()
    site.within()
    x, *weights = site.uses
    over, sums = site.option("over"), 1 if site.call.statement.function == "norm" else 2
    rest = tuple(loop for loop in x.loops if loop not in over)
    if len(over) == 1:
        stats = site.extra("statistics", rest, FP32_BYTES * sums)
        target = site.target()
        return [build.norm(site.name, x, weights, target, over[0], stats, sums=sums, path=site.path)]
    stats = site.extra("statistics", rest, FP32_BYTES * sums, gradient=True)
    return [
        build.statistics(stats.name, x, stats, path=site.path),
        build.elementwise(site.name, (x, stats, *weights), site.target(), NORMALISE, path=site.path),
    ]


def _attention(site: Site) -> list[Operator]:
    q, k, v, *others = site.uses
    site.covered()
    for operand, use in enumerate((q, k, v)):
        if len(use.loops) < 2:
            raise site.mistake("attention needs a dim of tokens and one of channels", operand)
    over = site.call.words("over")
    if len(over) != 1 or over[0] not in k.loops or over[0] not in v.loops or over[0] in site.loops:
        raise site.mistake("over is the dim of keys, of the second and third operand only", 1, got=", ".join(over))
    if q.loops[-1] != k.loops[-1]:
        raise site.mistake("queries and keys end in the same channels", 1, got=k.loops[-1], need=q.loops[-1])
    if v.loops[-1] != site.loops[-1]:
        raise site.mistake("the result ends in the values' channels", got=site.loops[-1], need=v.loops[-1])
    stats = site.extra("statistics", (loop for loop in site.loops[:-1]), FP32_BYTES)
    return [
        build.attention(
            site.name,
            q,
            k,
            v=v,
            output=site.target(),
            over=over[0],
            stats=stats,
            attended=_attended(site, over[0]),
            channels=float(site.sizes[q.loops[-1]] + site.sizes[v.loops[-1]]),
            together=_together(site, q, k, over[0]),
            others=others,
            path=site.path,
        )
    ]


def _attended(site: Site, over: str) -> float:
    """Return the mean number of keys of a query: all; or those before it; or those in a window before it."""
    keys = site.sizes[over]
    window = site.call.number("window")
    if window is None and "causal" not in site.call.flags:
        return float(keys)
    reach = min(window or keys, keys)
    return (reach * reach / 2 + (keys - reach) * reach) / keys


def _together(site: Site, q: Use, k: Use, over: str) -> list[tuple[str, ...]]:
    """Return what splits together where keys have fewer heads than queries, at the same place among their dims."""
    lone = [loop for loop in k.loops if loop not in q.loops and loop != over]
    groups: list[tuple[str, ...]] = []
    for loop in lone:
        place = k.loops.index(loop)
        partner = q.loops[place] if len(q.loops) == len(k.loops) else None
        if partner is None or partner in k.loops:
            need = "the dim at its place among those of the queries"
            raise site.mistake("no dim of the queries goes with one of the keys", 1, got=loop, need=need)
        if site.sizes[partner] % site.sizes[loop]:
            got = f"{site.sizes[partner]} for {site.sizes[loop]}"
            raise site.mistake("heads do not share keys evenly", 1, got=got, need="a multiple")
        groups.append((partner, loop))
    return groups


def _cross_entropy(site: Site) -> list[Operator]:
    site.covered()
    logits, over = site.uses[0], site.one("over")
    if set(site.loops) != set(logits.loops) - {over}:
        rows = [loop for loop in logits.loops if loop != over]
        raise site.mistake("there is one loss of each row", got=", ".join(site.loops), need=", ".join(rows))
    target = site.target(element_bytes=FP32_BYTES)
    return [build.cross_entropy(site.name, logits, site.ids(1), target, over, path=site.path)]


def _reduction(site: Site) -> list[Operator]:
    site.covered()
    if len(site.loops) == len(site.uses[0].loops):
        raise site.mistake("nothing is summed: the result has all dims", 0)
    function = OF_INPUTS if site.call.statement.function == "max" else LINEAR
    return [build.reduction(site.name, site.uses[0], site.target(), function, path=site.path)]


def _permute(site: Site) -> list[Operator]:
    site.same()
    return [build.permute(site.name, site.uses[0], site.target(), path=site.path)]


def _reshape(site: Site) -> list[Operator]:
    groups = _groups(site)
    copies = "copy" in site.call.flags
    return [build.reshape(site.name, site.uses[0], site.target(), groups, copies=copies, path=site.path)]


def _groups(site: Site) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the shortest runs of dims on both sides with the same number of elements; dims of one element split
    nothing.
    """
    old = [loop for loop in site.uses[0].loops if site.sizes[loop] > 1]
    new = [loop for loop in site.loops if site.sizes[loop] > 1]
    groups = []
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        a, b = site.sizes[left[0]], site.sizes[right[0]]
        while a != b and (old if a < b else new):
            if a < b:
                left.append(old.pop(0))
                a *= site.sizes[left[-1]]
            else:
                right.append(new.pop(0))
                b *= site.sizes[right[-1]]
        if a != b:
            break
        groups.append((tuple(left), tuple(right)))
    else:
        if not old and not new:
            return groups
    raise site.mistake("a reshape keeps the number of elements", got=", ".join(site.loops))


def _convolution(site: Site) -> list[Operator]:
    """Make a convolution. The weight's own dims are the window; as many of the last other dims of operand and result
    are what it walks.
    """
    x, weight = site.uses
    window = [loop for loop in weight.loops if loop not in x.loops and loop not in site.loops]
    walked = _walked(x, [loop for loop in x.loops if loop not in weight.loops], site, len(window))
    along = Use(x.tensor, tuple(walked.get(loop, loop) for loop in x.loops))
    windows = {
        walked[loop]: build.Window(site.sizes[size], _stride(site, loop, walked[loop]))
        for loop, size in zip(walked, window, strict=True)
    }
    _appears(site, {*along.loops, *weight.loops})
    return [build.convolution(site.name, along, weight, site.target(), windows, path=site.path)]


def _pool(site: Site) -> list[Operator]:
    x, over = site.uses[0], site.option("over")
    size = site.call.number("window") or 1
    if len(x.loops) != len(site.loops):
        raise site.mistake("a pool keeps the number of dims", got=", ".join(site.loops))
    walked = {loop: new for loop, new in zip(x.loops, site.loops, strict=True) if loop in over}
    along = Use(x.tensor, tuple(walked.get(loop, loop) for loop in x.loops))
    _appears(site, set(along.loops))
    windows = {new: build.Window(size, _stride(site, old, new)) for old, new in walked.items()}
    most = "max" in site.call.flags
    return [build.pool(site.name, along, site.target(), windows, maximum=most, path=site.path)]


def _walked(x: Use, candidates: list[str], site: Site, count: int) -> dict[str, str]:
    """Return, for each dim that a window walks along, its name in the result."""
    results = [loop for loop in site.loops if loop not in site.uses[1].loops]
    if count > min(len(candidates), len(results)):
        raise site.mistake("the weight's window has more dims than there are to walk", 1, got=str(count))
    start = len(candidates) - count
    return dict(zip(candidates[start:], results[len(results) - count :], strict=True))


def _stride(site: Site, old: str, new: str) -> int:
    before, after = site.sizes[old], site.sizes[new]
    if after > before:
        raise site.mistake("a window makes no dim longer", got=f"{after} of {before}")
    return max(1, round(before / after))


def _appears(site: Site, there: set[str]) -> None:
    for loop in site.loops:
        if loop not in there:
            raise site.mistake("no operand has this dim of the result", got=loop)


def _route(site: Site) -> list[Operator]:
    over = site.one("over")
    logits = site.uses[0]
    tokens = set(logits.loops) - {over}
    weights, routes = (target.dims for target in site.call.statement.targets)
    if weights != routes or len(weights) != len(logits.loops) or not tokens < set(weights) or over in weights:
        got, need = ", ".join(weights), "its dims and one of choices, for both results"
        raise site.mistake("a route makes the choices of each token", got=got, need=need)
    outputs = (site.target(0), site.target(1, element_bytes=INDEX_BYTES, gradient=False))
    return [build.route(site.name, logits, outputs, over, path=site.path)]


def _dispatch(site: Site) -> list[Operator]:
    x, routes = site.uses[0], site.ids(1)
    slots = _slots(site, x, site.loops)
    return [build.dispatch(site.name, x, routes, site.target(), slots, path=site.path)]


def _combine(site: Site) -> list[Operator]:
    done, weights, routes = site.uses[0], site.uses[1], site.ids(2)
    target = site.target()
    slots = _slots(site, target, done.loops)
    return [build.combine(site.name, done, weights, routes, target, slots, path=site.path)]


def _slots(site: Site, tokens: Use, slotted: tuple[str, ...]) -> str:
    """Return the slots' dim of [experts, slots, channels] for tokens [rows, channels]."""
    word = ", ".join(site.call.words("slots"))
    new = [loop for loop in slotted if loop not in tokens.loops]
    if word not in new or len(new) != 2:
        need = "slots=… and a dim of experts, that tokens lack"
        raise site.mistake("slots have two dims of their own", got=", ".join(new) or "none", need=need)
    return word


_MAKERS: Mapping[str, Callable[[Site], list[Operator]]] = {
    "*": _product,
    "gather": _gather,
    "softmax": _softmax,
    "norm": _norm,
    "layernorm": _norm,
    "batchnorm": _norm,
    "attention": _attention,
    "conv": _convolution,
    "pool": _pool,
    "cross_entropy": _cross_entropy,
    **dict.fromkeys(("sum", "mean", "max"), _reduction),
    "permute": _permute,
    "reshape": _reshape,
    "dropout": _dropout,
    "bias": _bias,
    "rope": _rope,
    "route": _route,
    "dispatch": _dispatch,
    "combine": _combine,
}

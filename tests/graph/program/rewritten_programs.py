"""Small programs to be rewritten, what torch computes of them, and all programs that the rules reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch

from symconfig.graph.operator import Operator, Use
from symconfig.graph.program.program import Program
from symconfig.graph.program.read import load_program
from symconfig.graph.program.rewrite import canonical, rewrites, rewritten

DIMS = "b: 3, s: 2, s2: s, h: 4, h2: h, f: 6, r: 2, a: 4, g: 2, g2: g, c: 3"
SIZES = {"b": 3, "c": 3, "s": 2, "s2": 2, "r": 2, "h": 4, "h2": 4, "a": 4, "f": 6}  # of these dims
ELEMENTWISE = {
    "add": lambda *some: sum(some), "sub": lambda x, y: x - y, "mul": lambda *some: torch.stack(some).prod(0),
    "bias": lambda x, y: x + y, "scale": lambda x: 0.7 * x, "neg": lambda x: -x, "copy": lambda x: x,
    "square": lambda x: x**2, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.relu,
    "tanh": torch.tanh, "swiglu": lambda x, y: torch.nn.functional.silu(x) * y, "cast": lambda x: x,
}  # fmt: skip
LAYER = (
    "'p[b,s,f] = x1 * gate', 'q[b,s,f] = x1 * up', 'e[b,s,f] = silu(p)', 'a1[b,s,f] = mul(e, q)', "
    "'d[b,s,h] = a1 * down', 'y[b,s,h] = add(x1, d)'"
)
SAMPLES = {  # operators, parameters, outputs
    "three products of one input": (
        "q[b,s,a,c] = x * wq[h,a,c]; k[b,s,g,c] = x * wk[h,g,c]; v[b,s,g,c] = x * wv[h,g,c]; kv[b,s,g,c] = mul(k, v); "
        "w[b,s,g] = kv * wo[g,c]; u[b,s,a] = q * wu[a,c]",
        "wq: [h,a,c], wk: [h,g,c], wv: [h,g,c], wo: [g,c], wu: [a,c]",
        "w, u",
    ),
    "heads that share keys": (
        "q[b,s,g,a,c] = x * wq[g,a,c,h]; k[b,s2,g2,c] = x[b,s2,h] * wk[g2,c,h]; v[b,s,g,f] = x * wv[g,f,h]; "
        "w[b,s,g] = q * wo[a,c]; u[b,s,h] = v * wu[g,f,h]",
        "wq: [g,a,c,h], wk: [g2,c,h], wv: [g,f,h], wo: [a,c], wu: [g,f,h]",
        "w, u, k",
    ),
    "a gated unit": (
        "p[b,s,f] = x * gate; q[b,s,f] = x * up; e[b,s,f] = silu(p); a1[b,s,f] = mul(e, q); y[b,s,h] = a1 * down",
        "gate: [h,f], up: [h,f], down: [f,h]",
        "y",
    ),
    "an adapter": (
        "delta[h,h2] = first * second; whole[h,h2] = add(weight, delta); y[b,s,h2] = x * whole",
        "first: [h,r], second: [r,h2], weight: {dims: [h,h2], frozen: true}",
        "y",
    ),
    "a chain back to its own width": (
        "t[b,s,f] = x * one; y[b,s,h] = t * two; z[b,s,f] = y * one2[h,f]",
        "one: [h,f], two: [f,h], one2: [h,f]",
        "z",
    ),
    "sums of products": (
        "p[b,s,f] = x * one; q[b,s,f] = x * two; y[b,s,f] = add(p, q); z[b,s,f] = silu(x2); m[b,s,f] = add(y, z); "
        "n1[b,s,h] = m * three; n2[b,s,h] = z * three; o[b,s,h] = add(n1, n2)",
        "one: [h,f], two: [h,f], three: [f,h]",
        "o",
    ),
    "elementwise operators": (
        "p[b,s,f] = x * one; p1[b,s,f] = bias(p, shift); p2[b,s,f] = gelu(p1); p3[b,s,f] = mul(p2, x2); "
        "p4[b,s,f] = relu(p3); p5[b,s,f] = add(p4, x2); p6[b,s,f] = mul(p5, p5)",
        "one: [h,f], shift: [f]",
        "p6",
    ),
    "layers": (
        "x1[b,s,h] = mul(x, first); repeat: {name: layers, times: 3, carry: {x1: y}, "
        f"parameters: {{gate: [h,f], up: [h,f], down: [f,h]}}, body: [{LAYER}]}}; z[b,s,r] = y * last",
        "first: [h], last: [h,r]",
        "z",
    ),
}


def sample(folder: Path, of: str | tuple[str, str, str], reverse: bool = False, **dims: int) -> Program:
    """Return a sample, or the program of these operators, parameters and outputs. reverse: with independent operators
    the other way round. dims: sizes instead of DIMS.
    """
    operators, parameters, outputs = SAMPLES[of] if isinstance(of, str) else of
    lines = "".join(f"\n  - {line}" for line in operators.split("; "))
    path = folder / "sample.yaml"
    inputs = "x: [b, s, h]" + (", x2: [b, s, f]" if "x2" in operators else "")
    path.write_text(
        f"schema: symconfig.program/1\nname: sample\ndims: {{{DIMS}}}\nbatch: [b]\ninputs: {{{inputs}}}\n"
        f"parameters: {{{parameters}}}\noperators:{lines}\noutputs: [{outputs}]\n"
    )
    program = load_program(path, dims)
    if not reverse:
        return program
    left, ordered, given = list(program.operators[::-1]), list[Operator](), {use.name for use in made(program)}
    while left:
        at = next(n for n, op in enumerate(left) if not given & {use.name for use in op.inputs})
        given -= {use.name for use in left[at].outputs}
        ordered.append(left.pop(at))
    return replace(program, operators=tuple(ordered))


def drawn(seed: int) -> tuple[str, str, str]:
    """Return operators, parameters and outputs of a random program: products, sums and elementwise functions."""
    random = np.random.default_rng(seed)
    lines, weights, tensors = list[str](), dict[str, str](), {"x": "b,s,h"}
    unread = dict[str, None]()
    for number in range(12):
        x, loops = list(tensors.items())[-int(random.integers(1, 1 + min(3, len(tensors))))]
        alike = [other for other, same in tensors.items() if same == loops and other != x]
        kind, read = int(random.integers(4)), [x]
        if kind == 0 and alike:
            read.append(str(random.choice(alike)))
            call = f"{random.choice(['add', 'add', 'mul', 'sub'])}({x}, {read[1]})"
        elif kind == 1:
            call = f"{random.choice(['silu', 'gelu', 'scale', 'relu'])}({x})"
        else:
            new = str(random.choice([dim for dim in "hfr" if dim != loops[-1]]))
            known = [weight for weight, dims in weights.items() if dims == f"{loops[-1]},{new}"]
            weight = str(random.choice(known)) if known and kind == 2 else f"w{number}"
            weights[weight], loops = f"{loops[-1]},{new}", loops[:-1] + new
            call = f"{x} * {weight}"
        lines.append(f"t{number}[{loops}] = {call}")
        tensors[f"t{number}"] = loops
        unread = {other: None for other in unread if other not in read} | {f"t{number}": None}
    return "; ".join(lines), ", ".join(f"{name}: [{dims}]" for name, dims in weights.items()), ", ".join(unread)


def reread(seed: int) -> tuple[str, str, str]:
    """Return operators, parameters and outputs of a random program whose products and sums read what there is along
    other dims of equal sizes, in any order.
    """
    random = np.random.default_rng(seed)
    known, weights, lines, read = {"x": ["b", "s", "h"]}, dict[str, list[str]](), list[str](), {"x"}

    def mixed(some: Iterable[str]) -> list[str]:
        return [str(one) for one in random.permutation([*some])]

    def renamed(dims: list[str], able: Iterable[str], stay: float) -> list[str]:
        """Return for each of the dims one of its size of those that are able, itself by this probability."""
        found, left = list[str](), mixed(able)
        for dim in dims:
            alike = [other for other in left if SIZES[other] == SIZES[dim]]
            found.append(dim if dim in alike and random.random() < stay else alike[0])
            left.remove(found[-1])
        return found

    def shape(dims: Iterable[str]) -> list[int]:
        return sorted(SIZES[dim] for dim in dims)

    for number in range(int(random.integers(4, 9))):
        name, every = f"t{number}", {**known, **weights}
        pairs = [(x, y) for x in known for y in every if y != x and shape(known[x]) == shape(every[y])]
        if pairs and random.random() < 0.4:
            x, other = max((pairs[at] for at in random.permutation(len(pairs))), key=lambda pair: len({*pair} - read))
            out = known[x]
            also = ",".join(renamed(every[other], out, 0))
            lines.append(f"{name}[{','.join(out)}] = {random.choice(['add', 'add', 'mul'])}({x}, {other}[{also}])")
        else:
            x, other = "x" if random.random() < 0.6 else mixed(known)[0], mixed(every)[0]
            mine = renamed(known[x], SIZES, 0.6)
            if random.random() < 0.8:
                some, new = mixed(mine)[: int(random.integers(1, 4))], mixed(dim for dim in "bshf" if dim not in mine)
                other, own = f"w{number}", [*new[: int(random.integers(3))], *(dim for dim in mine if dim in some)]
                weights[other] = own
            else:
                own = renamed(every[other], SIZES, 0.6)
            out = mixed(
                dim
                for dim in dict.fromkeys((*mine, *own))
                if not (dim in mine and dim in own and random.random() < 0.7)
            )
            if len(out) not in (1, 2, 3) and number:
                continue
            both = f"{x}[{','.join(mine)}]", f"{other}[{','.join(own)}]"
            lines.append(f"{name}[{','.join(out)}] = {' * '.join(both[:: random.choice([1, 1, 1, -1])])}")
        known[name] = out
        read |= {x, other}
    outputs = [name for name in known if name not in read]
    used = ", ".join(f"{name}: [{','.join(dims)}]" for name, dims in weights.items() if name in read)
    return "; ".join(lines), used, ", ".join(outputs)


def made(program: Program) -> list[Use]:
    return [use for op in program.operators for use in op.outputs]


def reached(program: Program, most: int = 10_000) -> Iterator[tuple[Program, tuple[str, ...]]]:
    """Yield the programs that the rules reach, at most so many, with the rules on the way; the program itself first."""
    numbers: dict[object, int] = {}
    seen, left = {canonical(program, numbers)}, [(program, tuple[str, ...]())]
    while left and most:
        here, path = left.pop(0)
        most -= 1
        yield here, path
        for rewrite in rewrites(here):
            there = rewritten(here, rewrite)
            if (key := canonical(there, numbers)) not in seen:
                seen.add(key)
                left.append((there, (*path, rewrite.rule)))


def given(program: Program, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random values of a program's inputs and parameters."""
    random = np.random.default_rng(seed)
    names = (*program.inputs, *(one.tensor.name for one in program.parameters))
    shapes = {name: [program.sizes[dim] for dim in program.tensors[name].dims] for name in names}
    return {name: torch.tensor(random.normal(size=shape), requires_grad=True) for name, shape in shapes.items()}


def joined(program: Program, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the values of a rewritten program's inputs and parameters: those that are new are concatenations."""
    known = dict(values)
    for op in program.operators:
        if op.function == "*" and op.parts:
            at, behind = _joined_dim(op)
            each = [known[one.inputs[1].name] for one in op.parts]
            flat = [one.reshape(*one.shape[:at], -1, *one.shape[one.ndim - behind :]) for one in each]
            known[op.inputs[1].name] = torch.cat(flat, at)
    return {name: known[name] for name in (*program.inputs, *(one.tensor.name for one in program.parameters))}


def _joined_dim(op: Operator) -> tuple[int, int]:
    """Return how many dims of a joined weight are before the one that is joined, and behind it."""
    loops = op.inputs[1].loops
    at = next(n for n, loop in enumerate(loops) if "+" in loop)
    return at, len(loops) - at - 1


def results(program: Program, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the values of a program's outputs."""
    known = dict(values)
    for op in program.operators:
        known |= _computed(op, [known[use.name] for use in op.inputs], program.sizes)
    return [known[name] for name in program.outputs]


def _computed(op: Operator, inputs: list[torch.Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    letters = {loop: chr(97 + n) for n, loop in enumerate(op.loops)}

    def einsum(x: torch.Tensor, y: torch.Tensor, along: tuple[str, ...], now: Use) -> torch.Tensor:
        terms = ("".join(letters[loop] for loop in loops) for loops in (op.inputs[0].loops, along, now.loops))
        return torch.einsum("{},{}->{}".format(*terms), x, y)

    if op.function == "fused":
        known = dict(zip((use.name for use in op.inputs), inputs, strict=True))
        for part in op.parts:
            known |= _computed(part, [known[use.name] for use in part.inputs], sizes)
        return {op.outputs[0].name: known[op.outputs[0].name]}
    if op.function == "*":
        found, start, (x, w) = {}, 0, inputs
        for number, now in enumerate(op.outputs):
            loops = op.inputs[1].loops
            if op.parts:
                (at, behind), mine = _joined_dim(op), op.parts[number].inputs[1].loops
                piece = mine[at : len(mine) - behind]
                shape, width = [sizes[loop] for loop in piece], prod(sizes[loop] for loop in piece)
                mine = w.narrow(at, start, width).reshape(*w.shape[:at], *shape, *w.shape[at + 1 :])
                found[now.name] = einsum(x, mine, (*loops[:at], *piece, *loops[at + 1 :]), now)
                start += width
            else:
                found[now.name] = einsum(x, w, loops, now)
        return found
    (out,) = op.outputs
    aligned = []
    for use, value in zip(op.inputs, inputs, strict=True):
        order = [use.loops.index(loop) for loop in out.loops if loop in use.loops]
        shape = [sizes[loop] if loop in use.loops else 1 for loop in out.loops]
        aligned.append(value.permute(order).reshape(shape).expand([sizes[loop] for loop in out.loops]))
    return {out.name: ELEMENTWISE[op.function](*aligned)}

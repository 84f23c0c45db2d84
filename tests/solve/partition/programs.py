"""Small programs written out by hand: a Transformer with or without experts, and two convolutions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from symconfig.graph import dims as d
from symconfig.graph.operator import Operator, Tensor, Use
from symconfig.graph.program.build import Window, build
from symconfig.graph.program.program import Parameter, Program

ROWS = (d.BATCH, d.SEQUENCE)
STREAM = (*ROWS, d.HIDDEN)
SIZES = {
    d.BATCH: 16, d.SEQUENCE: 64, d.KEYS: 64, d.HIDDEN: 128, d.VOCAB: 256, d.HEADS: 16, d.KV_HEADS: 16, d.HEAD_DIM: 8,
    d.FFN: 512,
}  # fmt: skip
EXPERT_SIZES = {d.EXPERTS: 8, d.SLOTS: 256, d.EXPERT_FFN: 64, "num_experts_per_tok": 2, "router_width": 8}


class Maker:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes, self.operators = dict(sizes), list[Operator]()
        self.tensors, self.parameters = dict[str, Tensor](), list[Parameter]()

    def tensor(self, name: str, *dims: str, gradient: bool = True, element_bytes: float = 2.0) -> Use:
        self.tensors[name] = Tensor(name, dims, element_bytes, gradient)
        return Use(self.tensors[name])

    def weight(self, name: str, *dims: str) -> Use:
        use = self.tensor(name, *dims)
        self.parameters.append(Parameter(use.tensor, path=f"{name}.weight"))
        return use

    def add(self, op: Operator) -> None:
        self.operators.append(op)
        self.tensors |= {use.name: use.tensor for use in op.residues}

    def program(self, inputs: tuple[str, ...], output: str, batch: str = d.BATCH) -> Program:
        return Program(
            "sample", self.sizes, self.tensors, inputs, tuple(self.parameters), tuple(self.operators), (output,),
            frozenset({batch}),
        )  # fmt: skip


def transformer(layers: int = 2, experts: bool = False, tied: bool = False, **sizes: int) -> Program:
    make = Maker(SIZES | (EXPERT_SIZES if experts else {}) | sizes)
    ids = make.tensor("ids", *ROWS, gradient=False, element_bytes=8.0)
    table = make.weight("embedding", d.VOCAB, d.HIDDEN)
    x = make.tensor("x", *STREAM)
    make.add(build("gather", "embed", [table, ids], [x], sizes=make.sizes))
    for layer in range(layers):
        x = _layer(make, f"layers.{layer}.", x, experts)
    x = _norm(make, "final_norm", x)
    head = table if tied else make.weight("head", d.VOCAB, d.HIDDEN)
    logits, loss = make.tensor("logits", *ROWS, d.VOCAB), make.tensor("loss", *ROWS)
    make.add(build("*", "lm_head", [x, head], [logits]))
    make.add(build("cross_entropy", "cross_entropy", [logits, ids], [loss], over=[d.VOCAB]))
    return make.program(("ids",), "loss")


def _norm(make: Maker, name: str, x: Use) -> Use:
    out = make.tensor(f"{name}.out", *x.tensor.dims)
    make.add(build("norm", name, [x, make.weight(name, d.HIDDEN)], [out], over=[d.HIDDEN]))
    return out


def _add(make: Maker, name: str, x: Use, y: Use) -> Use:
    out = make.tensor(name, *x.tensor.dims)
    make.add(build("add", name, [x, y], [out]))
    return out


def _layer(make: Maker, at: str, x: Use, experts: bool) -> Use:
    normed = _norm(make, f"{at}attention_norm", x)
    parts = []
    for name, heads in (("q", d.HEADS), ("k", d.KV_HEADS), ("v", d.KV_HEADS)):
        part = make.tensor(f"{at}{name}", *ROWS, heads, d.HEAD_DIM)
        weight = make.weight(f"{at}{name}_proj", d.HIDDEN, heads, d.HEAD_DIM)
        make.add(build("*", f"{at}{name}_proj", [normed, weight], [part]))
        parts.append(part)
    q, k, v = parts
    keyed = [Use(part.tensor, (d.BATCH, d.KEYS, d.KV_HEADS, f"channels_of_{n}")) for n, part in (("k", k), ("v", v))]
    make.sizes |= {"channels_of_k": make.sizes[d.HEAD_DIM], "channels_of_v": make.sizes[d.HEAD_DIM]}
    o = make.tensor(f"{at}o", *ROWS, d.HEADS, d.HEAD_DIM)
    make.add(
        build(
            "attention",
            f"{at}attention",
            [q, keyed[0], keyed[1]],
            [o],
            over=[d.KEYS],
            attended=32.5,
            sizes=make.sizes,
            groups=[(d.HEADS, d.KV_HEADS)],
        )
    )
    out = make.tensor(f"{at}attended", *STREAM)
    make.add(build("*", f"{at}o_proj", [o, make.weight(f"{at}o_proj", d.HEADS, d.HEAD_DIM, d.HIDDEN)], [out]))
    x = _add(make, f"{at}attention_residual", x, out)
    normed = _norm(make, f"{at}mlp_norm", x)
    done = _experts(make, at, normed) if experts else _mlp(make, at, normed, STREAM, (), d.FFN)
    return _add(make, f"{at}mlp_residual", x, done)


def _mlp(make: Maker, at: str, x: Use, dims: tuple[str, ...], batch: tuple[str, ...], width: str) -> Use:
    up, act, out = (make.tensor(f"{at}{n}", *dims[:-1], width) for n in ("up", "act", "out"))
    out = make.tensor(f"{at}out", *dims)
    make.add(build("*", f"{at}up_proj", [x, make.weight(f"{at}up_proj", *batch, d.HIDDEN, width)], [up]))
    make.add(build("gelu", f"{at}gelu", [up], [act]))
    make.add(build("*", f"{at}down_proj", [act, make.weight(f"{at}down_proj", *batch, width, d.HIDDEN)], [out]))
    return out


def _experts(make: Maker, at: str, x: Use) -> Use:
    logits = make.tensor(f"{at}logits", *ROWS, "router_width", element_bytes=4.0)
    make.add(build("*", f"{at}router", [x, make.weight(f"{at}router", d.HIDDEN, "router_width")], [logits]))
    weights = make.tensor(f"{at}weights", *ROWS, "num_experts_per_tok")
    indices = make.tensor(f"{at}indices", *ROWS, "num_experts_per_tok", gradient=False, element_bytes=8.0)
    make.add(build("route", f"{at}route", [logits], [weights, indices], over=["router_width"]))
    slots = (d.EXPERTS, d.SLOTS, d.HIDDEN)
    taken = make.tensor(f"{at}taken", *slots)
    make.add(build("dispatch", f"{at}dispatch", [x, indices], [taken], slots=d.SLOTS))
    done = _mlp(make, at, taken, slots, (d.EXPERTS,), d.EXPERT_FFN)
    out = make.tensor(f"{at}combined", *STREAM)
    make.add(build("combine", f"{at}combine", [done, weights, indices], [out], slots=d.SLOTS))
    return out


def convolutions() -> Program:
    """Images [32, 4, 16, 16], two windows of three rows, the mean of each image, ten classes."""
    make = Maker({"n": 32, "c0": 4, "c1": 8, "c2": 8, "i": 16, "j": 16, "ki": 3, "kj": 3, "classes": 10})
    x = make.tensor("image", "n", "c0", "i", "j", gradient=False)
    windows = {"i": Window(3), "j": Window(3)}
    for number in (1, 2):
        weight = make.weight(f"conv{number}", f"c{number}", f"c{number - 1}", "ki", "kj")
        out = make.tensor(f"y{number}", "n", f"c{number}", "i", "j")
        make.add(build("conv", f"conv{number}", [x, weight], [out], windows=windows))
        x = make.tensor(f"z{number}", "n", f"c{number}", "i", "j")
        make.add(build("relu", f"relu{number}", [out], [x]))
    pooled, logits = make.tensor("pooled", "n", "c2"), make.tensor("logits", "n", "classes")
    make.add(build("sum", "pool", [x], [pooled]))
    make.add(build("*", "classify", [pooled, make.weight("classify", "c2", "classes")], [logits]))
    return make.program(("image",), "logits", "n")


def frozen(program: Program, names: Collection[str]) -> Program:
    """Return a program whose parameters of these names are not trained."""
    tensors = {name: replace(one, gradient=one.gradient and name not in names) for name, one in program.tensors.items()}

    def uses(some: Sequence[Use]) -> tuple[Use, ...]:
        return tuple(Use(tensors[use.name], use.loops) for use in some)

    operators = tuple(
        replace(op, inputs=uses(op.inputs), outputs=uses(op.outputs), saves=uses(op.saves)) for op in program.operators
    )
    parameters = tuple(replace(one, tensor=tensors[one.tensor.name]) for one in program.parameters)
    return replace(program, tensors=tensors, operators=operators, parameters=parameters)

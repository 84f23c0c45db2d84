"""Repeats are found from structure alone, whatever the names and the order, and stand for the whole program."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import blocks
from symconfig.graph.operator import Gradients, Operator, Split, Tensor, Use
from symconfig.graph.program.build import build
from symconfig.graph.program.fold import Folding, Run, fold, structures
from symconfig.graph.program.net import net, resized
from symconfig.graph.program.of_model import program, programs
from symconfig.graph.program.program import Parameter, Program
from tests.clock import quickest_s
from tests.sampled import sampled


class Writer:
    """A program written operator by operator; tensors are [b, width]."""

    def __init__(self) -> None:
        self.sizes = {"b": 8}
        self.tensors: dict[str, Tensor] = {}
        self.parameters: list[Parameter] = []
        self.operators: list[Operator] = []
        self.inputs: list[str] = []

    def _tensor(self, *dims: tuple[str, int]) -> Use:
        self.sizes |= dict(dims)
        tensor = Tensor(f"t{len(self.tensors)}", tuple(name for name, _ in dims))
        self.tensors[tensor.name] = tensor
        return Use(tensor)

    def _row(self, width: int) -> Use:
        return self._tensor(("b", 8), (f"d{width}", width))

    def fed(self, width: int) -> Use:
        use = self._row(width)
        self.inputs.append(use.name)
        return use

    def weight(self, rows: int, columns: int) -> Use:
        use = self._tensor((f"rows{rows}", rows), (f"columns{columns}", columns))
        self.parameters.append(Parameter(use.tensor))
        return use

    def linear(self, x: Use, columns: int, weight: Use | None = None) -> Use:
        weight = weight or self.weight(self.sizes[x.loops[1]], columns)
        out, made = self._row(columns), f"columns{columns}"
        weight = Use(weight.tensor, (x.loops[1], made))
        self.operators.append(build("*", f"o{len(self.operators)}", [x, weight], [Use(out.tensor, ("b", made))]))
        return out

    def point(self, function: str, *inputs: Use) -> Use:
        out = self._row(self.sizes[inputs[0].loops[1]])
        self.operators.append(build(function, f"o{len(self.operators)}", inputs, [out]))
        return out

    def done(self, *outputs: Use) -> Program:
        ends = tuple(use.name for use in outputs)
        batch = frozenset({"b"})
        return Program("p", self.sizes, self.tensors, tuple(self.inputs), tuple(self.parameters),
                       tuple(self.operators), ends, batch)  # fmt: skip


def renamed(found: Program, seed: int) -> Program:
    """Every tensor, dim, operator and path under a name that says nothing."""
    rng = random.Random(seed)
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return names.setdefault(name, f"{rng.getrandbits(64):x}")

    def operand(old: Use) -> Use:
        return Use(tensor(old.tensor), tuple(map(new, old.loops)))

    def tensor(old: Tensor) -> Tensor:
        return replace(old, name=new("t " + old.name), dims=tuple(map(new, old.dims)))

    operators = [
        replace(
            op,
            name=new("o " + op.name),
            path=new("p " + op.path),
            loops=tuple(map(new, op.loops)),
            inputs=tuple(map(operand, op.inputs)),
            outputs=tuple(map(operand, op.outputs)),
            splits=tuple(Split(tuple(map(new, split.loops)), split.sums, split.halo) for split in op.splits),
            contracted=tuple(map(new, op.contracted)),
            saves=tuple(map(operand, op.saves)),
        )
        for op in found.operators
    ]
    return Program(
        "another",
        {new(dim): size for dim, size in found.sizes.items()},
        {new("t " + name): tensor(old) for name, old in found.tensors.items()},
        tuple(new("t " + name) for name in found.inputs),
        tuple(Parameter(tensor(p.tensor), new("p " + p.path)) for p in found.parameters),
        tuple(operators),
        tuple(new("t " + name) for name in found.outputs),
        frozenset(map(new, found.batch)),
    )


def deep(name: str, layers: int) -> Program:
    fields = load_model(name).model_dump(by_alias=True) | {"num_hidden_layers": layers}
    return program(ModelDescriptor.model_validate(fields), 8, 4096)


def parameters(program: Program, folding: Folding) -> tuple[int, ...]:
    """Return, for each parameter, the node of the folded network that it is part of."""
    return net(folding.program, folding.of, folding.runs).parameter_of


def validate(program: Program, folding: Folding) -> None:
    """Prove a folding on the whole program, not by how it came about.

    Every operator has the structure of its class's first one, and every class is one place in the instances of one run,
    or one operator. In each place of its inputs it reads from the same class as its likes in other instances; those of
    the first instance may read from before the run. Parameters of a class have equal sizes. Raises AssertionError: then
    the folding is wrong, not the program.
    """
    kinds, operators = structures(program), folding.program.operators
    assert {op.name: op for op in program.operators} == {op.name: op for op in operators}, "it folds another program"
    made: dict[str, tuple[int, int]] = {}
    places: dict[int, tuple[int, int]] = {}
    links: dict[int, list[tuple[int, int] | None]] = {}
    for index, (op, kind) in enumerate(zip(operators, folding.of, strict=True)):
        assert kinds[index] == kinds[kind], f"{op.name} is not like its class"
        instance, place = _place(folding.runs, index)
        assert places.setdefault(kind, place) == place, f"{op.name} has another place than its class"
        if instance > 0:
            read = [made.get(operand.name) for operand in op.inputs]
            assert links.setdefault(kind, read) == read, f"{op.name} reads from other classes than its likes"
        for port, operand in enumerate(op.outputs):
            made[operand.name] = (kind, port)
    sizes: dict[int, tuple[int, ...]] = {}
    for parameter, kind in zip(program.parameters, parameters(program, folding), strict=True):
        mine = (*(program.sizes[dim] for dim in parameter.tensor.dims), int(parameter.trainable))
        assert sizes.setdefault(kind, mine) == mine, f"{parameter.tensor.name} is not like its class"


def _place(runs: Sequence[Run], index: int) -> tuple[int, tuple[int, int]]:
    """Return the instance of a run of an operator, and which run and where in it; outside of all its own index."""
    for number, run in enumerate(runs):
        if run.start <= index < run.end:
            instance, offset = divmod(index - run.start, run.period)
            return instance, (number, offset)
    return 0, (-1, index)


def layer(writer: Writer, x: Use, width: int = 64) -> Use:
    normed = writer.point("silu", x)
    up = writer.linear(normed, width)
    return writer.point("add", x, writer.linear(writer.point("gelu", up), 16))


# Of models whose layers are unlike in turns: runs of whole patterns, and how many operators are left at most.
RUNS = {
    "gemma3-27b": (2, 120),  # ten whole patterns of six layers, and two layers more
    "smollm3-3b": (1, 100),  # nine of four
    "qwen3.5-27b": (1, 100),  # sixteen of four
    "qwen3-next-80b-a3b": (1, 120),  # twelve of four, with experts
    "granite-4.0-h-small": (1, 210),  # four of ten
    "nemotron-h-56b": (2, 100),  # ten of eleven parts of layers, and what is behind the last attention
    "nemotron-3-nano-30b-a3b": (4, 150),  # attention after four, three and five pairs, by turns
    "nemotron-3-super-120b-a12b": (6, 260),  # and after three, four and five
    "gemma4-26b-a4b": (1, 200),  # five of six, with experts beside an MLP
    "qwen3.5-35b-a3b": (1, 120),  # ten of four, with experts
    "deepseek-v4-flash": (1, 240),  # twenty of two with experts and four streams, behind two with windows alone
}


@pytest.mark.parametrize("name", sampled(zoo_models(), 3))
def test_foldings_of_models_hold_on_the_whole_program(name: str) -> None:
    model = load_model(name)
    found = program(model, 8, 4096)
    folding = fold(found)
    validate(found, folding)
    indexers = sum(op.gradients is Gradients.NONE for block in blocks(model).values() for op in block.operators)
    runs, left = RUNS.get(name, (None, 100))
    assert len({*folding.of}) < left + indexers
    repeated = [kind for kind, times in Counter(model.layer_kinds).items() if times > 1]
    assert len(folding.runs) == (runs or (len(repeated) if model.sliding_window is None else 1))
    whole, small = net(found), net(found, folding.of, folding.runs)
    assert sum(node.times for node in small.nodes) == len(whole.nodes)
    assert sum(link.times for link in small.links) == len(whole.links)
    place = {index: n for n, run in enumerate(folding.runs) for index in range(run.start, run.end)}
    assert [small.nodes[node].run for node in small.node_of] == [
        place.get(index, -1) for index in range(len(folding.of))
    ]
    for parameter, node in zip(found.parameters, small.parameter_of, strict=True):
        readers = {
            place.get(index, -1)
            for index, op in enumerate(folding.program.operators)
            if any(operand.name == parameter.tensor.name for operand in op.inputs)
        }
        assert small.nodes[node].run == (readers.pop() if len(readers) == 1 else -1)


def test_depth_changes_how_often_and_nothing_else() -> None:
    short, long = (fold(deep("llama3.1-405b", layers)) for layers in (2, 126))
    assert [run.times for run in short.runs] == [2]
    assert [run.times for run in long.runs] == [126]
    assert [run[:2] for run in short.runs] == [run[:2] for run in long.runs]
    assert len({*short.of}) == len({*long.of})
    kinds = [[f.program.operators[index].name for index in sorted({*f.of})] for f in (short, long)]
    assert kinds[0] == kinds[1]
    assert len(set(parameters(short.program, short))) == len(set(parameters(long.program, long)))


def test_an_encoder_and_a_decoder_that_reads_its_result_in_every_layer() -> None:
    w = Writer()
    x = w.fed(16)
    for _ in range(5):
        x = layer(w, x)
    encoded = w.point("tanh", x)
    y = w.fed(16)
    for _ in range(7):
        across = w.point("mul", w.linear(y, 16), w.linear(encoded, 16))
        y = layer(w, w.point("add", y, across), 48)
    found = w.done(w.point("exp", y))
    folding = fold(found)
    validate(found, folding)
    assert [(run.times, run.period) for run in folding.runs] == [(4, 5), (6, 9)]  # the first layers read what is fed
    assert len({*folding.of}) == 2 * 5 + 1 + 2 * 9 + 1


def test_a_run_begins_where_the_least_goes_from_one_instance_to_the_next() -> None:
    """The first layer begins otherwise than all others, so that most of it could be half of an instance, too."""
    w = Writer()
    x = w.point("sqrt", w.fed(16))
    y = w.point("add", x, w.linear(w.point("gelu", w.linear(w.point("tanh", x), 64)), 16))
    begins = len(w.operators)
    for _ in range(4):
        y = layer(w, y)
    (run,) = fold(w.done(w.point("sqrt", y))).runs
    assert run == (begins, 5, 4)


def test_siblings_are_no_repeat() -> None:
    w = Writer()
    x = w.point("tanh", w.fed(16))
    total = w.point("add", *[w.linear(x, 32) for _ in range(4)])
    assert fold(w.done(total)).runs == ()


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b", "gemma3-27b", "llama2-70b-lora", "nemotron-h-56b"])
def test_a_network_for_another_batch_is_that_of_its_own_folding(name: str) -> None:
    """Experts of batch 3 have odd slots, and a batch of 1 has no dim that can be split."""
    make = programs(load_model(name), 1000)
    first = fold(make(48))
    known = net(first.program, first.of, first.runs)
    for batch in (24, 3, 1):
        found = make(batch)
        own = fold(found)
        assert found == program(load_model(name), batch, 1000)
        assert resized(known, found) == net(found, own.of, own.runs)


def test_a_wrong_folding_is_found_out() -> None:
    found = deep("llama2-7b", 4)
    folding = fold(found)
    wrong = list(folding.of)
    wrong[4] = wrong[5]
    with pytest.raises(AssertionError, match="not like its class"):
        validate(found, replace(folding, of=tuple(wrong)))
    names = [op.name for op in found.operators]
    wrong = list(folding.of)
    wrong[names.index("layers.2.input_norm")] = folding.of[names.index("layers.0.mlp_norm")]  # alike in structure
    with pytest.raises(AssertionError, match="another place"):
        validate(found, replace(folding, of=tuple(wrong)))
    skips = list(found.operators)
    at = names.index("layers.2.attention_residual")
    back = Use(found.tensors["layers.0.attention_residual"], skips[at].inputs[0].loops)
    skips[at] = replace(skips[at], inputs=(back, skips[at].inputs[1]))
    other = replace(found, operators=tuple(skips))
    validate(other, fold(other))
    with pytest.raises(AssertionError, match="reads from other classes"):
        validate(other, replace(folding, program=other, runs=(folding.runs[0],)))
    with pytest.raises(AssertionError, match="another program"):
        validate(deep("llama2-7b", 3), folding)


@given(widths=st.lists(st.integers(3, 10_000), min_size=1, max_size=30, unique=True))
@settings(max_examples=50, deadline=None)
def test_nothing_is_found_where_nothing_repeats(widths: list[int]) -> None:
    w = Writer()
    x = w.fed(2)
    for width in widths:
        x = w.linear(x, 2 * width + 100)
    folding = fold(w.done(x))
    assert folding.runs == ()
    assert folding.of == tuple(range(len(widths)))


KINDS, READS = st.sampled_from(["linear", "point", "join"]), st.integers(0, 5)
PIECE = st.lists(st.tuples(KINDS, READS, READS), min_size=1, max_size=8)


@st.composite
def planted(draw: st.DrawFn) -> tuple[Program, int, int]:
    """A program with a random piece, several times, each reading from the one before, between other operators."""
    piece, times = draw(PIECE), draw(st.integers(2, 6))
    w = Writer()
    outside = w.point("exp", w.linear(w.fed(16), 16))
    x = w.point("sqrt", w.linear(w.fed(16), 16))
    for _ in range(draw(st.integers(0, 3))):
        x = w.linear(x, 16)
        x = w.point(
            "sqrt",
            w.linear(x, 1000 + 2 * len(w.operators)),
        )
        x = w.linear(x, 16)
    for _ in range(times):
        known = [x, outside]
        for kind, a, b in piece:
            first, second = known[-1 - a % len(known)], known[b % len(known)]
            if kind == "linear":
                known.append(w.linear(first, 16))
            else:
                known.append(w.point("gelu", first) if kind == "point" else w.point("add", first, second))
        x = w.point("mul", known[-1], x)
    for _ in range(draw(st.integers(0, 3))):
        x = w.linear(w.point("tanh", w.linear(x, 500 + 2 * len(w.operators))), 16)
    return w.done(w.point("exp", x)), len(piece) + 1, times


@given(planted(), st.integers(0, 2**30))
@settings(max_examples=150, deadline=None)
def test_a_planted_repeat_is_found_whatever_its_names(case: tuple[Program, int, int], seed: int) -> None:
    found, period, times = case
    folding = fold(found)
    validate(found, folding)
    classes = len(found.operators) - period * (times - 1)
    assert len({*folding.of}) <= classes
    # A piece that repeats in itself may be folded further than as a whole, over fewer operators.
    assert len({*folding.of}) < classes or sum(run.period * run.times for run in folding.runs) >= period * times
    other = fold(renamed(found, seed))
    assert (other.of, other.runs) == (folding.of, folding.runs)


def test_depth_costs_little_time() -> None:
    found = deep("llama3.1-405b", 126)
    assert quickest_s(lambda: fold(found)) < 0.2  # 0.012 when nothing else runs

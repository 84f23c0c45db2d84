"""The program of a model descriptor: its blocks unrolled, each layer's tensors and weights under own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from symconfig.descriptor.job import Packing
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.reuse import Loop
from symconfig.graph import dims as d
from symconfig.graph.attended import keys
from symconfig.graph.block import Block
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, dim_sizes
from symconfig.graph.operator import Operator, Tensor, Weight
from symconfig.graph.program.of_block import Numbers, Template, joined, template
from symconfig.graph.program.program import Parameter, Program

_TABLE, _HEAD = "word_embedding.weight", "lm_head.weight"
_SLOTS_A_FILLER = 64  # at most one slot of so many is left empty: 1.6 % of the experts' work, chosen


def program(
    model: ModelDescriptor,
    batch: int,
    seq_length: int,
    how: Implementation | None = None,
    *,
    vocab_multiple: int = 1,
    packing: Packing | None = None,
) -> Program:
    """Make the program of a model. batch: sequences that run at once on all GPUs together. vocab_multiple: what the
    vocabulary is padded to.

    Experts are static and balanced: each takes the same number of slots. Layers of multi-token prediction read the same
    embedded tokens as the first layer, though theirs are one further on.
    """
    return programs(model, seq_length, how, vocab_multiple=vocab_multiple, packing=packing)(batch)


def programs(
    model: ModelDescriptor,
    seq_length: int,
    how: Implementation | None = None,
    *,
    vocab_multiple: int = 1,
    packing: Packing | None = None,
) -> Callable[[int], Program]:
    """Return the program by its batch."""
    attended, every = keys(model, seq_length, packing), blocks(model, how)
    along = {_HEAD: (d.VOCAB, d.HIDDEN)} if model.tie_word_embeddings else {}

    def of_batch(batch: int) -> Program:
        sizes, notes = _sizes(model, batch, seq_length, vocab_multiple)
        unrolled = _unrolled(model, _Unrolled(every, Numbers(sizes, attended, along)))
        used = set().union(*(kind.dims for kind in unrolled.templates.values()))
        return Program(
            name=model.name,
            sizes={name: size for name, size in sizes.items() if name in used},
            tensors=unrolled.tensors,
            inputs=("tokens",),
            parameters=tuple(unrolled.parameters.values()),
            operators=tuple(unrolled.operators),
            outputs=tuple(unrolled.losses),
            batch=frozenset({d.BATCH, *(dim for dim in d.SLOT_DIMS if dim in used)}),
            notes=notes,
        )

    return of_batch


def _unrolled(model: ModelDescriptor, unrolled: _Unrolled) -> _Unrolled:
    """Append all blocks of a model."""
    stream = embedded = unrolled.add("embedding", "", ["tokens"])
    turns = _Turns(model.loop, embedded)
    for index, kind in enumerate(model.kind_of_layer):
        if kind.joins and model.loop is not None and not model.loop.normed:
            unrolled.made["loop_input"] = turns.other(index)
        owner = f"layers.{model.holder(index)}."
        stream = unrolled.add(kind.name, f"layers.{index}.", [stream], owner)
        turns.ran(index, stream)
        if "router_states" in unrolled.made:
            unrolled.made["router_states_before"] = unrolled.made["router_states"]
    ahead = stream
    for index in range(model.num_nextn_predict_layers):
        ahead = unrolled.add("mtp", f"mtp.{index}.", [ahead, embedded])
    unrolled.add("head", "", [stream])
    return unrolled


@dataclass(slots=True)
class _Turns:
    """Last results of stacks of layers that run several times. states: by the stack's first layer of those held."""

    loop: Loop | None
    first: str
    states: dict[int, str] = field(default_factory=dict)
    stack: int | None = None

    def other(self, index: int) -> str:
        """Return the state that joins the stream before a layer: of the stack that did not give the stream."""
        assert self.loop is not None
        earlier = next((state for stack, state in self.states.items() if stack != self.stack), self.first)
        self.stack = self.loop.held[index]
        return earlier

    def ran(self, index: int, stream: str) -> None:
        """Keep what the current stack gave so far."""
        if self.stack is not None:
            self.states[self.stack] = stream


def _sizes(
    model: ModelDescriptor, batch: int, seq_length: int, vocab_multiple: int
) -> tuple[dict[str, int], tuple[str, ...]]:
    padded = -(-model.vocab_size // vocab_multiple) * vocab_multiple
    sizes = {name: int(size) for name, size in dim_sizes(model).items()} | {
        d.BATCH: batch,
        d.SEQUENCE: seq_length,
        d.KEYS: seq_length,
        d.VOCAB: padded,
        d.WHOLE_VOCAB: padded,
        d.GATHERED: 1,
    }
    if d.CHUNK in sizes:
        sizes[d.CHUNKS] = -(-seq_length // sizes[d.CHUNK])
    for runs, rate in ((d.RUNS, d.RUN), (d.HEAVY_RUNS, d.HEAVY_RUN)):
        if rate in sizes:
            sizes[runs] = seq_length // sizes[rate]
    if model.experts is None:
        return sizes, ()
    tokens, experts = round(batch * seq_length * model.experts.computing_per_tok), model.experts.num_experts
    sizes[d.SLOTS], sizes[d.EVERY] = _slots(tokens, experts), batch * seq_length
    balanced = "routing is static and balanced: every expert takes as many tokens"
    if tokens % experts:
        balanced += f", {sizes[d.SLOTS]} slots, though {tokens} copies of tokens do not divide by {experts} experts"
    return sizes, (balanced,)


def _slots(tokens: int, experts: int) -> int:
    """Return how many copies of tokens each expert takes. Where they do not divide by the experts, a few slots stay
    empty, so that what is left is a number that the axes of a mesh can cut."""
    if tokens % experts == 0:
        return tokens // experts
    least = -(-tokens // experts)
    cut = 1 << max((least // _SLOTS_A_FILLER).bit_length() - 1, 0)
    return -(-least // cut) * cut


_Kind = tuple[str, tuple[bool, ...]]  # of a block, and which of its inputs something flows back into


@dataclass(slots=True)
class _Unrolled:
    """Blocks put one after the other."""

    blocks: Mapping[str, Block]
    numbers: Numbers
    templates: dict[_Kind, Template] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, prefix: str, given: Sequence[str], owner: str = "") -> str:
        """Append a block; given: what its inputs are called outside, but for those made elsewhere, which are the last
        of their local name. owner: prefix of weights that it shares. Returns the name of its first output.
        """
        block = self.blocks[kind]
        given = [*given, *(self.made[tensor.name] for tensor in block.inputs if tensor.name in block.elsewhere)]
        flows = tuple(name in self.tensors and self.tensors[name].gradient for name in given)
        like = self.templates.get((kind, flows))
        if like is None:
            like = self.templates[kind, flows] = template(block, flows, self.numbers)
        inside = {tensor.name: name for tensor, name in zip(block.inputs, given, strict=True)}
        names = {local: inside.get(local) or prefix + local for local in like.tensors}
        for local, tensor in like.tensors.items():
            name = names[local]
            if name not in self.tensors:
                self.tensors[name] = Tensor(name, tensor.dims, tensor.element, tensor.gradient)
        for local, (weight, part) in like.weights.items():
            names[local] = self._parameter(weight, owner if weight.shared else prefix, part)
        self.operators.extend(like.placed(op, prefix, names, self.tensors) for op in like.operators)
        self.losses.extend(names[tensor.name] for tensor in block.losses)
        self.made |= {local: name for local, name in names.items() if local not in inside}
        return names[block.outputs[0].name]

    def _parameter(self, weight: Weight, prefix: str, part: str) -> str:
        """Return a parameter's name. A weight that another block holds is that block's, and a tied head is the table of
        look-ups.
        """
        if weight.name in self.numbers.along:
            return _TABLE
        name = joined(prefix, part, weight.name)
        if name not in self.parameters:
            tensor = replace(weight, name=name)
            self.parameters[name] = Parameter(tensor, name)
            self.tensors[name] = tensor
        return name

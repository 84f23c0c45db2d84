"""The program of a model descriptor: its blocks unrolled, each layer's tensors and weights under own names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph import dims as d
from symconfig.graph.block import Block, with_needed_gradient, with_needed_gradients
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import blocks, dim_sizes, keys
from symconfig.graph.operator import Operator, Split, Tensor, Use, Weight, Work, loops_of
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
) -> Program:
    """Return the program of a model, with its blocks unrolled layer by layer.

    Experts are static and balanced: each takes the same number of slots, which `notes` states. Layers of multi-token
    prediction read the same embedded tokens as the first layer, though theirs are one further on. Sizes are only those
    of dims that occur.

    Args:
        batch: sequences in flight on all GPUs together.
        seq_length: tokens per sequence.
        how: which operators are fused and how; None: the defaults of `graph.model.blocks`.
        vocab_multiple: the vocabulary is padded to a multiple of it.
    """
    sizes, notes = _sizes(model, batch, seq_length, vocab_multiple)
    along = {_HEAD: (d.VOCAB, d.HIDDEN)} if model.tie_word_embeddings else {}
    numbers = Numbers(sizes, keys(model, seq_length), along)
    unrolled = _unrolled(model, _Unrolled(blocks(model, how), numbers))
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


def _unrolled(model: ModelDescriptor, unrolled: _Unrolled) -> _Unrolled:
    """Append the embedding, all layers, multi-token prediction layers and the head to `unrolled`, and return it.

    Each layer reads the first output of the one before; the first prediction layer that of the last layer, each the
    embedding, too; the head that of the last layer, not of the predictions.
    """
    stream = embedded = unrolled.add("embedding", "", ["tokens"])
    for index, kind in enumerate(model.kind_of_layer):
        stream = unrolled.add(kind.name, f"layers.{index}.", [stream])
    ahead = stream
    for index in range(model.num_nextn_predict_layers):
        ahead = unrolled.add("mtp", f"mtp.{index}.", [ahead, embedded])
    unrolled.add("head", "", [stream])
    return unrolled


def _sizes(
    model: ModelDescriptor, batch: int, seq_length: int, vocab_multiple: int
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes of all dims and the notes.

    The vocabulary is padded to a multiple of `vocab_multiple`; chunks are rounded up, runs down. Without experts there
    are no notes; with experts, one says that routing is balanced and, if the tokens do not divide by them, the slots
    taken.
    """
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
    """Return the number of slots (copies of tokens) per expert. If `tokens` does not divide by `experts`, round up to a
    multiple of a power of two, leaving few slots empty, so that mesh axes can split the number.
    """
    if tokens % experts == 0:
        return tokens // experts
    least = -(-tokens // experts)
    cut = 1 << max((least // _SLOTS_A_FILLER).bit_length() - 1, 0)
    return -(-least // cut) * cut


_Kind = tuple[str, tuple[bool, ...]]  # of a block, and which of its inputs something flows back into


@dataclass(slots=True)
class _Unrolled:
    """Collect blocks in sequence. templates: by kind and by which inputs have a gradient. made: program name of the
    last tensor of each local name.
    """

    blocks: Mapping[str, Block]
    numbers: Numbers
    templates: dict[_Kind, Template] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, prefix: str, given: Sequence[str]) -> str:
        """Append a block's operators, tensors, weights and losses, and return the program name of its first output.

        Tensors and weights that exist keep their entry (inputs; shared weights, which get no prefix). Templates are
        cached by kind and by which inputs have a gradient.

        Args:
            prefix: prepended to the names of the block's tensors and operators.
            given: program names of the block's inputs, without those of `elsewhere`, which are taken from `made`.
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
            names[local] = self._parameter(weight, "" if weight.shared else prefix, part)
        self.operators.extend(like.placed(op, prefix, names, self.tensors) for op in like.operators)
        self.losses.extend(names[tensor.name] for tensor in block.losses)
        self.made |= {local: name for local, name in names.items() if local not in inside}
        return names[block.outputs[0].name]

    def _parameter(self, weight: Weight, prefix: str, part: str) -> str:
        """Return the program name of a weight, and add the parameter and its tensor if they are new.

        The name is prefix, part (the module in the block; "" for none) and the weight's name. A tied output head adds
        nothing and returns the word embedding's table.
        """
        if weight.name in self.numbers.along:
            return _TABLE
        name = f"{prefix}{part}.{weight.name}" if part else prefix + weight.name
        if name not in self.parameters:
            tensor = replace(weight, name=name)
            self.parameters[name] = Parameter(tensor, name)
            self.tensors[name] = tensor
        return name


@dataclass(frozen=True, slots=True)
class Numbers:
    """Hold the numbers of a program. sizes: of every dim. keys: keys per query, by symbol. along: by weight, its loops
    where they differ from its dims.
    """

    sizes: Mapping[str, int]
    keys: Mapping[str, float]
    along: Mapping[str, tuple[str, ...]]

    def bytes(self, tensors: Iterable[Tensor]) -> float:
        return sum(tensor.bytes(self.sizes) for tensor in tensors)


@dataclass(slots=True)
class Template:
    """Hold a block's operators for given gradients of its inputs. tensors: activations by local name. weights: each
    with the part of the block that holds it. An operator's `path` is its part.
    """

    operators: list[Operator] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, tuple[Weight, str]] = field(default_factory=dict)

    def add(self, tensor: Tensor) -> None:
        self.tensors[tensor.name] = Tensor(tensor.name, tensor.dims, tensor.element_bytes, tensor.gradient)

    @property
    def dims(self) -> set[str]:
        """Return all dims of tensors and weights, and all loops."""
        tensors = {dim for tensor in self.tensors.values() for dim in tensor.dims}
        tensors |= {dim for weight, _ in self.weights.values() for dim in weight.dims}
        return tensors | {loop for op in self.operators for loop in op.loops}

    def placed(self, op: Operator, prefix: str, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Operator:
        """Return a copy of a template's operator with names of the program.

        Its path is the name of the first weight that it reads, without ".weight", else prefix and part. names: from
        local names to those in the program. tensors: of the program.
        """

        made: dict[int, Use] = {}  # what is read and kept is one

        def uses(some: Sequence[Use]) -> tuple[Use, ...]:
            for use in some:
                if id(use) not in made:
                    made[id(use)] = Use(tensors[names[use.tensor.name]], use.loops)
            return tuple([made[id(use)] for use in some])

        own = next((names[use.tensor.name] for use in op.inputs if use.tensor.name in self.weights), "")
        return replace(
            op,
            name=prefix + op.name,
            inputs=uses(op.inputs),
            outputs=uses(op.outputs),
            saves=uses(op.saves),
            holds=uses(op.holds),
            path=own.removesuffix(".weight") or (prefix + op.path).rstrip("."),
        )


def template(block: Block, flows: Sequence[bool], numbers: Numbers) -> Template:
    """Return the template of a block: its operators with numbers for symbols (`_operator`), tensors and weights, with
    its gradients adjusted to inputs that have none (`with_needed_gradients`).

    flows: for each of the block's inputs, whether it has a gradient.
    """
    result = Template()
    without = {tensor.name for tensor, flow in zip(block.inputs, flows, strict=True) if not flow}
    for tensor in block.inputs:
        result.add(with_needed_gradient(tensor, without))
    read = {use.name for op in block.operators for use in op.activations}
    for op in with_needed_gradients(block.operators, without):
        result.operators.append(_operator(result, op, read, numbers))
    return result


def _operator(known: Template, op: Operator, read: set[str], numbers: Numbers) -> Operator:
    """Return an operator with numbers in place of symbols, and add its tensors and weights to the template `known`.

    A tensor that it makes in addition to its outputs, and keeps, has no gradient; it becomes another output if an
    operator of the block reads it (`read`), else a residue. Splits of a matmul are those of `_pieces`, others stay.
    Operators with weights are not linear.
    """
    inputs = tuple(Use(use.tensor, numbers.along.get(use.name, use.along)) for use in op.inputs)
    saves, holds, made = op.reads_back, op.holds if op.backward else (), []
    for use in op.outputs:
        known.add(use.tensor)
    for use in (*saves, *holds):
        if use.name not in known.tensors and not isinstance(use.tensor, Weight):
            known.add(replace(use.tensor, gradient=False))
            made.append(use)
    outputs = (*op.outputs, *(use for use in made if use.name in read))
    uses = {use.name: use for use in (*made, *inputs, *outputs)}
    for weight in op.weights:
        known.weights[weight.name] = (weight, op.path)
    saves, holds = (tuple(uses[use.name] for use in some if use.name in uses) for some in (saves, holds))
    splits = tuple(_pieces(op, numbers.sizes)) if op.work is Work.MATMUL else op.splits
    along = (loop for split in splits for loop in split.loops)
    nest = (*op.loops, *loops_of((*op.activations, *outputs, *saves, *holds)), *along)
    return replace(
        op,
        loops=tuple(dict.fromkeys(nest)),
        inputs=inputs,
        outputs=outputs,
        splits=splits,
        saves=saves,
        holds=holds,
        linear=op.linear and not op.weights,  # parts of a sum would have to be parts of the weight
        traffic=_traffic(op, numbers),
        attended=numbers.keys[op.keys] if op.keys else 0.0,
        channels=float(sum(numbers.sizes[dim] for dim in op.channels_of)) if op.work is Work.ATTENTION else 0.0,
    )


def _pieces(op: Operator, sizes: Mapping[str, int]) -> Iterator[Split]:
    """Yield one split for each loop of a matrix product: the loop together with the dims of another size that operands
    have along it (heads of a fused width, or key/value heads).
    """
    pieces: dict[str, list[str]] = {}
    for use in (*op.activations, *op.outputs):
        for dim, loop in zip(use.tensor.dims, use.loops, strict=True):
            if sizes[dim] != sizes[loop]:
                pieces.setdefault(loop, []).append(dim)
    for loop in op.loops:
        yield Split((loop, *dict.fromkeys(pieces.get(loop, ()))))


def _traffic(op: Operator, numbers: Numbers) -> tuple[float, float]:
    """Return the (forward, backward) traffic, as a multiple of reading and writing all activations once.

    Adds the sorting of slots or, for operators that do not sort, scratch tensors. A memory-bound operator that does not
    sort reads no more of its weights than it writes (the rows of a table), which reduces the forward factor.
    """
    forward, backward = (float(times) for times in op.traffic)
    weights = numbers.bytes(replace(weight, quantised=False) for weight in op.weights)
    written = numbers.bytes(use.tensor for use in op.outputs)
    moved = numbers.bytes(use.tensor for use in op.activations) + written
    if op.sorts:
        slots = next(use for use in (*op.activations, *op.outputs) if d.SLOTS in use.tensor.dims)
        more = op.sorts * slots.tensor.bytes(numbers.sizes) / moved
        return forward + more, backward + more
    between = [
        sum(each.passes[way] * each.tensor.bytes(numbers.sizes) for each in op.scratch) / moved for way in (0, 1)
    ]
    forward, backward = forward + between[0], backward + between[1]
    if op.work is not Work.MEMORY or weights <= written:
        return forward, backward
    return forward * (moved + written) / (moved + weights), backward

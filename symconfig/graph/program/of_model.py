"""The program of a model descriptor: its blocks unrolled, each layer's tensors and weights under own names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Return the program of a model for one batch: see `programs`."""
    return programs(model, seq_length, how, vocab_multiple=vocab_multiple)(batch)


def programs(
    model: ModelDescriptor, seq_length: int, how: Implementation | None = None, *, vocab_multiple: int = 1
) -> Callable[[int], Program]:
    """Return a function from the batch, sequences in flight on all GPUs together, to the program of a model.

    Its blocks are unrolled layer by layer, once: all programs have the same `tensors` object, and differ only in sizes,
    in notes and in the traffic of operators. Experts are static and balanced: each takes the same number of slots,
    which `notes` states. Layers of multi-token prediction read the same embedded tokens as the first layer, though
    theirs are one further on. Sizes are only those of dims that occur.

    Args:
        seq_length: tokens per sequence.
        how: which operators are fused and how; None: the defaults of `graph.model.blocks`.
        vocab_multiple: the vocabulary is padded to a multiple of it.
    """
    along = {_HEAD: (d.VOCAB, d.HIDDEN)} if model.tie_word_embeddings else {}
    # No operator reads a batch dim along a loop of another name, so that splits do not depend on the batch.
    sizes, _ = _sizes(model, 1, seq_length, vocab_multiple)
    unrolled = _Unrolled(blocks(model, how), sizes, keys(model, seq_length), along)
    stream = embedded = unrolled.add("embedding", "", ["tokens"])
    for index, kind in enumerate(model.kind_of_layer):
        stream = unrolled.add(kind.name, f"layers.{index}.", [stream])
    ahead = stream
    for index in range(model.num_nextn_predict_layers):
        ahead = unrolled.add("mtp", f"mtp.{index}.", [ahead, embedded])
    unrolled.add("head", "", [stream])
    used = {dim for tensor in unrolled.tensors.values() for dim in tensor.dims}
    used |= {loop for op in unrolled.operators for loop in op.loops}
    parameters, outputs = tuple(unrolled.parameters.values()), tuple(unrolled.losses)

    def sized(batch: int) -> Program:
        sizes, notes = _sizes(model, batch, seq_length, vocab_multiple)
        traffic = {id(op): _traffic(op, sizes) for some in unrolled.adjusted.values() for op in some}
        each = zip(unrolled.operators, (traffic[id(op)] for op in unrolled.of), strict=True)
        return Program(
            name=model.name,
            sizes={name: size for name, size in sizes.items() if name in used},
            tensors=unrolled.tensors,
            inputs=("tokens",),
            parameters=parameters,
            operators=tuple([op if op.traffic == passes else replace(op, traffic=passes) for op, passes in each]),
            outputs=outputs,
            batch=frozenset({d.BATCH, *(dim for dim in d.SLOT_DIMS if dim in used)}),
            notes=notes,
        )

    return sized


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


@dataclass(slots=True)
class _Unrolled:
    """Collect blocks in sequence. sizes: of every dim. keys: keys per query, by symbol. along: by weight, its loops
    where they differ from its dims. of: for each operator the block's, of `adjusted`. made: program name of the last
    tensor of each local name. adjusted: by kind of block and its inputs without a gradient, the block's operators with
    numbers in place of symbols, which layers share.
    """

    blocks: Mapping[str, Block]
    sizes: Mapping[str, int]
    keys: Mapping[str, float]
    along: Mapping[str, tuple[str, ...]]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    of: list[Operator] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    adjusted: dict[tuple[str, frozenset[str]], list[Operator]] = field(default_factory=dict)

    def add(self, kind: str, prefix: str, given: Sequence[str]) -> str:
        """Append a block's operators, tensors, weights and losses, with its gradients adjusted to inputs that have none
        (`with_needed_gradients`), and return the program name of its first output.

        Args:
            prefix: prepended to the names of the block's tensors, operators and weights that are not shared.
            given: program names of the block's inputs, without those of `elsewhere`, which are taken from `made`.
        """
        block = self.blocks[kind]
        given = [*given, *(self.made[tensor.name] for tensor in block.inputs if tensor.name in block.elsewhere)]
        inputs = {tensor.name: name for tensor, name in zip(block.inputs, given, strict=True)}
        without = {
            local for local, name in inputs.items() if not (name in self.tensors and self.tensors[name].gradient)
        }
        names = dict(inputs)
        for tensor in block.inputs:
            self._enter(with_needed_gradient(tensor, without), names[tensor.name])
        read = {use.name for op in block.operators for use in op.activations}
        key = kind, frozenset(without)
        if key not in self.adjusted:
            self.adjusted[key] = [*map(self._numbered, with_needed_gradients(block.operators, without))]
        for op in self.adjusted[key]:
            for weight in op.weights:
                names[weight.name] = self._parameter(weight, "" if weight.shared else prefix, op.path)
            self.operators.append(self._operator(op, prefix, names, read))
            self.of.append(op)
        self.losses.extend(names[tensor.name] for tensor in block.losses)
        self.made |= {local: name for local, name in names.items() if local not in inputs}
        return names[block.outputs[0].name]

    def _enter(self, tensor: Tensor, name: str) -> None:
        self.tensors.setdefault(name, Tensor(name, tensor.dims, tensor.element_bytes, tensor.gradient))

    def _parameter(self, weight: Weight, prefix: str, part: str) -> str:
        """Return the program name of a weight, and add the parameter and its tensor if they are new.

        The name is prefix, part (the module in the block; "" for none) and the weight's name. A tied output head adds
        nothing and returns the word embedding's table.
        """
        if weight.name in self.along:
            return _TABLE
        name = f"{prefix}{part}.{weight.name}" if part else prefix + weight.name
        if name not in self.parameters:
            tensor = replace(weight, name=name)
            self.parameters[name] = Parameter(tensor, name)
            self.tensors[name] = tensor
        return name

    def _numbered(self, op: Operator) -> Operator:
        """Return an operator with numbers in place of symbols, but the traffic without that of `_traffic`; a matmul
        with the splits of `_pieces`.
        """
        return replace(
            op,
            splits=tuple(_pieces(op, self.sizes)) if op.work is Work.MATMUL else op.splits,
            traffic=(float(op.traffic[0]), float(op.traffic[1])),
            attended=self.keys[op.keys] if op.keys else 0.0,
            channels=float(sum(self.sizes[dim] for dim in op.channels_of)) if op.work is Work.ATTENTION else 0.0,
        )

    def _operator(self, op: Operator, prefix: str, names: dict[str, str], read: set[str]) -> Operator:
        """Return an operator of `_numbered` with names of the program, and enter the tensors that it makes in
        `names` and `tensors`.

        A tensor that it makes in addition to its outputs, and keeps, has no gradient; it becomes another output if an
        operator of the block reads it (`read`), else a residue. Operators with weights are not linear. Its path
        is the name of its first weight, without ".weight", else prefix and part.
        """
        kept = (*op.reads_back, *(op.holds if op.backward else ()))
        residues = [use for use in kept if use.name not in names and use.name not in {out.name for out in op.outputs}]
        residues = list({use.name: Use(replace(use.tensor, gradient=False), use.along) for use in residues}.values())
        for use in (*op.outputs, *residues):
            names[use.name] = prefix + use.name
            self._enter(use.tensor, names[use.name])

        def placed(use: Use) -> Use:
            return Use(self.tensors[names[use.name]], self.along.get(use.name, use.loops))

        inputs = tuple(map(placed, op.inputs))
        outputs = tuple(map(placed, (*op.outputs, *(use for use in residues if use.name in read))))
        uses = {use.name: use for use in (*map(placed, residues), *inputs, *outputs)}
        saves, holds = (
            tuple(uses[names[use.name]] for use in some if names[use.name] in uses)
            for some in (op.reads_back, op.holds if op.backward else ())
        )
        along = (loop for split in op.splits for loop in split.loops)
        nest = (*op.loops, *loops_of((*op.activations, *outputs, *saves, *holds)), *along)
        owner = names[op.weights[0].name] if op.weights else ""
        return replace(
            op,
            name=prefix + op.name,
            loops=tuple(dict.fromkeys(nest)),
            inputs=inputs,
            outputs=outputs,
            saves=saves,
            holds=holds,
            linear=op.linear and not op.weights,  # parts of a sum would have to be parts of the weight
            path=owner.removesuffix(".weight") or (prefix + op.path).rstrip("."),
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


def _traffic(op: Operator, sizes: Mapping[str, int]) -> tuple[float, float]:
    """Return the (forward, backward) traffic, as a multiple of reading and writing all activations once.

    Adds the sorting of slots or, for operators that do not sort, scratch tensors. A memory-bound operator that does not
    sort reads no more of its weights than it writes (the rows of a table), which reduces the forward factor.
    """
    forward, backward = (float(times) for times in op.traffic)
    weights, written, read = (
        sum(tensor.bytes(sizes) for tensor in some)
        for some in (
            [replace(weight, quantised=False) for weight in op.weights],
            [use.tensor for use in op.outputs],
            [use.tensor for use in op.activations],
        )
    )
    moved = read + written
    if op.sorts:
        slots = next(use for use in (*op.activations, *op.outputs) if d.SLOTS in use.tensor.dims)
        more = op.sorts * slots.tensor.bytes(sizes) / moved
        return forward + more, backward + more
    between = [sum(each.passes[way] * each.tensor.bytes(sizes) for each in op.scratch) / moved for way in (0, 1)]
    forward, backward = forward + between[0], backward + between[1]
    if op.work is not Work.MEMORY or weights <= written:
        return forward, backward
    return forward * (moved + written) / (moved + weights), backward

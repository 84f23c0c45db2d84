"""All parameters of a pipeline stage on one tensor- and expert-parallel rank, as whole numbers with names.

They are the weights that the graph's operators declare, under the plan's scheme, at its degrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from symconfig.errors import SymconfigError
from symconfig.frameworks.megatron.behaviour import TransformerImpl
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.graph import dims as d
from symconfig.graph.derived import DerivedBlock, WeightShard
from symconfig.graph.model import derived, dim_sizes
from symconfig.graph.parts import is_layer
from symconfig.plans.plan import Plan
from symconfig.solve.prospect import Prospect
from symconfig.verify.states.activations import as_run

_PART = ".weight."  # the name of a part of a weight follows
# From here on, a model with multi-token prediction has its final norm behind its last layer, wherever the loss is
# (transformer_block.py, has_final_layernorm_in_this_stage).
NORM_BEHIND_LAST_LAYER = (0, 16)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter on one rank.

    row: elements of one of its rows. layer: the number of the transformer layer that it is part of, among those of its
    chunk. copied: another stage holds it, too, and it lies in a bucket of its own.
    """

    name: str
    elements: int
    expert: bool
    trainable: bool
    row: int = 1
    layer: int | None = None
    copied: bool = False

    @property
    def vector(self) -> bool:
        """Tell whether it has one dimension, and no weight decay."""
        return self.row == 1


def chunk_parameters(
    plan: Plan, stage: int, transformer_impl: TransformerImpl = "transformer_engine"
) -> tuple[tuple[Parameter, ...], ...]:
    """Return each virtual stage's parameters of a pipeline stage, in the order in which Megatron-LM registers them."""
    point = as_run(plan, transformer_impl)
    p = point.degrees
    framework, model = point.request.framework, point.request.model
    sizes = {name: int(size) for name, size in dim_sizes(model).items()}
    numbers = sizes | {
        **{name: getattr(p, name) for name in ("tp", "cp", "ep", "etp", "dp")},
        d.VOCAB: framework.padded_vocab(model.vocab_size, p.tp),
    }
    if point.request.model.experts and numbers[d.EXPERTS] % numbers["ep"]:
        raise SymconfigError(f"{numbers[d.EXPERTS]} experts do not divide over ep {numbers['ep']}")
    of_kind = derived(point.request.model, point.request.framework.implementation, point.scheme)
    known = {kind: _block(block, numbers, REGISTRATIONS[transformer_impl]) for kind, block in of_kind.items()}
    return tuple(tuple(_chunk(point, index, known)) for index in range(stage, len(point.split.chunks), point.split.pp))


@dataclass(frozen=True, slots=True)
class _Registered:
    """A parameter of a block, and its place among all of the block's."""

    operator: str
    place: tuple[int, int, int, int]  # run, expert, operator within the run, weight of the operator
    parameter: Parameter


def _block(block: DerivedBlock, numbers: Mapping[str, int], registration: Registration) -> tuple[_Registered, ...]:
    places = registration.order(_operator(shard) for shard in block.weights)
    registered = []
    for index, shard in enumerate(block.weights):
        run, place = places[_operator(shard)]
        experts = numbers[d.EXPERTS] // numbers["ep"] if shard.expert else 1
        elements, row = _whole(shard, numbers)
        for expert in range(experts):
            name = f"{shard.name}.{expert}" if shard.expert else shard.name
            made = Parameter(name, elements // experts, shard.expert, not shard.frozen, row)
            registered.append(_Registered(_operator(shard), (run, expert, place, index), made))
    return tuple(_whole_weights(sorted(registered, key=lambda item: item.place)))


def _whole_weights(registered: Sequence[_Registered]) -> Iterator[_Registered]:
    """Join the parts of a weight that different operators multiply with: they are one parameter."""
    for _, group in groupby(registered, key=lambda item: (item.parameter.name.partition(_PART)[0], item.place[:3])):
        first, *others = group
        if others and _PART in first.parameter.name:
            name = first.parameter.name.partition(_PART)[0] + _PART.rstrip(".")
            total = sum(item.parameter.elements for item in (first, *others))
            yield replace(first, parameter=replace(first.parameter, name=name, elements=total))
        else:
            yield from (first, *others)


def _operator(shard: WeightShard) -> str:
    return shard.name.partition(".")[0]


def _whole(shard: WeightShard, numbers: Mapping[str, int]) -> tuple[int, int]:
    """Count its elements, and those of a row."""
    try:
        return shard.elements.whole(numbers), shard.row.whole(numbers)
    except ValueError as error:
        raise SymconfigError(f"the weight {shard.name} cannot be cut into equal parts: {error}") from None


def _chunk(point: Prospect, index: int, known: Mapping[str, tuple[_Registered, ...]]) -> Iterator[Parameter]:
    """Yield the parameters of one virtual stage, by its number in model order."""
    copied = _copied(point, index)
    numbers = dict.fromkeys((LAYERS, "mtp"), 0)
    for piece in _pieces(point, index):
        kind, _, operator = piece.partition(".")
        section, prefix, layer = LAYERS if is_layer(kind) else kind, "", None
        if section in numbers:
            prefix, layer = f"{section}.{numbers[section]}.", sum(numbers.values())
            numbers[section] += 1
        for item in known[kind]:
            if operator in ("", item.operator):
                made = item.parameter
                place = None if item.operator in AROUND else layer
                yield Parameter(
                    f"{prefix}{made.name}",
                    made.elements,
                    made.expert,
                    made.trainable,
                    made.row,
                    place,
                    copied=made.name == copied,
                )


def _pieces(point: Prospect, index: int) -> Sequence[str]:
    """Return the kinds of blocks, or operators of the head, that one virtual stage has, in the order of CHUNK."""
    kinds = point.split.chunks[index]
    pieces = [kind for kind in kinds if kind != "head"]
    if "mtp" in kinds and "embedding" not in kinds:
        pieces.append("embedding")  # it looks up the next tokens itself (gpt_model.py)
    if index == _normed(point):
        pieces.append("head.final_norm")
    if "head" in kinds and not ("embedding" in kinds and point.request.model.tie_word_embeddings):
        pieces.append("head.lm_head")
    return sorted(pieces, key=lambda piece: CHUNK.index(piece if piece in CHUNK else LAYERS))


def _normed(point: Prospect) -> int:
    """Return the virtual stage that has the final norm."""
    chunks = point.split.chunks
    behind = megatron_release(point.request.version) >= NORM_BEHIND_LAST_LAYER
    if behind and point.request.model.num_nextn_predict_layers:
        return max(index for index, kinds in enumerate(chunks) if any(is_layer(kind) for kind in kinds))
    return len(chunks) - 1


def _copied(point: Prospect, index: int) -> str | None:
    """Return the parameter that first and last stage both hold, where the model has one (language_module.py)."""
    kinds, model = point.split.chunks[index], point.request.model
    if point.split.pp == 1 or not (model.tie_word_embeddings or model.num_nextn_predict_layers):
        return None
    if "embedding" in kinds or "mtp" in kinds:
        return "word_embedding.weight"
    return "lm_head.weight" if "head" in kinds else None


LAYERS = "layers"
# Of a chunk: blocks by kind, or an operator of one; the layers are all other blocks.
CHUNK = ("embedding", LAYERS, "head.final_norm", "mtp", "head.lm_head")

Order = tuple[tuple[str, ...], ...]  # runs of operators; a run is repeated for each local expert


@dataclass(frozen=True, slots=True)
class Registration:
    """orders: of the operators of any block; a block takes the first that names all of its operators with weights."""

    orders: tuple[Order, ...]

    def order(self, operators: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return each operator's run, and its place in it."""
        wanted = set(operators)
        for order in self.orders:
            places = {name: (index, place) for index, run in enumerate(order) for place, name in enumerate(run)}
            if wanted <= places.keys():
                return places
        raise SymconfigError(f"no order of registration names all of {', '.join(sorted(wanted))}")


_BEFORE = ("word_embedding", "position_embedding", "mtp_embedding_norm", "mtp_hidden_norm", "mtp_proj")
_BEHIND = ("mtp_final_norm", "final_norm", "lm_head")
AROUND = frozenset((*_BEFORE, *_BEHIND))  # operators that are part of no transformer layer
# Adapters of a fused layer's parts; its other ones are gate_proj and up_proj (peft/canonical_lora.py).
_PARTS = ("q_proj", "k_proj", "v_proj")


# Of blocks in attention's place: a module's own parameters, then those of its parts. Both orders have a gated delta
# net's weights beside attention's, since no block has both.
_DELTA_OWN, _MAMBA_OWN = ("dt_bias", "A_log"), ("conv1d", "dt_bias", "A_log", "D")


def _order(attention: tuple[str, ...], experts: Order) -> Order:
    def each(*names: str) -> Order:
        return tuple((name,) for name in names)

    return (
        *each(*_BEFORE),
        *each(*attention),
        *each("mlp_norm", "up_proj", "gate_up_proj", "gate_proj", "down_proj"),
        *each("router", "latent_down_proj", "latent_up_proj"),
        *experts,
        *each("shared_gate", "shared_up_proj", "shared_gate_up_proj", "shared_down_proj"),
        *each(*_BEHIND),
    )


# One MLP after the other (SequentialMLP), or one grouped product for all experts after the other (TEGroupedMLP).
_ONE_BY_ONE: Order = (("expert_up_proj", "expert_gate_up_proj", "expert_down_proj"),)
_GROUPED: Order = (("expert_up_proj",), ("expert_gate_up_proj",), ("expert_down_proj",))

# Sparse attention: the core comes first, and its indexer is part of it; no norm is part of a product.
_SPARSE = (
    "input_norm", "index_q_proj", "index_k_proj", "index_k_norm", "index_weights_proj", "o_proj", "q_down_proj",
    "q_up_proj", "kv_down_proj", "kv_up_proj", "q_low_norm", "kv_low_norm",
)  # fmt: skip

REGISTRATIONS: dict[TransformerImpl, Registration] = {
    "local": Registration(
        (
            _order(("input_norm", "sinks", "o_proj", "qkv_proj", *_PARTS, "q_norm", "k_norm"), _ONE_BY_ONE),
            _order(("input_norm", *_DELTA_OWN, "in_proj", "conv1d", "out_norm", "out_proj"), _ONE_BY_ONE),
            _order((*_MAMBA_OWN, "in_proj", "ssm_norm", "out_proj", "input_norm"), _ONE_BY_ONE),
            _order(
                (
                    "input_norm",
                    "o_proj",
                    "q_down_proj",
                    "q_up_proj",
                    "kv_down_proj",
                    "kv_up_proj",
                    "q_low_norm",
                    "kv_low_norm",
                ),
                _ONE_BY_ONE,
            ),
            _order(_SPARSE, _ONE_BY_ONE),
        )
    ),
    # A norm is part of the product behind it (TELayerNormColumnParallelLinear), but for that before latent attention.
    "transformer_engine": Registration(
        (
            _order(("sinks", "o_proj", "input_norm", "qkv_proj", *_PARTS, "q_norm", "k_norm"), _GROUPED),
            _order((*_DELTA_OWN, "input_norm", "in_proj", "conv1d", "out_norm", "out_proj"), _GROUPED),
            _order((*_MAMBA_OWN, "input_norm", "in_proj", "ssm_norm", "out_proj"), _GROUPED),
            _order(
                (
                    "input_norm",
                    "o_proj",
                    "q_down_proj",
                    "q_low_norm",
                    "q_up_proj",
                    "kv_down_proj",
                    "kv_low_norm",
                    "kv_up_proj",
                ),
                _GROUPED,
            ),
            _order(_SPARSE, _GROUPED),
        )
    ),
}

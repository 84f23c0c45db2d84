"""A model descriptor as blocks by kind, with the numbers of its dims, its parameters, and the keys of each query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from types import MappingProxyType
from typing import get_args

from symconfig.descriptor.architectures.keys import SCORE_BIAS
from symconfig.descriptor.job import Packing
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import FUSED_TARGETS, NO_MIXER, Adapter, AdapterTarget, Attention
from symconfig.errors import Problem, Problems
from symconfig.graph import dims as d
from symconfig.graph.block import Block, Builder, Place
from symconfig.graph.blocks import streams
from symconfig.graph.blocks.layer import layer
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.implementation import Implementation
from symconfig.graph.parts import Context, End, parts
from symconfig.graph.scheme import Scheme


def blocks(model: ModelDescriptor, how: Implementation | None = None, shared_heads: bool = False) -> dict[str, Block]:
    """Return each kind of block of a model by name, built once: encoders and embedding, layer kinds by first
    appearance, then multi-token prediction and head; without kinds of which the model has none. Raise InputError for a
    mixer that is unknown or whose sizes or switches do not fit it. how: None for Implementation(); replaced by
    `written_for` the model_type. shared_heads: see Scheme.
    """
    how = (how or Implementation()).written_for(model.model_type)
    Problems(
        Problem(sentence, field="mixers", got=mixer.block)
        for mixer in model.mixers
        if mixer.block != NO_MIXER
        for sentence in parts().mixer(mixer.block).problems(mixer)
    ).check()
    quantises = model.adapter is not None and model.adapter.method == "qlora"

    def context() -> Context:
        build = Builder(stops_early=how.stops_early, quantises=quantises)
        return Context(model, how, build, shared_heads, frozen=model.adapter is not None)

    result = {end.kind: end.build(context()) for end in _ends(model) if end.place.begins}
    for kind in dict.fromkeys(model.kind_of_layer):
        result[kind.name] = layer(context(), kind)
    return result | {end.kind: end.build(context()) for end in _ends(model) if not end.place.begins}


def blocks_of(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the names of the model's mixers (attention and alternatives), each once in order of appearance."""
    names = [name for kind in dict.fromkeys(model.kind_of_layer) for name in (kind.mixer, kind.beside)]
    return tuple(name for name in dict.fromkeys(names) if name is not None and name != NO_MIXER)


def mixer_pieces(model: ModelDescriptor, exchanged: bool = False) -> int:
    """Return the greatest number of tensor-parallel ranks that divides the `pieces` dims (heads, groups) of all mixers:
    the gcd of their sizes; 0 if no mixer has such dims. exchanged: use `exchanged_pieces` instead, the limit for ranks
    that exchange heads for the sequence.
    """
    mixers = [parts().mixer(name) for name in blocks_of(model)]
    names = [name for mixer in mixers for name in (mixer.exchanged_pieces if exchanged else mixer.pieces)]
    sizes = dim_sizes(model) if names else {}
    return gcd(*(int(sizes[name]) for name in names))


def repeated_pieces(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the `pieces` dims that are not `exchanged_pieces`: those copied if there are fewer of them than ranks that
    exchange heads for the sequence. Mixers without `exchanged_pieces` are skipped.
    """
    mixers = [parts().mixer(name) for name in blocks_of(model)]
    return tuple(
        name for one in mixers if one.exchanged_pieces for name in one.pieces if name not in one.exchanged_pieces
    )


def _ends(model: ModelDescriptor) -> list[End]:
    """Return the blocks before and after the layers that this model has at least one of, in order."""
    return [end for end in parts().ends.values() if end.count(model)]


# Fields that blocks know by the names of their dims only, or that are for people.
_NUMBERS = frozenset(
    {"name", "source", "huggingface_id", "notes", "hidden_size", "intermediate_size", "num_hidden_layers",
     "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
     "extra_positions", "num_nextn_predict_layers", "sliding_window_pattern", "mixers", "mlp_layers", "rope_layers",
     "particulars"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Structure:
    """Hold a model as a cache key that equals that of every model with the same kinds of blocks."""

    key: tuple[object, ...]
    model: ModelDescriptor = field(compare=False)


def structure(model: ModelDescriptor) -> tuple[object, ...]:
    """Return a hashable key, equal for models with equal blocks: the distinct layer kinds, the last layer's kind if
    there is multi-token prediction (else None), whether heads are grouped and whether there is one key/value head, the
    mixers' structure, and all fields but `_NUMBERS`, whose values are symbols in blocks.
    """
    kinds, extra = tuple(dict.fromkeys(model.layer_kinds)), model.num_nextn_predict_layers > 0
    grouped = (model.num_attention_heads != model.num_key_value_heads, model.num_key_value_heads == 1)
    last = model.layer_kinds[-1] if extra else None
    rest = (getattr(model, name) for name in type(model).model_fields if name not in _NUMBERS)
    return (kinds, last, grouped, tuple(mixer.structure for mixer in model.mixers), *rest)


def derived(model: ModelDescriptor, how: Implementation, scheme: Scheme) -> Mapping[str, DerivedBlock]:
    """Return each kind of block under a scheme, read-only. Cached by `structure`, since a search asks again for every
    plan that it shows.
    """
    return _derived(_Structure(structure(model), model), how, scheme)


@lru_cache(maxsize=64)
def _derived(what: _Structure, how: Implementation, scheme: Scheme) -> Mapping[str, DerivedBlock]:
    built = blocks(what.model, how, scheme.shared_heads)
    return MappingProxyType({kind: derive(block, scheme) for kind, block in built.items()})


def shares_heads(model: ModelDescriptor, tp: int) -> bool:
    """Return whether grouped-query attention has fewer key/value heads than tensor-parallel ranks, which then share
    them.
    """
    return model.attention is Attention.GQA and model.num_key_value_heads < tp


def sequence(model: ModelDescriptor) -> tuple[str, ...]:
    """Return the kind of every block of the model in order: blocks before the layers (encoders, embedding), one kind
    per layer, blocks after them; a kind is repeated as often as the model has it.
    """
    repeated = [(end.place, (end.kind,) * end.count(model)) for end in _ends(model)]
    before = [kind for place, kinds in repeated if place.begins for kind in kinds]
    behind = [kind for place, kinds in repeated if not place.begins for kind in kinds]
    return (*before, *model.layer_kinds, *behind)


def dim_sizes(model: ModelDescriptor) -> dict[str, float]:
    """Return the size of each dim of the model, by dim name, without batch, sequence and degrees.

    `padded_vocab_size` is the unpadded vocabulary. Dims of experts, wide MLPs, adapters, per-layer inputs and streams
    are absent if the model lacks these; absent optional numbers are 0, expert groups 1. Sizes of mixers and of blocks
    before or after the layers replace equal names, and sizes that the descriptor states for its mixers replace these.
    """
    heads, kv, width = model.num_attention_heads, model.num_key_value_heads, model.head_dim
    value = model.v_head_dim or width
    sizes: dict[str, float] = {
        d.HIDDEN: model.hidden_size,
        d.VOCAB: model.vocab_size,
        d.HEADS: heads,
        d.KV_HEADS: kv,
        d.HEAD_DIM: width,
        d.ROTARY: model.rotary_dim,
        d.VALUE_DIM: value,
        d.QKV: (heads + kv) * width + kv * value + (heads * value if model.attention_gate == "channel" else 0),
        d.FFN: model.intermediate_size,
        d.FFN_FUSED: 2 * model.intermediate_size,
        d.POSITIONS: model.max_position_embeddings + model.extra_positions,
        "mtp_width": 2 * model.hidden_size,
        d.MTP_COLUMNS: model.hidden_size,
        d.LABELS: model.num_labels or 0,
    }
    if model.experts is not None:
        moe = model.experts
        sizes |= {
            d.EXPERTS: moe.num_experts,
            "router_width": moe.num_experts + moe.zero_experts,
            d.EXPERT_LATENT: moe.latent_size or 0,
            "num_experts_per_tok": moe.num_experts_per_tok,
            "expert_copies": moe.computing_per_tok,
            "run_expert_copies": moe.num_experts,
            "expert_groups": moe.n_group or 1,
            "chosen_expert_groups": moe.topk_group or 1,
            d.EXPERT_FFN: moe.moe_intermediate_size,
            d.EXPERT_FFN_FUSED: 2 * moe.moe_intermediate_size,
            d.SHARED_FFN: moe.shared_expert_intermediate_size,
            d.SHARED_FFN_FUSED: 2 * moe.shared_expert_intermediate_size,
            "shared_gate_width": 1,
        }
    if wide := model.wide_intermediate_size:
        sizes |= {d.WIDE_FFN: wide, d.WIDE_FFN_FUSED: 2 * wide}
    sizes |= streams.sizes(model)
    for block in blocks_of(model):
        sizes |= parts().mixer(block).sizes(model)
    for end in _ends(model):
        sizes |= end.sizes(model)
    for mixer in model.mixers:
        sizes |= mixer.sizes
    if model.adapter is not None:
        sizes[d.RANK] = sizes[d.RANK_COLUMNS] = model.adapter.r
        sizes[d.ADAPTER_COLUMNS] = model.hidden_size
    return sizes


def _reaches(model: ModelDescriptor) -> dict[str, tuple[tuple[int | None, int], ...]]:
    """Return, by kind of attention, a pair for each set of keys that a query reads: of how many tokens before it (None:
    all), and how many tokens share one key. KEYS_FULL, KEYS_WINDOW and KEYS_CHOSEN are always there; kinds with
    compressed keys only if a mixer of the model states how many tokens share one.
    """
    sizes = {name: size for mixer in model.mixers for name, size in mixer.sizes.items()}
    window, chosen = (model.sliding_window, 1), (model.indexer.index_topk if model.indexer else None, 1)
    sets: dict[str, tuple[tuple[int | None, int], ...]] = {
        d.KEYS_FULL: ((None, 1),), d.KEYS_WINDOW: (window,), d.KEYS_CHOSEN: (chosen,)
    }  # fmt: skip
    if rate := sizes.get(d.HEAVY_RUN):
        sets[d.KEYS_WITH_RUNS] = (window, (None, rate))
    if rate := sizes.get(d.RUN):
        sets[d.KEYS_WITH_CHOSEN_RUNS] = (window, (rate * sizes["index_topk"], rate))
    return sets


def keys(model: ModelDescriptor, seq_length: int, packing: Packing | None = None) -> dict[str, float]:
    """Return the mean number of keys per query of a model at `seq_length`, by kind of attention (KEYS_FULL,
    KEYS_WINDOW, KEYS_CHOSEN, and those with compressed keys that the model has); with packing, within a query's
    document. A window is cut into chunks for chunked attention.
    """
    chunked = model.chunked_attention
    return {
        kind: sum(
            attended(seq_length, reach, packing, chunked and kind == d.KEYS_WINDOW) / rate for reach, rate in some
        )
        for kind, some in _reaches(model).items()
    }


def visible(model: ModelDescriptor, seq_length: int) -> dict[str, float]:
    """Return, by kind of attention, the number of keys of the query that attends to the most: all that the kind reaches
    among `seq_length` tokens. Packing and chunks are ignored.
    """
    return {
        kind: float(sum(min(reach or seq_length, seq_length) / rate for reach, rate in some))
        for kind, some in _reaches(model).items()
    }


def attended(
    seq_length: int, window: int | None = None, packing: Packing | None = None, chunked: bool = False
) -> float:
    """Return the mean number of keys per query under the causal mask, counted as length / 2 without a window.

    Args:
        window: tokens that a query sees at most; None or 0: all before it.
        packing: lengths of documents, cut to `seq_length`, with their weights (None: equal); None: one document of
            `seq_length`.
        chunked: a query sees only its own chunk of `window` tokens, as if that were a document.
    """
    lengths: tuple[int, ...] = packing.lengths if packing else (seq_length,)
    shares = packing.weights if packing and packing.weights else (1.0,) * len(lengths)
    pairs = tokens = 0.0
    for length, share in zip(lengths, shares, strict=True):
        length = min(length, seq_length)
        reach = min(window or length, length)
        whole, rest = divmod(length, reach)
        beyond = (whole - 1) * reach * reach / 2 + rest * rest / 2 if chunked else (length - reach) * reach
        pairs += share * (reach * reach / 2 + beyond)
        tokens += share * length
    return pairs / tokens


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Hold parameter counts of the unpadded model. `active`: used for one token. `by_part`: per kind of block, all of
    its blocks together, trained or frozen.
    """

    total: int
    active: int
    trainable: int
    by_part: Mapping[str, int]


@lru_cache(maxsize=128)
def parameters(model: ModelDescriptor, with_mtp: bool = True) -> ParameterCount:
    """Return the exact parameter counts of the unpadded model, each kind of block times its number. Cached. A tied head
    is counted once; adapters count as trainable and in the total. Active: experts count by the share that computes for
    one token. Biases of the routers' scores of families in SCORE_BIAS, which are untrained, are added to total and
    active, not to by_part. with_mtp: include the multi-token-prediction layers.
    """
    sizes = dim_sizes(model)
    kinds = blocks(model)
    share = 1.0
    if model.experts is not None:
        share = model.experts.computing_per_tok / model.experts.num_experts
    active = trainable = 0
    by_part: dict[str, int] = {}
    for kind, times in Counter(sequence(model)).items():
        if kinds[kind].place is Place.FURTHER and not with_mtp:
            continue
        by_part[kind] = 0
        tied = model.tie_word_embeddings and kinds[kind].place is Place.LAST
        for weight in (weight for op in kinds[kind].operators for weight in op.weights):
            if weight.shared or (tied and weight.table):
                continue
            count = times * round(d.elements(weight.dims).value(sizes))
            by_part[kind] += count
            active += round(count * share) if d.EXPERTS in weight.dims else count
            trainable += 0 if weight.frozen else count
    total = sum(by_part.values())
    untrained = 0  # biases of the choice that a class has as parameters, but without a gradient
    if model.experts is not None and model.model_type in SCORE_BIAS:
        untrained = model.experts.num_experts * sum(model.moe_layers)
    return ParameterCount(total + untrained, active + untrained, trainable, by_part)


@lru_cache(maxsize=128)
def largest_trained(model: ModelDescriptor) -> int:
    """Return the number of elements of the largest weight that is not frozen, with all experts of a layer as one
    weight. Cached. Raise ValueError if all weights are frozen.
    """
    sizes = dim_sizes(model)
    weights = (weight for block in blocks(model).values() for op in block.operators for weight in op.weights)
    return max(round(d.elements(weight.dims).value(sizes)) for weight in weights if not weight.frozen)


Targets = tuple[AdapterTarget, ...]

ATTENTION_TARGETS: frozenset[AdapterTarget] = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
     "kv_b_proj")
)  # fmt: skip
MLP_TARGETS: frozenset[AdapterTarget] = frozenset(("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2"))
# Of Qwen-7B c_proj is the name of the attention's output and of the MLP's: in neither of the two.


@lru_cache(maxsize=64)
def adapter_targets(model: ModelDescriptor) -> Targets:
    """Return the names of a model's linear layers, including fused ones, that `Adapter.target_modules` accepts, that
    `model.names_target` and for which an adapter on that layer trains a weight in some block. Cached.
    """
    names: Targets = get_args(AdapterTarget)

    def trained(name: AdapterTarget) -> bool:
        """Return whether an adapter of rank 1 on this layer, and on no other, gives any block a weight that is not
        frozen.
        """
        adapter = Adapter(r=1, lora_alpha=1.0, target_modules=(name,))
        every = blocks(model.model_copy(update={"adapter": adapter})).values()
        return any(not weight.frozen for block in every for op in block.operators for weight in op.weights)

    return tuple(name for name in names if model.names_target(name) and trained(name))


def without_overlap(names: Iterable[AdapterTarget], fuses: Collection[AdapterTarget] = ()) -> Targets:
    """Return the names without overlap: a fused layer in `fuses` replaces its parts, other fused layers are dropped."""
    every = [name for name in names if name in fuses or name not in FUSED_TARGETS]
    inside = {part for whole, pieces in FUSED_TARGETS.items() if whole in every for part in pieces}
    return tuple(name for name in every if name not in inside)

"""A model descriptor as blocks by kind, with the numbers of its dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from types import MappingProxyType

from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention
from symconfig.errors import InputError, Problem
from symconfig.graph import dims as d
from symconfig.graph.block import Block
from symconfig.graph.blocks.layer import layer
from symconfig.graph.blocks.streams import layer_input_sizes, stream_sizes
from symconfig.graph.builder import Builder, Context
from symconfig.graph.derive import derive
from symconfig.graph.derived import DerivedBlock
from symconfig.graph.implementation import Implementation
from symconfig.graph.parts import End, parts
from symconfig.graph.scheme import Scheme


def blocks(model: ModelDescriptor, how: Implementation | None = None, shared_heads: bool = False) -> dict[str, Block]:
    """Return each kind of block of a model by name, built once: encoders and embedding, layer kinds by first
    appearance, then multi-token prediction and head; without kinds of which the model has none. Raise InputError for a
    mixer that is unknown or whose sizes or switches do not fit it. how: None for Implementation(); replaced by
    `written_for` the model_type. shared_heads: see Scheme.
    """
    how = (how or Implementation()).written_for(model.model_type)
    problems = [
        Problem(sentence, field="mixers", got=mixer.block)
        for mixer in model.mixers
        if mixer.block != NO_MIXER
        for sentence in parts().mixer(mixer.block).problems(mixer)
    ]
    if problems:
        raise InputError(problems)

    quantises = model.adapter is not None and model.adapter.method == "qlora"

    def context() -> Context:
        return Context(model, how, Builder(stops_early=how.stops_early, quantises=quantises), shared_heads)

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
    """Return the kind of every block of the model in order: blocks before the layers, one kind per layer, blocks behind
    them; a kind is repeated as often as the model has it.
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
    sizes |= layer_input_sizes(model) | stream_sizes(model)
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

"""`symconfig list families`: every family of transformers, how its models are made, and which targets take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symconfig.descriptor.layers import NO_MIXER
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Norm, Position
from symconfig.report.grid import Block, Grid
from symconfig.runs.families import Family

# Targets that say one model to the same framework stand in one column.
COLUMNS = {
    "Megatron-LM": ("megatron",),
    "Bridge": ("bridge",),
    "ms-swift": ("ms-swift",),
    "DeepSpeed": ("deepspeed", "transformers", "accelerate"),
    "LLaMA-Factory": ("llamafactory",),
}
READ_AS = (
    "yes: the default model of the family's class can be planned and written for all targets of that column; a "
    "target's name: for that one alone; by hand: once something is changed in the framework's own code, which the "
    "refusal names."
)


def family_list(families: Sequence[Family]) -> list[Block]:
    """List the families, one line each."""
    rows = tuple((one.name, described(one), *cells(one)) for one in families)
    read = sum(one.model is not None for one in families)
    return [
        Grid(("family", "its default model", *COLUMNS), rows, left=tuple(range(2 + len(COLUMNS)))),
        f"{read} of {len(families)} families are imported. {READ_AS}",
        "`symconfig list families NAME` says of one what is in the way.",
    ]


def family_shown(family: Family) -> list[Block]:
    """Show one family with all that is in the way of each target."""
    title = f"{family.name}: {family.class_name or 'no class of transformers'}"
    if family.model is None:
        return [title, *(str(problem) for problem in family.refused)]
    ways = (
        (target, "can be told it" if not reasons else str(reasons[0]))
        for names in COLUMNS.values()
        for target in names
        for reasons in (family.cannot.get(target, ()),)
    )
    more = [f"{target}: {problem}" for target, problems in sorted(family.cannot.items()) for problem in problems[1:]]
    return [Grid.pairs(ways, title), described(family), *more]


def described(family: Family) -> str:
    """Return the structure of a family's default model, or why there is none."""
    return structure(family.model) if family.model is not None else f"refused: {reason(family)}"


def reason(family: Family) -> str:
    """Return why a family is refused, without the place in a file that nobody wrote."""
    first = family.refused[0]
    at = f"{first.field}: " if first.field and first.field != "model_type" else ""
    got = f" (got {first.got})" if first.got and at else ""
    return f"{at}{first.what}{got}"


def cells(family: Family) -> tuple[str, ...]:
    """Return what the targets of each column can be told."""
    return tuple(" ".join(_cell(family, names)) for names in COLUMNS.values())


def _cell(family: Family, names: Sequence[str]) -> Iterator[str]:
    able = [name for name in names if family.can(name)]
    if able == list(names):
        yield "yes"
    elif able:
        yield from able
    elif family.model is not None and any(family.by_hand(name) for name in names):
        yield "by hand"


_POSITIONS = {
    Position.ROPE: "rope",
    Position.LEARNED: "learned positions",
    Position.ALIBI: "ALiBi",
    Position.NONE: "no positions",
}
_BLOCKS = {
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated_delta_net": "gated delta net",
    "kimi_delta_attention": "Kimi delta attention",
    "short_conv": "short convolution",
    "lightning_attention": "lightning attention",
    "mlstm": "mLSTM",
    "wkv": "WKV",
    "shared_kv_attention": "attention with one head of keys that are values",
    "heavily_compressed_attention": "the same and heavily compressed keys",
    "compressed_sparse_attention": "the same and chosen compressed keys",
}


def structure(model: ModelDescriptor) -> str:
    """Return what mixes tokens, how positions are told, what follows and where norms stand."""
    return "; ".join(part for part in (*_mixing(model), _position(model), *_following(model), *_norms(model)) if part)


def _mixing(model: ModelDescriptor) -> Iterator[str]:
    layers = model.num_hidden_layers
    attending = sum(kind.attends for kind in model.kind_of_layer)
    if attending:
        yield _attention(model) + _share(attending, layers)
    for mixer in model.mixers:
        if mixer.block != NO_MIXER:
            name = _BLOCKS.get(mixer.block, mixer.block.replace("_", " "))
            has = layers if mixer.layers is None else sum(mixer.layers)
            yield name + (" beside it" if mixer.beside_attention else "") + _share(has, layers)
    if (shared := model.shared_block) is not None:
        held = "one block" if shared.blocks == 1 else f"{shared.blocks} blocks"
        yield f"attention and an MLP, held as {held}" + _share(sum(shared.layers), layers)
    if model.num_kv_shared_layers:
        yield "keys and values of earlier layers" + _share(model.num_kv_shared_layers, layers)
    if windows := sum(model.sliding_layers):
        yield ("chunks" if model.chunked_attention else "window") + _share(windows, layers)
    if model.indexer is not None:
        yield "sparse by an indexer"
    if model.attention_gate is not None:
        yield "its result gated"


def _attention(model: ModelDescriptor) -> str:
    if model.attention is Attention.MLA:
        return "latent attention"
    if model.num_key_value_heads == 1 and model.num_attention_heads > 1:
        return "multi-query attention"
    grouped = model.num_key_value_heads < model.num_attention_heads
    return "grouped-query attention" if grouped else "multi-head attention"


def _share(some: int, layers: int) -> str:
    return "" if some == layers else f" in {some} of {layers} layers"


def _position(model: ModelDescriptor) -> str:
    if not any(kind.attends for kind in model.kind_of_layer):
        return ""
    if model.position is not Position.ROPE:
        return _POSITIONS.get(model.position, f"{model.position} positions")
    part = f" on {model.partial_rotary_factor:.0%} of a head" if model.partial_rotary_factor < 1 else ""
    scaled = f" ({model.rope_scaling.rope_type})" if model.rope_scaling else ""
    some = model.rope_layers
    return f"rope{part}{scaled}" + ("" if some is None else _share(sum(some), len(some)))


def _following(model: ModelDescriptor) -> Iterator[str]:
    if (experts := model.experts) is not None:
        shared = " and a shared one" if experts.shared_expert_intermediate_size else ""
        chosen = f"{experts.num_experts_per_tok} of {experts.num_experts} experts{shared}"
        yield chosen + _share(sum(model.moe_layers), model.num_hidden_layers)
    if any(model.dense_layers):
        yield "gated MLP" if model.gated_mlp else "plain MLP"


def _norms(model: ModelDescriptor) -> Iterator[str]:
    if model.norm is Norm.LAYERNORM:
        yield "layernorm"
    if model.parallel_residual:
        yield "attention and MLP in parallel"
    if model.norm_after_sublayer:
        yield "norms around sublayers" if model.norm_before_sublayer else "norms after sublayers"
    if model.qk_norm:
        yield "norms of queries and keys"
    if model.streams is not None:
        yield f"{model.streams.count} residual streams"
    if model.hypersphere:
        yield "learned scales on a normed stream"
    if model.layer_inputs is not None:
        yield "an embedding for each layer"
    if model.loop is not None:
        yield f"{max(model.loop.held) + 1} layers that run {model.num_hidden_layers} times together"
    if not model.first_input_norm:
        yield "no norm in the first layer"
    if model.norm_gate_rank is not None:
        yield "norms gated"
    if model.head_projection:
        yield "a projection before the head"
    if model.num_labels is not None:
        yield "a head of values"
    if model.num_nextn_predict_layers:
        yield "multi-token prediction"

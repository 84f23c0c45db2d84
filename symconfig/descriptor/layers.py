"""What the layers of a model are made of, where they are not all alike: what mixes tokens, and what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from symconfig.descriptor.strict import Count, Strict

if TYPE_CHECKING:
    from symconfig.descriptor.model import ModelDescriptor

NO_MIXER = "none"  # a block's name, for layers of an MLP only


class Mlp(StrEnum):
    """The part of a layer that follows the tokens' mixing."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Keys(StrEnum):
    """The keys that a layer's attention reads, but for those beyond a window."""

    ALL = ""
    CHOSEN = "indexed"  # an indexer of this layer's chooses them
    AS_BEFORE = "as_before"  # those that the last indexer chose


class Turn(StrEnum):
    """A layer's turn of the block that several layers share."""

    NONE = ""
    HOLDS = "sharing"  # calls it first, and so holds its weights
    CALLS = "shared"


class Pairs(StrEnum):
    """The origin of the keys and values that a layer's attention reads."""

    OWN = ""
    LENT = "lending"  # its own, and later layers read them
    BORROWED = "borrowing"  # those of the last layer of its kind that has some


class Mixer(Strict):
    """A building block that mixes tokens in place of attention; the planner knows it by its file in `graph/blocks`."""

    block: str = Field(min_length=1, description="its name there; none: nothing mixes tokens in these layers")
    sizes: dict[str, Count] = Field(default_factory=dict, description="of the dims that are its own")
    switches: tuple[str, ...] = Field(default=(), description="what of it is there that need not be, such as a bias")
    layers: tuple[bool, ...] | None = Field(default=None, description="per layer: has it; absent: all layers")
    beside_attention: bool = Field(
        default=False, description="attention reads the same input, and both results are added (Falcon-H1)"
    )

    def __hash__(self) -> int:
        return hash((self.block, tuple(sorted(self.sizes.items())), self.switches, self.layers, self.beside_attention))

    @property
    def structure(self) -> tuple[object, ...]:
        """Return all that its operators depend on, where its sizes are symbols."""
        return (self.block, tuple(sorted(name for name, size in self.sizes.items() if size)), self.switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A kind of layer. mixer: a block's name. window: attention sees a window or a chunk only. rope: it turns queries
    and keys. beside: a second block that reads what attention reads. keys: which ones attention reads. input_norm:
    what mixes tokens reads a norm, where layers have one there. again: with the weights of a layer that runs, too.
    joins, closes, detached: see `Loop`. calls: a block of several layers. pairs: keys and values. wide: its MLP is
    as wide as `wide_intermediate_size` says. cut: a share of the MLP's gates is. opens: its router reads none of a
    layer before."""

    mixer: str
    mlp: Mlp = Mlp.DENSE
    window: bool = False
    rope: bool = True
    beside: str | None = None
    attends: bool = True
    keys: Keys = Keys.ALL
    again: bool = False
    joins: bool = False
    closes: bool = False
    detached: bool = False
    calls: Turn = Turn.NONE
    pairs: Pairs = Pairs.OWN
    wide: bool = False
    cut: bool = False
    opens: bool = False
    input_norm: bool = True

    @property
    def moe(self) -> bool:
        """Tell whether its MLP is a mixture of experts."""
        return self.mlp is Mlp.MOE

    @property
    def name(self) -> str:
        """Compose a name of the layer's parts.

        dense, moe or mixer (no MLP), then `_window` or `_indexed`, `_nope`, `_unnormed`, then what stands in
        attention's place or beside it, then what it shares with other layers.
        """
        first = "mixer" if self.mlp is Mlp.NONE else str(self.mlp)
        own = "" if self.attends else f"_{'alone' if self.mixer == NO_MIXER else self.mixer}"
        companion = f"_with_{self.beside}" if self.beside else ""
        chosen = f"_{self.keys}" if self.keys else ""
        turned = ("" if self.rope else "_nope") + ("" if self.input_norm else "_unnormed")
        name = first + ("_window" if self.window else "") + chosen + turned + own + companion
        switched = [
            one for one in ("wide", "cut", "opens", "joins", "closes", "detached", "again") if getattr(self, one)
        ]
        return "_".join([name, *filter(None, (self.calls, self.pairs)), *switched])


def layers_problems(model: ModelDescriptor) -> list[str]:
    """Return what is wrong with fields that have one entry per layer."""
    lists: dict[str, tuple[object, ...] | None] = {
        "mlp_layers": model.mlp_layers,
        "rope_layers": model.rope_layers,
        "mlp_sparsity": model.mlp_sparsity,
        "experts.layers": model.experts.layers if model.experts else None,
        "indexer.layers": model.indexer.layers if model.indexer else None,
        "shared_block.layers": model.shared_block.layers if model.shared_block else None,
        **(model.loop.lists() if model.loop else {}),
    } | {f"mixers[{index}].layers": mixer.layers for index, mixer in enumerate(model.mixers)}
    problems = [
        f"{name} has {len(entries)} entries for {model.num_hidden_layers} layers"
        for name, entries in lists.items()
        if entries is not None and len(entries) != model.num_hidden_layers
    ]
    if problems:
        return problems
    problems += [] if model.loop is None else list(model.loop.problems())
    problems += _pairs_problems(model)
    everywhere = (True,) * model.num_hidden_layers
    for index in range(model.num_hidden_layers):
        own = [mixer.block for mixer in model.mixers if (mixer.layers or everywhere)[index]]
        if len(own) > 1:
            return [f"mixers: layer {index} has {' and '.join(own)}, need one at most"]
        if own == [NO_MIXER] and not (model.mlp_layers or everywhere)[index]:
            return [f"layer {index} has neither a mixer nor an MLP"]
    low = model.latent
    if low and low.queries_of_both and (low.q_lora_rank is None or model.attention_gate != "channel"):
        problems.append("latent.queries_of_both needs q_lora_rank and an attention_gate by channel")
    if model.indexer and (model.latent is None or model.latent.q_lora_rank is None):
        problems.append("indexer needs latent attention with q_lora_rank: it reads the low-rank queries")
    if model.indexer and model.indexer.layers:
        seeing = (own for own, window in zip(model.indexer.layers, model.sliding_layers, strict=False) if not window)
        if not next(seeing, True):
            problems.append("indexer.layers: the first layer without a window takes a choice that none made before")
    sizes: dict[str, int] = {}
    for mixer in model.mixers:
        for name, size in mixer.sizes.items():
            if sizes.setdefault(name, size) != size:
                problems.append(f"mixers give {name} as {sizes[name]} and as {size}")
    return problems


def _pairs_problems(model: ModelDescriptor) -> list[str]:
    """Return what is wrong with layers that read the keys and values of others."""
    first = model.num_hidden_layers - model.num_kv_shared_layers
    if model.sliding_window_pattern is not None and len(model.sliding_window_pattern) != model.num_hidden_layers:
        return []
    if first == model.num_hidden_layers:
        return [] if model.wide_intermediate_size is None else ["wide_intermediate_size needs num_kv_shared_layers"]
    if model.attention != "gqa" or first < 1:
        return ["num_kv_shared_layers needs plain attention, and a layer before them"]
    if missing := {model.mixes(i) for i in range(first, model.num_hidden_layers)} - {
        model.mixes(i) for i in range(first)
    }:
        return [f"num_kv_shared_layers: no layer before them has the keys of {len(missing)} of their kinds"]
    return []

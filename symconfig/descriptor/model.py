"""The model descriptor: an architecture as numbers, with the field names of Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field

from symconfig.descriptor.sections import (
    FUSED_TARGETS,
    QWEN_TARGETS,
    Activation,
    Adapter,
    AdapterTarget,
    Attention,
    Experts,
    Indexer,
    Keys,
    LatentAttention,
    LayerInputs,
    LayerKind,
    Mixer,
    Mlp,
    Norm,
    Pairs,
    Particular,
    Position,
    RopeScaling,
    Streams,
    misplaced,
)
from symconfig.descriptor.strict import Count, LayerCount, PositiveInt, Rate, Sparse
from symconfig.descriptor.vision import Vision

ModelSchema = Literal["symconfig.model/1"]
Layers = tuple[bool, ...] | None  # one entry per layer


NOT_SET = "is not known, and is not set in config.json: left out"  # the end of notes that say nothing of the model


class ModelDescriptor(Sparse):
    """One architecture, with what follows from its fields. Optional fields have the value that most models share.

    `name`, `source` and `notes` are for people; everything else changes what is computed or rendered.
    """

    rare: ClassVar[tuple[str, ...]] = (
        "mixers", "mlp_layers", "norm_bias", "norm_weight", "norm_before_sublayer", "shared_input_norm",
        "embedding_norm", "residual_multiplier", "logits_multiplier", "rope_layers", "qk_norm_of", "v_norm",
        "attention_gate", "v_head_dim", "chunked_attention", "indexer", "embedding_multiplier", "final_norm",
        "extra_positions", "particulars", "vision", "streams", "layer_inputs", "num_kv_shared_layers",
        "wide_intermediate_size", "num_labels",
    )  # fmt: skip

    schema_: ModelSchema = Field(alias="schema")
    name: str = Field(min_length=1, max_length=200)
    source: str = Field(min_length=1, description="public place where the numbers come from")
    huggingface_id: str | None = Field(default=None, description="for loading weights and the tokenizer")
    model_type: str = Field(description="architecture family as in config.json: llama, mixtral, qwen3_moe, …")
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"

    hidden_size: PositiveInt
    intermediate_size: Count = Field(description="of the dense MLP; 0 when every layer is MoE")
    num_hidden_layers: LayerCount
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt = Field(description="rows of the embedding that are real tokens, before padding")
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool = False

    hidden_act: Activation = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    mlp_layers: Layers = Field(default=None, description="per layer: has an MLP or experts; absent: all layers")
    lm_head_bias: bool = False
    num_labels: PositiveInt | None = Field(
        default=None, description="numbers that the head gives of a token in place of logits (a critic, a reward: 1)"
    )

    norm: Norm = Norm.RMSNORM
    norm_eps: float = Field(default=1e-5, gt=0, description="rms_norm_eps or layer_norm_epsilon")
    norm_zero_centered: bool = Field(default=False, description="weight stored as w - 1 (Gemma)")
    norm_bias: bool = Field(default=True, description="a layernorm has a bias, too (not Cohere's, not MPT's)")
    norm_weight: bool = Field(default=True, description="norms of the stream have weights (not OLMo 1's)")
    norm_before_sublayer: bool = Field(default=True, description="attention and MLP read a norm (not OLMo 2's)")
    norm_after_sublayer: bool = Field(default=False, description="a norm after attention and MLP (Gemma 2, 3, OLMo 2)")
    final_norm: bool = Field(default=True, description="a norm between the last layer and the head")
    parallel_residual: bool = Field(default=False, description="attention and MLP read one input (GPT-NeoX)")
    shared_input_norm: bool = Field(default=False, description="and both the same norm of it (Cohere, Phi)")
    embedding_norm: bool = Field(default=False, description="a norm behind the embedding (BLOOM)")
    residual_multiplier: float | None = Field(default=None, description="of what a sublayer adds (Granite)")
    logits_multiplier: float | None = Field(default=None, description="logit_scale, or 1 / logits_scaling")

    position: Position = Position.ROPE
    extra_positions: Count = Field(default=0, description="rows of the position table that no token has (OPT)")
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    rope_local_base_freq: float | None = Field(default=None, description="rope base of sliding-window layers (Gemma 3)")
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1.0)
    rope_layers: Layers = Field(default=None, description="per layer: has rope; absent: all layers (SmolLM3, Llama 4)")

    attention: Attention = Attention.GQA
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: bool = Field(default=False, description="a norm on queries and keys (Qwen3, Gemma 3)")
    qk_norm_of: Literal["head", "each_head", "all_heads", "unit"] = Field(
        default="head",
        description="its weights: one vector for all heads (Qwen3), one for each (Cohere), over all heads at once "
        "(OLMo 2), or none (Llama 4, on layers with rope)",
    )
    v_norm: bool = Field(default=False, description="a norm without weights on values, too (Gemma 4)")
    attention_gate: Literal["channel", "head"] | None = Field(
        default=None,
        description="a gate from the layer's input on each channel of the heads (Qwen3-Next), or each head",
    )
    v_head_dim: PositiveInt | None = Field(default=None, description="of values, where it is not head_dim (MiMo)")
    sliding_window: PositiveInt | None = None
    sliding_window_pattern: tuple[bool, ...] | None = Field(
        default=None, description="per layer: has the sliding window; absent: all layers when sliding_window is set"
    )
    chunked_attention: bool = Field(
        default=False, description="the window is a chunk: none before it is seen (Llama 4)"
    )
    indexer: Indexer | None = Field(default=None, description="sparse attention over the keys that it chooses")
    attention_sinks: bool = Field(default=False, description="a learned logit per head in the softmax (gpt-oss)")
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    query_pre_attn_scalar: float | None = None
    scale_embeddings: bool = Field(default=False, description="embeddings times sqrt(hidden_size) (Gemma)")
    embedding_multiplier: float | None = Field(default=None, description="embeddings times a number (Granite)")
    attention_dropout: Rate = 0.0
    hidden_dropout: Rate = 0.0
    latent: LatentAttention | None = None
    mixers: tuple[Mixer, ...] = Field(default=(), description="building blocks in place of attention, or beside it")
    experts: Experts | None = None
    num_nextn_predict_layers: Count = Field(
        default=0, le=100, description="multi-token-prediction layers (DeepSeek-V3)"
    )
    streams: Streams | None = Field(default=None, description="several residual streams (DeepSeek-V4)")
    layer_inputs: LayerInputs | None = Field(default=None, description="an embedding for each layer")
    num_kv_shared_layers: Count = Field(
        default=0, description="last layers that read keys and values of the last layer before them of their kind"
    )
    wide_intermediate_size: PositiveInt | None = Field(
        default=None, description="of the MLP of those layers, where it is another (Gemma 4)"
    )
    particulars: tuple[Particular, ...] = Field(default=(), description="what its class computes besides, by name")
    initializer_range: float = Field(default=0.02, gt=0)
    adapter: Adapter | None = None
    vision: Vision | None = Field(default=None, description="a tower in front that encodes images")
    notes: tuple[str, ...] = Field(
        default=(), description="for people: what of the original model is not described by the fields above"
    )

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction of heads, latent attention, windows, lists by layer
        (`_layers_problems`), channels that rope rotates, names of adapted modules, the projector's width, num_labels.

        intermediate_size 0 beside dense layers is reported only if all else is right.
        """
        yield from (wrong := list(self._contradictions()))
        if not wrong and self.intermediate_size == 0 and any(kind.mlp is Mlp.DENSE for kind in self.kind_of_layer):
            yield "intermediate_size is 0 but some layers have a dense MLP"

    def _contradictions(self) -> Iterator[str]:
        """Yield the `contradictions` but the one that needs every layer's kind."""
        heads, groups, pattern = self.num_attention_heads, self.num_key_value_heads, self.sliding_window_pattern
        if heads % groups:
            yield f"num_attention_heads {heads} is not divisible by num_key_value_heads {groups}"
        if (self.attention is Attention.MLA) != (self.latent is not None):
            yield "attention: mla and the section latent go together"
        if pattern is not None and self.sliding_window is None:
            yield "sliding_window_pattern needs sliding_window"
        if pattern is not None and len(pattern) != self.num_hidden_layers:
            yield f"sliding_window_pattern has {len(pattern)} entries for {self.num_hidden_layers} layers"
        yield from self._layers_problems()
        if self.experts and self.experts.first_k_dense_replace > self.num_hidden_layers:
            yield "experts.first_k_dense_replace is more than num_hidden_layers"
        odd = self.rotary_dim % 2 == 1 if self.latent else self.rotary_dim > self.head_dim
        if self.position is Position.ROPE and odd:
            yield f"rope turns pairs of channels, and not {self.rotary_dim} of {self.head_dim}"
        targets = self.adapter.target_modules if self.adapter else ()
        if foreign := [name for name in targets if not self.names_target(name)]:
            yield f"adapter.target_modules {', '.join(foreign)} is no module of {self.model_type}"
        if self.vision:
            yield from self.vision.against(self.hidden_size)
        if self.num_labels is not None and self.tie_word_embeddings:
            yield "num_labels and tie_word_embeddings do not go together"
        if self.num_labels is not None and self.num_nextn_predict_layers > 0:
            yield "num_labels and num_nextn_predict_layers do not go together"

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the notes on parts of the original model that the descriptor lacks: layers, a tower, a factor.

        Notes on unknown keys that are not set are not among them.
        """
        return tuple(note for note in self.notes if not note.endswith(NOT_SET))

    @property
    def scoring(self) -> ModelDescriptor:
        """Return the model with a head of one output in place of the vocabulary, as a reward model in training.

        A model that has num_labels is returned as it is; another loses tied embeddings, head bias and multi-token
        prediction.
        """
        without = {"tie_word_embeddings": False, "lm_head_bias": False, "num_nextn_predict_layers": 0}
        return self if self.num_labels else self.model_copy(update={"num_labels": 1, **without})

    @property
    def usual_length(self) -> int:
        """Return the tokens of a sequence where a job states none: the model's longest, at most 4,096."""
        return min(self.max_position_embeddings, 4096)

    @property
    def of_values(self) -> ModelDescriptor:
        """Return the `scoring` model without adapters: a critic, or a reward model that is only read."""
        return self.scoring if self.adapter is None else self.scoring.model_copy(update={"adapter": None})

    def names_target(self, target: AdapterTarget) -> bool:
        """Return whether an adapter of such a model may target a module of this name; fused layers always may."""
        return target in FUSED_TARGETS or (target in QWEN_TARGETS) == (self.model_type == "qwen")

    def _layers_problems(self) -> list[str]:
        """Return the problems of fields with one entry per layer, of shared keys and of the indexer; empty if none.

        Wrong lengths are returned without further checks, and so are misplaced mixers, since further checks would fail
        on them.
        """
        lists = {
            "mlp_layers": self.mlp_layers,
            "rope_layers": self.rope_layers,
            "experts.layers": self.experts.layers if self.experts else None,
            "indexer.layers": self.indexer.layers if self.indexer else None,
        } | {f"mixers[{index}].layers": mixer.layers for index, mixer in enumerate(self.mixers)}
        layers = self.num_hidden_layers
        stated = {name: len(entries) for name, entries in lists.items() if entries is not None}
        problems = [f"{name} has {n} entries for {layers} layers" for name, n in stated.items() if n != layers]
        if problems:
            return problems
        problems += self._pairs_problems()
        if wrong := misplaced(self.mixers, self.mlp_layers, layers):
            return wrong
        if self.indexer and (self.latent is None or self.latent.q_lora_rank is None):
            problems.append("indexer needs latent attention with q_lora_rank: it reads the low-rank queries")
        if self.indexer and self.indexer.layers:
            seeing = (own for own, window in zip(self.indexer.layers, self.sliding_layers, strict=False) if not window)
            if not next(seeing, True):
                problems.append("indexer.layers: the first layer without a window takes a choice that none made before")
        sizes: dict[str, int] = {}
        every = [(name, size) for mixer in self.mixers for name, size in mixer.sizes.items()]
        differing = [(name, size) for name, size in every if sizes.setdefault(name, size) != size]
        return problems + [f"mixers give {name} as {sizes[name]} and as {size}" for name, size in differing]

    def _pairs_problems(self) -> list[str]:
        """Return the problem, as a list of one, of layers that read earlier layers' keys and values; [] if none.

        wide_intermediate_size needs such layers; they need plain attention, a layer before them, and for each of their
        kinds (`mixes`) an earlier layer of it. [] too if sliding_window_pattern has a wrong length.
        """
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if self.sliding_window_pattern is not None and len(self.sliding_window_pattern) != self.num_hidden_layers:
            return []
        if first == self.num_hidden_layers:
            return [] if self.wide_intermediate_size is None else ["wide_intermediate_size needs num_kv_shared_layers"]
        if self.attention is not Attention.GQA or first < 1:
            return ["num_kv_shared_layers needs plain attention, and a layer before them"]
        if missing := {self.mixes(i) for i in range(first, self.num_hidden_layers)} - {
            self.mixes(i) for i in range(first)
        }:
            return [f"num_kv_shared_layers: no layer before them has the keys of {len(missing)} of their kinds"]
        return []

    @cached_property
    def moe_layers(self) -> tuple[bool, ...]:
        """Return, for every layer, whether it has experts; cached.

        By `experts.layers` if set; else layers from first_k_dense_replace on, of which every moe_layer_freq-th (the
        last of each group) if that is above 1. All False for a dense model.
        """
        if self.experts is None:
            return (False,) * self.num_hidden_layers
        if self.experts.layers is not None:
            return self.experts.layers
        first, every = self.experts.first_k_dense_replace, self.experts.moe_layer_freq
        return tuple(
            i >= first and (i - first) % every == every - 1 if every > 1 else i >= first
            for i in range(self.num_hidden_layers)
        )

    @cached_property
    def sliding_layers(self) -> tuple[bool, ...]:
        """Return, for every layer, whether it has the sliding window; all have it without a pattern."""
        if self.sliding_window is None:
            return (False,) * self.num_hidden_layers
        return self.sliding_window_pattern or (True,) * self.num_hidden_layers

    @cached_property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """Return the `LayerKind` of every layer, in order, cached."""
        return tuple(self._kind(index) for index in range(self.num_hidden_layers))

    def _kind(self, index: int) -> LayerKind:
        """Return the `LayerKind` of one layer. mixer: the block of the first mixer that has this layer if it replaces
        attention; else attention's name, and `beside` is that block or None.

        keys: the ones that the indexer lets attention read. pairs: keys and values own, lent or borrowed. Without
        attention `window` is false, `rope` true and `keys` all. `wide` only where the layer borrows keys and values.
        """
        own = self._mixer_of(index)
        attends = own is None or own.beside_attention
        mlp, keys, indexer = Mlp.MOE if self.moe_layers[index] else Mlp.DENSE, Keys.ALL, self.indexer
        if attends and indexer is not None and not self.sliding_layers[index]:
            keys = Keys.CHOSEN if indexer.layers is None or indexer.layers[index] else Keys.AS_BEFORE
        return LayerKind(
            mixer=str(self.attention) if attends or own is None else own.block,
            mlp=mlp if self.mlp_layers is None or self.mlp_layers[index] else Mlp.NONE,
            window=attends and self.sliding_layers[index],
            rope=not attends or self.rope_layers is None or self.rope_layers[index],
            beside=own.block if own is not None and attends else None,
            attends=attends,
            keys=keys,
            pairs=self._pairs(index),
            wide=self.wide_intermediate_size is not None and self._pairs(index) is Pairs.BORROWED,
        )

    def _mixer_of(self, index: int) -> Mixer | None:
        """Return the first mixer that has this layer; None for a layer of attention alone."""
        return next((mixer for mixer in self.mixers if mixer.layers is None or mixer.layers[index]), None)

    def mixes(self, index: int) -> str | bool:
        """Return the name of a layer's block, in place of attention or beside it; without one whether it has a window.

        Layers share keys and values only where this is equal.
        """
        own = self._mixer_of(index)
        return self.sliding_layers[index] if own is None else own.block

    def _pairs(self, index: int) -> Pairs:
        """Return whether a layer's keys and values are its own, lent to later layers, or borrowed.

        The last num_kv_shared_layers borrow; before them, the last layer of each kind (`mixes`) lends. All are OWN
        without such layers.
        """
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if first == self.num_hidden_layers:
            return Pairs.OWN
        if index >= first:
            return Pairs.BORROWED
        later = (self.mixes(other) for other in range(index + 1, first))
        return Pairs.OWN if self.mixes(index) in later else Pairs.LENT

    def mixer(self, block: str) -> Mixer:
        """Return the model's first mixer of this block. Raises StopIteration if it has none."""
        return next(mixer for mixer in self.mixers if mixer.block == block)

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """Return the name of every layer's kind, in order, cached (`LayerKind.name`).

        As dense, moe_window, dense_nope.
        """
        return tuple(kind.name for kind in self.kind_of_layer)

    @property
    def encoder_kinds(self) -> tuple[str, ...]:
        """Return the kinds of the vision tower's blocks; empty without one."""
        return self.vision.kinds if self.vision is not None else ()

    @property
    def rotary_dim(self) -> int:
        """Return the number of a head's channels that rope rotates, rounded up to an even number."""
        if self.latent is not None:
            return self.latent.qk_rope_head_dim
        return 2 * math.ceil(int(self.head_dim * self.partial_rotary_factor) / 2)

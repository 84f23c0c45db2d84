"""The model descriptor: what is stated of an architecture, held against itself, and the kinds of its layers."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Self

from pydantic import model_validator

from symconfig.descriptor.layers import Keys, LayerKind, Mixer, Mlp, Pairs, Turn, misplaced, two_sizes, wrong_lengths
from symconfig.descriptor.model_fields import ModelFields
from symconfig.descriptor.sections import FUSED_TARGETS, QWEN_TARGETS, AdapterTarget, Attention, Position

NOT_SET = "is not known, and is not set in config.json: left out"  # the end of notes that say nothing of the model


class ModelDescriptor(ModelFields):
    """One architecture, with what follows from its fields."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.num_attention_heads % self.num_key_value_heads:
            problems.append(
                f"num_attention_heads {self.num_attention_heads} is not divisible by "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if (self.attention is Attention.MLA) != (self.latent is not None):
            problems.append("attention: mla and the section latent go together")
        if self.sliding_window_pattern is not None:
            if self.sliding_window is None:
                problems.append("sliding_window_pattern needs sliding_window")
            if len(self.sliding_window_pattern) != self.num_hidden_layers:
                problems.append(
                    f"sliding_window_pattern has {len(self.sliding_window_pattern)} entries for "
                    f"{self.num_hidden_layers} layers"
                )
        problems += self._layers_problems()
        if self.experts and self.experts.first_k_dense_replace > self.num_hidden_layers:
            problems.append("experts.first_k_dense_replace is more than num_hidden_layers")
        odd = self.rotary_dim % 2 == 1 if self.latent else self.rotary_dim > self.head_dim
        if self.position is Position.ROPE and odd:
            problems.append(f"rope turns pairs of channels, and not {self.rotary_dim} of {self.head_dim}")
        if not problems and self.intermediate_size == 0 and any(self.dense_layers):
            problems.append("intermediate_size is 0 but some layers have a dense MLP")
        if self.adapter is not None:
            foreign = [t for t in self.adapter.target_modules if not self.names_target(t)]
            if foreign:
                problems.append(f"adapter.target_modules {', '.join(foreign)} is no module of {self.model_type}")
        if self.vision is not None:
            problems += self.vision.against(self.hidden_size)
        if self.num_labels is not None:
            with_logits = {"tie_word_embeddings": self.tie_word_embeddings}
            with_logits |= {"num_nextn_predict_layers": self.num_nextn_predict_layers > 0}
            problems += [f"num_labels and {name} do not go together" for name, there in with_logits.items() if there]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the notes of what the model is planned without: layers, a tower, a factor."""
        return tuple(note for note in self.notes if not note.endswith(NOT_SET))

    @property
    def scoring(self) -> ModelDescriptor:
        """Return the model with one number of each token in place of its logits: a model of rewards in training."""
        without = {"tie_word_embeddings": False, "lm_head_bias": False, "num_nextn_predict_layers": 0}
        return self if self.num_labels else self.model_copy(update={"num_labels": 1, **without})

    @property
    def of_values(self) -> ModelDescriptor:
        """Return the same without adapters: a critic, or a model of rewards that is read."""
        return self.scoring if self.adapter is None else self.scoring.model_copy(update={"adapter": None})

    def names_target(self, target: AdapterTarget) -> bool:
        """Return whether modules of such models have a name. A fused layer is the framework's, so any model may."""
        return target in FUSED_TARGETS or (target in QWEN_TARGETS) == (self.model_type == "qwen")

    def _layers_problems(self) -> list[str]:
        """Return what is wrong with fields that have one entry per layer."""
        lists: dict[str, tuple[object, ...] | None] = {
            "mlp_layers": self.mlp_layers,
            "rope_layers": self.rope_layers,
            "mlp_sparsity": self.mlp_sparsity,
            "experts.layers": self.experts.layers if self.experts else None,
            "indexer.layers": self.indexer.layers if self.indexer else None,
            "shared_block.layers": self.shared_block.layers if self.shared_block else None,
            **(self.loop.lists() if self.loop else {}),
        } | {f"mixers[{index}].layers": mixer.layers for index, mixer in enumerate(self.mixers)}
        problems = wrong_lengths(lists, self.num_hidden_layers)
        if problems:
            return problems
        problems += [] if self.loop is None else list(self.loop.problems())
        problems += self._pairs_problems()
        if wrong := misplaced(self.mixers, self.mlp_layers, self.num_hidden_layers):
            return wrong
        low = self.latent
        if low and low.queries_of_both and (low.q_lora_rank is None or self.attention_gate != "channel"):
            problems.append("latent.queries_of_both needs q_lora_rank and an attention_gate by channel")
        if self.indexer and (self.latent is None or self.latent.q_lora_rank is None):
            problems.append("indexer needs latent attention with q_lora_rank: it reads the low-rank queries")
        if self.indexer and self.indexer.layers:
            seeing = (own for own, window in zip(self.indexer.layers, self.sliding_layers, strict=False) if not window)
            if not next(seeing, True):
                problems.append("indexer.layers: the first layer without a window takes a choice that none made before")
        return problems + two_sizes(self.mixers)

    def _pairs_problems(self) -> list[str]:
        """Return what is wrong with layers that read the keys and values of others."""
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
        """Tell of every layer whether its MLP is a mixture of experts."""
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
    def dense_layers(self) -> tuple[bool, ...]:
        """Tell of every layer whether it has a dense MLP."""
        return tuple(kind.mlp is Mlp.DENSE for kind in self.kind_of_layer)

    @cached_property
    def sliding_layers(self) -> tuple[bool, ...]:
        """Tell of every layer whether its attention has the sliding window."""
        if self.sliding_window is None:
            return (False,) * self.num_hidden_layers
        return self.sliding_window_pattern or (True,) * self.num_hidden_layers

    @cached_property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """Return the kind of every layer, in order."""
        return tuple(self._kind(index) for index in range(self.num_hidden_layers))

    def _kind(self, index: int) -> LayerKind:
        own = next((mixer for mixer in self.mixers if mixer.layers is None or mixer.layers[index]), None)
        attends = own is None or own.beside_attention
        mlp = Mlp.MOE if self.moe_layers[index] else Mlp.DENSE
        return LayerKind(
            mixer=str(self.attention) if attends or own is None else own.block,
            mlp=mlp if self.mlp_layers is None or self.mlp_layers[index] else Mlp.NONE,
            window=attends and self.sliding_layers[index],
            rope=not attends or self.rope_layers is None or self.rope_layers[index],
            beside=own.block if own is not None and attends else None,
            attends=attends,
            keys=self._keys(index) if attends else Keys.ALL,
            again=self.loop is not None and self.holder(index) != index,
            joins=bool(self.loop and self.loop.joined and self.loop.joined[index]),
            closes=bool(self.loop and self.loop.closed and self.loop.closed[index]),
            detached=self.loop is not None and self.loop.is_detached(index),
            calls=self._calls(index),
            pairs=self._pairs(index),
            cut=self.mlp_sparsity is not None and self.mlp_sparsity[index] > 0,
            wide=self.wide_intermediate_size is not None and self._pairs(index) is Pairs.BORROWED,
            input_norm=index > 0 or self.first_input_norm,
        )

    def holder(self, index: int) -> int:
        """Return the layer that holds what a layer shares with others; of what it holds alone, itself."""
        if self.loop is not None:
            return self.loop.holder(index)
        calls = self.shared_block is not None and self.shared_block.layers[index]
        return self.shared_block.holder(index) if calls and self.shared_block is not None else index

    def _calls(self, index: int) -> Turn:
        if self.shared_block is None or not self.shared_block.layers[index]:
            return Turn.NONE
        return Turn.HOLDS if self.holder(index) == index else Turn.CALLS

    def mixes(self, index: int) -> str | bool:
        """Return what tells the keys and values of layers apart: a window, or a block in attention's place."""
        own = next((mixer for mixer in self.mixers if mixer.layers is None or mixer.layers[index]), None)
        return self.sliding_layers[index] if own is None else own.block

    def _pairs(self, index: int) -> Pairs:
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if first == self.num_hidden_layers:
            return Pairs.OWN
        if index >= first:
            return Pairs.BORROWED
        later = (self.mixes(other) for other in range(index + 1, first))
        return Pairs.OWN if self.mixes(index) in later else Pairs.LENT

    def _keys(self, index: int) -> Keys:
        if self.indexer is None or self.sliding_layers[index]:
            return Keys.ALL
        return Keys.CHOSEN if self.indexer.layers is None or self.indexer.layers[index] else Keys.AS_BEFORE

    def mixer(self, block: str) -> Mixer:
        """Return what the model says of a block that it has in place of attention."""
        return next(mixer for mixer in self.mixers if mixer.block == block)

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """Name of the kind of every layer, in order: dense, moe_window, dense_nope, … (`LayerKind.name`)"""
        return tuple(kind.name for kind in self.kind_of_layer)

    @property
    def encoder_kinds(self) -> tuple[str, ...]:
        """Return the kinds of the blocks before the embedding: those of the vision tower, where there is one."""
        return self.vision.kinds if self.vision is not None else ()

    @property
    def rotary_dim(self) -> int:
        """Count the channels of a head that rope turns: of an odd number one more, as they are turned in pairs."""
        if self.latent is not None:
            return self.latent.qk_rope_head_dim
        return 2 * math.ceil(int(self.head_dim * self.partial_rotary_factor) / 2)

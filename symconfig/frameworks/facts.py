"""What constraints ask about beside the columns of a plan: the facts that all plans of a search share.

Every fact may be UNKNOWN, and those that are not given are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from symconfig.descriptor.architectures.keys import own_attention
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER, Attention
from symconfig.descriptor.training import Optimizer
from symconfig.frameworks.megatron import adapters
from symconfig.frameworks.megatron.hybrid import DELTA, hybrid, parts_of_layer
from symconfig.graph.model import mixer_pieces
from symconfig.plans.unknown import UNKNOWN

# Transformer Engine 2.x, pytorch/attention/dot_product_attention/utils.py, get_attention_backend: flash and fused
# attention are disabled below compute capability 8.0, and unfused attention under context parallelism.
NO_FLASH = ("volta",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The model, by the names of ModelDescriptor (sizes that it has not are 0), and the kernels that there are.

    sliding_window: tokens; 0: none. indexed: whether attention reads the keys that an indexer chooses; shared_choice:
    in some layers those of a layer before. column_rank: of adapters beside column-parallel layers, where tp splits the
    rank. head_adapters: whether queries, keys and values have one each. flash: whether flash attention runs. joined:
    GPUs that the fastest links join. mixer_pieces: of what ranks hold whole pieces of in blocks in attention's place,
    the greatest common divisor; exchanged_pieces: of what they have where heads are exchanged for the sequence; 0
    without such blocks. scans: whether a block other than attention mixes tokens; delta: whether a gated delta net
    does. own_attention: whether Transformers' modules of the family compute attention in code of their own. hybrid:
    whether Megatron-LM's HybridModel is built; parts_of_layer: of how many of its layers one of the model's is, 0 where
    that differs. architecture: of the GPU (`descriptor.cluster.Gpu`). optimizer: its name. narrow_states: whether it
    keeps something narrower than fp32 by a setting of its own. pretrained: whether the run begins with weights of
    others, without their optimizer's state. backend: the framework's name. samples: of an update of reinforcement
    learning, else 0. per_example: sequences of an example, 2 for pairs. reads_others: whether the loss has a KL term of
    other answers. packed: whether the job packs its sequences.
    """

    model_type: Any = UNKNOWN
    hidden_size: Any = UNKNOWN
    intermediate_size: Any = UNKNOWN
    num_hidden_layers: Any = UNKNOWN
    num_attention_heads: Any = UNKNOWN
    num_key_value_heads: Any = UNKNOWN
    head_dim: Any = UNKNOWN
    latent: Any = UNKNOWN
    indexed: Any = UNKNOWN
    shared_choice: Any = UNKNOWN
    attention_sinks: Any = UNKNOWN
    attention_dropout: Any = UNKNOWN
    hidden_dropout: Any = UNKNOWN
    sliding_window: Any = UNKNOWN
    num_nextn_predict_layers: Any = UNKNOWN
    num_experts: Any = UNKNOWN
    moe_intermediate_size: Any = UNKNOWN
    shared_expert_intermediate_size: Any = UNKNOWN
    expert_bias: Any = UNKNOWN
    mixer_pieces: Any = UNKNOWN
    hybrid: Any = UNKNOWN
    parts_of_layer: Any = UNKNOWN
    exchanged_pieces: Any = UNKNOWN
    scans: Any = UNKNOWN
    delta: Any = UNKNOWN
    own_attention: Any = UNKNOWN
    adapted: Any = UNKNOWN
    column_rank: Any = UNKNOWN
    head_adapters: Any = UNKNOWN
    flash: Any = UNKNOWN
    joined: Any = UNKNOWN
    architecture: Any = UNKNOWN
    optimizer: Any = UNKNOWN
    narrow_states: Any = UNKNOWN
    pretrained: Any = UNKNOWN
    backend: Any = UNKNOWN
    vocab_size: Any = UNKNOWN
    samples: Any = UNKNOWN
    per_example: Any = UNKNOWN
    reads_others: Any = UNKNOWN
    packed: Any = UNKNOWN

    def __eq__(self, other: object) -> bool:
        """Compare facts. UNKNOWN equals itself alone: asked for `==`, as a dataclass would do, it decides nothing."""
        return self._known() == other._known() if isinstance(other, Fixed) else NotImplemented

    def _known(self) -> tuple[tuple[Any] | None, ...]:
        values = (getattr(self, name) for name in FIXED)
        return tuple(None if value is UNKNOWN else (value,) for value in values)

    @classmethod
    def of(
        cls,
        model: ModelDescriptor,
        flash: Any = UNKNOWN,
        joined: Any = UNKNOWN,
        architecture: Any = UNKNOWN,
        *,
        optimizer: Any = UNKNOWN,
        **more: Any,
    ) -> Self:
        """Return the facts of a model; what is not given stays UNKNOWN, sizes of parts that the model lacks are 0.

        flash: whether flash attention runs. joined: GPUs that the fastest links connect. optimizer: an Optimizer, of
        which the name and whether its states are narrow are kept; another value is both. more: other facts by name.
        Raises KeyError for an adapter's target that Megatron-Bridge does not name.
        """
        experts, put = model.experts, adapters.targets(model)
        return cls(
            model_type=model.model_type,
            hidden_size=model.hidden_size,
            intermediate_size=model.intermediate_size,
            num_hidden_layers=model.num_hidden_layers,
            num_attention_heads=model.num_attention_heads,
            num_key_value_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            latent=model.attention is Attention.MLA,
            indexed=model.indexer is not None,
            shared_choice=model.indexer is not None and not all(model.indexer.layers or (True,)),
            attention_sinks=model.attention_sinks,
            attention_dropout=model.attention_dropout,
            hidden_dropout=model.hidden_dropout,
            sliding_window=(model.sliding_window or 0) if any(model.sliding_layers) else 0,
            num_nextn_predict_layers=model.num_nextn_predict_layers,
            num_experts=experts.num_experts if experts else 0,
            moe_intermediate_size=experts.moe_intermediate_size if experts else 0,
            shared_expert_intermediate_size=experts.shared_expert_intermediate_size if experts else 0,
            expert_bias=experts is not None and experts.expert_bias,
            mixer_pieces=mixer_pieces(model),
            hybrid=hybrid(model),
            parts_of_layer=parts_of_layer(model) or 0,
            exchanged_pieces=mixer_pieces(model, exchanged=True),
            scans=any(mixer.block != NO_MIXER for mixer in model.mixers),
            delta=any(mixer.block == DELTA for mixer in model.mixers),
            own_attention=own_attention(model.model_type),
            adapted=model.adapter is not None,
            column_rank=0 if put is None or model.adapter is None or not put.by_columns else model.adapter.r,
            head_adapters=put is not None and "linear_q" in put.modules,
            flash=flash,
            joined=joined,
            architecture=architecture,
            optimizer=optimizer.name if isinstance(optimizer, Optimizer) else optimizer,
            narrow_states=optimizer.narrow if isinstance(optimizer, Optimizer) else optimizer,
            vocab_size=model.vocab_size,
            **more,
        )


def flash(architecture: str, attention: str | None, engine: bool) -> bool:
    """Return whether flash attention runs: not if `attention`, the kernel that the job asks for, is `unfused`.

    Nor, if `engine` (attention is Transformer Engine's), on the GPU architectures NO_FLASH.
    """
    return attention != "unfused" and not (engine and architecture in NO_FLASH)


FIXED = tuple(one.name for one in fields(Fixed))

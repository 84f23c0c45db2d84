"""The choices and sections of a model's descriptor: rope's scaling, experts, latent and sparse attention, adapters; and
what its layers are made of, where they are not all alike, and what they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from symconfig.descriptor.strict import Count, PositiveInt, Rate, Sparse, Strict

_ORIGINAL = "original_max_position_embeddings"
# Fields that each kind of scaling needs, and those that it may have (transformers' modeling_rope_utils.py).
ROPE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": ((), ()),
    "dynamic": ((), (_ORIGINAL,)),
    "llama3": ((_ORIGINAL, "low_freq_factor", "high_freq_factor"), ()),
    "yarn": ((_ORIGINAL,), ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "longrope": ((), (_ORIGINAL, "short_factor", "long_factor")),  # tables that change no shape and no cost
}


Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_sigmoid", "relu", "relu2", "tanh", "clamped_swiglu", "xielu"]


class Norm(StrEnum):
    RMSNORM = "rmsnorm"
    LAYERNORM = "layernorm"


class Position(StrEnum):
    ROPE = "rope"
    LEARNED = "learned"
    ALIBI = "alibi"
    NONE = "none"


class Attention(StrEnum):
    GQA = "gqa"  # includes plain multi-head (kv heads = heads) and multi-query (one kv head)
    MLA = "mla"


class RopeScaling(Strict):
    """`rope_scaling` of config.json; which fields apply depends on `rope_type`."""

    rope_type: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: float = Field(gt=0)
    original_max_position_embeddings: PositiveInt | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each field that rope_type needs and is missing, and for each that it does not have."""
        needed, optional = ROPE_FIELDS[self.rope_type]
        given = self.model_dump(exclude_none=True, exclude={"rope_type", "factor"})
        yield from (f"{n} is missing, rope_type {self.rope_type} needs it" for n in needed if n not in given)
        yield from (f"{n} has no meaning for rope_type {self.rope_type}" for n in given if n not in needed + optional)


class Experts(Sparse):
    """Mixture of experts: what replaces the dense MLP on the layers that `ModelDescriptor.layer_kinds` names."""

    rare: ClassVar[tuple[str, ...]] = (
        "layers", "zero_experts", "latent_size", "latent_bias", "input_scaled", "shortcut", "norms_apart",
    )  # fmt: skip

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    shared_expert_intermediate_size: Count = Field(default=0, description="summed over shared experts; 0: none")
    shared_expert_gate: bool = False
    first_k_dense_replace: Count = Field(default=0, description="leading layers that keep the dense MLP")
    moe_layer_freq: PositiveInt = Field(default=1, description="every n-th layer after those is MoE")
    scoring_func: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    norm_topk_prob: bool = Field(description="the chosen probabilities are renormalised to sum to one")
    softmax_after_topk: bool = Field(
        default=False, description="softmax over the chosen logits only (gpt-oss); Mixtral renormalises instead, equal"
    )
    n_group: PositiveInt | None = None
    topk_group: PositiveInt | None = None
    routed_scaling_factor: float = 1.0
    e_score_correction_bias: bool = Field(default=False, description="aux-loss-free bias added for the choice only")
    router_bias: bool = Field(default=False, description="the router's linear layer has a bias")
    expert_bias: bool = Field(default=False, description="the experts' linear layers have biases")
    router_aux_loss_coef: float = 0.0
    layers: tuple[bool, ...] | None = Field(
        default=None, description="per layer: has experts; absent: as first_k_dense_replace and moe_layer_freq say"
    )
    zero_experts: Count = Field(default=0, description="further choices of the router that compute nothing (LongCat)")
    latent_size: PositiveInt | None = Field(
        default=None, description="width that tokens are projected to before their experts, and back (Nemotron 3)"
    )
    latent_bias: bool = Field(default=False, description="these two projections have biases")
    input_scaled: bool = Field(
        default=False, description="a choice's weight scales the token that its expert reads, not the result (Llama 4)"
    )
    shortcut: bool = Field(
        default=False,
        description="their result joins the stream at the next layer's end, the shared expert's here (LongCat)",
    )

    norms_apart: bool = Field(
        default=False,
        description="router, routed experts and the shared one each read a norm of the stream, and what either gives "
        "is normed; learned scales stand on the router's channels and on each expert's weight (Gemma 4)",
    )

    @property
    def computing_per_tok(self) -> float:
        """Return the mean number of a token's experts that compute, if the router is balanced over all.

        Zero experts, which compute nothing, count among all.
        """
        return self.num_experts_per_tok * self.num_experts / (self.num_experts + self.zero_experts)

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence unless choices are at most all experts, zero experts included, and n_group and topk_group
        are set together, topk_group at most n_group, which divides num_experts.
        """
        chosen, groups, of_groups = self.num_experts_per_tok, self.n_group, self.topk_group
        if chosen > self.num_experts + self.zero_experts:
            yield f"num_experts_per_tok {chosen} is more than num_experts {self.num_experts}"
        if (groups is None) != (of_groups is None):
            yield "n_group and topk_group go together"
        if (of_groups or 0) > (groups or of_groups or 0):
            yield f"topk_group {of_groups} is more than n_group {groups}"
        if self.num_experts % (groups or 1):
            yield f"num_experts {self.num_experts} is not divisible by n_group {groups}"


class LatentAttention(Strict):
    """Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values."""

    q_lora_rank: PositiveInt | None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class Particular(Strict):
    """A computation of a model's class that changes results, and neither shapes nor costs.

    Frameworks that run the class itself, by its `config.json`, compute it; one with modules of its own cannot be told.
    """

    name: str = Field(min_length=1, description="config.json's key, or that of an attribute that the class fixes")
    value: bool | int | float | str


class Indexer(Strict):
    """Sparse attention (DeepSeek-V3.2): a small attention of its own chooses the keys that a query sees.

    It reads the low-rank queries and the layer's input. Layers with a window have none. A loss of its own, by which its
    scores follow the attention's, is all that trains it; Transformers' classes have none.
    """

    index_n_heads: PositiveInt
    index_head_dim: PositiveInt
    index_topk: PositiveInt
    layers: tuple[bool, ...] | None = Field(
        default=None, description="per layer: has an indexer of its own, and not the choice of the last one that has"
    )
    loss_coef: Rate = Field(
        default=0.001, description="of the loss that trains it, where a framework has one; 0: it is not trained"
    )  # Megatron-Bridge's for GLM-5 (models/glm_moe_dsa/glm5_bridge.py)


AdapterTarget = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj", "w1", "w2",
    "qkv_proj", "gate_up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
]  # fmt: skip
# A fused layer and the names of what it computes at once.
FUSED_TARGETS: dict[AdapterTarget, tuple[AdapterTarget, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj", "c_attn"),
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w2"),
}
QWEN_TARGETS = frozenset(("c_attn", "c_proj", "w1", "w2"))  # modeling_qwen.py; every other model has the *_proj names
FUSED_PARTS = {whole: {*names} - QWEN_TARGETS for whole, names in FUSED_TARGETS.items()}


class Adapter(Strict):
    """Low-rank adapters over frozen weights (LoRA), the frozen weights in 4 bits for QLoRA."""

    method: Literal["lora", "qlora"] = "lora"
    r: PositiveInt
    lora_alpha: float = Field(gt=0)
    lora_dropout: Rate = 0.0
    target_modules: tuple[AdapterTarget, ...] = Field(
        min_length=1,
        description="names as PEFT spells them for this model; of Qwen-7B c_attn is fused q, k, v, and c_proj both the "
        "attention's output and the MLP's; qkv_proj and gate_up_proj: one adapter on a fused layer, as NeMo has it",
    )


NO_MIXER = "none"  # a block's name, for layers of an MLP only


class Mlp(StrEnum):
    """The kind of a layer's MLP."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Keys(StrEnum):
    """The keys that a layer's attention reads, but for those beyond a window."""

    ALL = ""
    CHOSEN = "indexed"  # an indexer of this layer's chooses them
    AS_BEFORE = "as_before"  # those that the last indexer chose


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
        """Return all that the block's operators depend on, except the sizes' values.

        (block, sorted names of sizes above 0, switches)
        """
        return (self.block, tuple(sorted(name for name, size in self.sizes.items() if size)), self.switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes one layer's structure from another's; equal kinds have equal operators.

    mixer: block in place of attention, else the attention's name. window: attention sees a window or chunk only. rope:
    rope rotates queries and keys. beside: a second block with the same input as attention. attends: has attention.
    keys: which keys attention reads. pairs: origin of keys and values. wide: its MLP has `wide_intermediate_size`.
    """

    mixer: str
    mlp: Mlp = Mlp.DENSE
    window: bool = False
    rope: bool = True
    beside: str | None = None
    attends: bool = True
    keys: Keys = Keys.ALL
    pairs: Pairs = Pairs.OWN
    wide: bool = False

    @property
    def moe(self) -> bool:
        """Return whether its MLP is a mixture of experts."""
        return self.mlp is Mlp.MOE

    @property
    def name(self) -> str:
        """Return a name composed of the layer's parts, joined by `_`.

        First dense, moe or mixer (no MLP); then each that applies: window, the choice of keys, nope (no rope), the
        block in place of attention (`alone` for none), with_BLOCK beside attention, lent or borrowed keys and values,
        wide.
        """
        first = "mixer" if self.mlp is Mlp.NONE else str(self.mlp)
        own = "" if self.attends else f"_{'alone' if self.mixer == NO_MIXER else self.mixer}"
        companion = f"_with_{self.beside}" if self.beside else ""
        chosen = f"_{self.keys}" if self.keys else ""
        name = first + ("_window" if self.window else "") + chosen + ("" if self.rope else "_nope") + own + companion
        return "_".join([name, *filter(None, [self.pairs]), *(["wide"] if self.wide else [])])


def misplaced(mixers: Sequence[Mixer], mlp_layers: Sequence[bool] | None, layers: int) -> list[str]:
    """Return the problem, as a list of one text, of the first layer with two blocks, or with NO_MIXER and no MLP.

    Empty if there is none. layers: their number. mlp_layers: per layer, whether it has an MLP; None: all.
    """
    everywhere = (True,) * layers
    for index in range(layers):
        own = [mixer.block for mixer in mixers if (mixer.layers or everywhere)[index]]
        if len(own) > 1:
            return [f"mixers: layer {index} has {' and '.join(own)}, need one at most"]
        if own == [NO_MIXER] and not (mlp_layers or everywhere)[index]:
            return [f"layer {index} has neither a mixer nor an MLP"]
    return []


class Streams(Strict):
    """A set of residual streams in place of one, joined by hyper-connections (DeepSeek-V4, arXiv:2512.24880).

    Each sublayer reads a weighed sum of the streams, is written into each, and they are mixed.
    """

    count: PositiveInt = Field(ge=2)
    iterations: Count = Field(default=0, description="that make a mixing matrix doubly stochastic")


class LayerInputs(Strict):
    """An embedding of each token for every layer, from a table of its own (Gemma 4).

    It gates a narrow projection of the stream at the layer's end.
    """

    size: PositiveInt = Field(description="hidden_size_per_layer_input: channels for each layer")
    vocab_size: PositiveInt = Field(description="vocab_size_per_layer_input: rows of the table")

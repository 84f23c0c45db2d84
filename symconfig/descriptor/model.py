"""The model descriptor: architecture as numbers, with the field names of Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from symconfig.descriptor.vision import Vision

ModelSchema = Literal["symconfig.model/1"]
PositiveInt = Annotated[int, Field(gt=0, lt=2**40)]
MAX_LAYERS = 10_000  # the deepest published model has 1,000 (DeepNet); a number far above it is a mistake
LayerCount = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    """Frozen, no unknown fields, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


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


_ORIGINAL = "original_max_position_embeddings"
# Fields that each kind of scaling needs, and those that it may have (transformers' modeling_rope_utils.py).
ROPE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": ((), ()),
    "dynamic": ((), (_ORIGINAL,)),
    "llama3": ((_ORIGINAL, "low_freq_factor", "high_freq_factor"), ()),
    "yarn": ((_ORIGINAL,), ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")),
    "longrope": ((), (_ORIGINAL, "short_factor", "long_factor")),  # tables that change no shape and no cost
}


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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        needed, optional = ROPE_FIELDS[self.rope_type]
        given = self.model_dump(exclude_none=True, exclude={"rope_type", "factor"})
        problems = [f"{name} is missing, rope_type {self.rope_type} needs it" for name in needed if name not in given]
        problems += [f"{n} has no meaning for rope_type {self.rope_type}" for n in given if n not in needed + optional]
        if problems:
            raise ValueError("; ".join(problems))
        return self


class Experts(Strict):
    """Mixture of experts: what replaces the dense MLP on the layers that `ModelDescriptor.layer_kinds` names."""

    num_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    shared_expert_intermediate_size: Count = Field(default=0, description="summed over shared experts; 0: none")
    shared_expert_gate: bool = False
    first_k_dense_replace: Count = Field(default=0, description="leading layers that keep the dense MLP")
    moe_layer_freq: PositiveInt = Field(default=1, description="every n-th layer after those is MoE")
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than num_experts {self.num_experts}"
            )
        if (self.n_group is None) != (self.topk_group is None):
            raise ValueError("n_group and topk_group go together")
        if self.n_group is not None and self.topk_group is not None and self.topk_group > self.n_group:
            raise ValueError(f"topk_group {self.topk_group} is more than n_group {self.n_group}")
        if self.n_group is not None and self.num_experts % self.n_group:
            raise ValueError(f"num_experts {self.num_experts} is not divisible by n_group {self.n_group}")
        return self


class LatentAttention(Strict):
    """Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values."""

    q_lora_rank: PositiveInt | None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


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


class Mixer(Strict):
    """A building block that mixes tokens in place of attention; the planner knows it by its file in `graph/blocks`."""

    block: str = Field(min_length=1, description="its name there")
    sizes: dict[str, PositiveInt] = Field(default_factory=dict, description="of the dims that are its own")
    layers: tuple[bool, ...] | None = Field(default=None, description="per layer: has it; absent: all layers")

    def __hash__(self) -> int:
        return hash((self.block, tuple(sorted(self.sizes.items())), self.layers))


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What a layer is made of: experts or an MLP, and what mixes tokens, within a sliding window or not."""

    mixer: str
    window: bool
    moe: bool

    @property
    def name(self) -> str:
        """dense or moe, then `_window`, then what stands in the place of attention."""
        own = "" if self.mixer in tuple(Attention) else f"_{self.mixer}"
        return ("moe" if self.moe else "dense") + ("_window" if self.window else "") + own


class ModelDescriptor(Strict):
    """One architecture. Optional fields have the value that most models share.

    `name`, `source` and `notes` are for people; everything else changes what is computed or rendered.
    """

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

    hidden_act: Literal["silu", "gelu", "gelu_tanh", "relu", "clamped_swiglu"] = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    lm_head_bias: bool = False

    norm: Norm = Norm.RMSNORM
    norm_eps: float = Field(default=1e-5, gt=0, description="rms_norm_eps or layer_norm_epsilon")
    norm_zero_centered: bool = Field(default=False, description="weight stored as w - 1 (Gemma)")
    norm_after_sublayer: bool = Field(default=False, description="a second norm after attention and MLP (Gemma 2, 3)")
    parallel_residual: bool = Field(default=False, description="attention and MLP read one input (GPT-NeoX)")

    position: Position = Position.ROPE
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    rope_local_base_freq: float | None = Field(default=None, description="rope base of sliding-window layers (Gemma 3)")
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1.0)

    attention: Attention = Attention.GQA
    qkv_bias: bool = False
    attention_out_bias: bool = False
    qk_norm: bool = Field(default=False, description="RMSNorm on each head's query and key (Qwen3, Gemma 3)")
    sliding_window: PositiveInt | None = None
    sliding_window_pattern: tuple[bool, ...] | None = Field(
        default=None, description="per layer: has the sliding window; absent: all layers when sliding_window is set"
    )
    attention_sinks: bool = Field(default=False, description="a learned logit per head in the softmax (gpt-oss)")
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    query_pre_attn_scalar: float | None = None
    scale_embeddings: bool = Field(default=False, description="embeddings times sqrt(hidden_size) (Gemma)")
    attention_dropout: Rate = 0.0
    hidden_dropout: Rate = 0.0
    latent: LatentAttention | None = None
    mixer: Mixer | None = Field(default=None, description="a building block in place of attention")
    experts: Experts | None = None
    num_nextn_predict_layers: Count = Field(
        default=0, le=100, description="multi-token-prediction layers (DeepSeek-V3)"
    )
    initializer_range: float = Field(default=0.02, gt=0)
    adapter: Adapter | None = None
    vision: Vision | None = Field(default=None, description="a tower in front that encodes images")
    notes: tuple[str, ...] = Field(
        default=(), description="for people: what of the original model is not described by the fields above"
    )

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
        if self.mixer and self.mixer.layers is not None and len(self.mixer.layers) != self.num_hidden_layers:
            problems.append(f"mixer.layers has {len(self.mixer.layers)} entries for {self.num_hidden_layers} layers")
        if self.experts and self.experts.first_k_dense_replace > self.num_hidden_layers:
            problems.append("experts.first_k_dense_replace is more than num_hidden_layers")
        if self.position is Position.ROPE and self.rotary_dim % 2:
            problems.append(f"partial_rotary_factor {self.partial_rotary_factor} turns an odd number of channels")
        if self.intermediate_size == 0 and any(not moe for moe in self.moe_layers):
            problems.append("intermediate_size is 0 but some layers have a dense MLP")
        if self.adapter is not None:
            foreign = [t for t in self.adapter.target_modules if not self.names_target(t)]
            if foreign:
                problems.append(f"adapter.target_modules {', '.join(foreign)} is no module of {self.model_type}")
        if self.vision is not None:
            problems += self.vision.against(self.hidden_size)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def names_target(self, target: AdapterTarget) -> bool:
        """Return whether modules of such models have a name. A fused layer is the framework's, so any model may."""
        return target in FUSED_TARGETS or (target in QWEN_TARGETS) == (self.model_type == "qwen")

    @cached_property
    def moe_layers(self) -> tuple[bool, ...]:
        """Per layer: is its MLP a mixture of experts?"""
        if self.experts is None:
            return (False,) * self.num_hidden_layers
        first, every = self.experts.first_k_dense_replace, self.experts.moe_layer_freq
        return tuple(
            i >= first and (i - first) % every == every - 1 if every > 1 else i >= first
            for i in range(self.num_hidden_layers)
        )

    @cached_property
    def sliding_layers(self) -> tuple[bool, ...]:
        """Per layer: does its attention have the sliding window?"""
        if self.sliding_window is None:
            return (False,) * self.num_hidden_layers
        return self.sliding_window_pattern or (True,) * self.num_hidden_layers

    @cached_property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """What every layer is made of, in order."""
        name, mixer = str(self.attention), self.mixer
        own = (mixer.layers or (True,) * self.num_hidden_layers) if mixer else (False,) * self.num_hidden_layers
        return tuple(
            LayerKind(mixer.block, False, moe) if mixer and mine else LayerKind(name, window, moe)
            for mine, window, moe in zip(own, self.sliding_layers, self.moe_layers, strict=True)
        )

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """Name of the kind of every layer, in order: dense, moe, dense_window, moe_window, dense_BLOCK, …"""
        return tuple(kind.name for kind in self.kind_of_layer)

    @property
    def encoder_kinds(self) -> tuple[str, ...]:
        """The kinds of the blocks before the embedding: those of the vision tower, where it is trained with images."""
        return self.vision.kinds if self.vision is not None else ()

    @model_serializer(mode="wrap")
    def _without_rare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what almost no model has: a block in the place of attention, a vision tower."""
        fields: dict[str, Any] = handler(self)
        for name in ("mixer", "vision"):
            if getattr(self, name) is None:
                fields.pop(name, None)
        return fields

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rope turns."""
        if self.latent is not None:
            return self.latent.qk_rope_head_dim
        return int(self.head_dim * self.partial_rotary_factor)

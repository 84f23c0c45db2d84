"""What a model's descriptor states: architecture as numbers, with the field names of Hugging Face `config.json`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from symconfig.descriptor.layers import Mixer
from symconfig.descriptor.reuse import LayerInputs, Loop, SharedBlock, Streams
from symconfig.descriptor.sections import (
    Activation,
    Adapter,
    Attention,
    Experts,
    Indexer,
    LatentAttention,
    Norm,
    Particular,
    Position,
    RopeScaling,
)
from symconfig.descriptor.strict import Count, LayerCount, PositiveInt, Rate, Sparse
from symconfig.descriptor.vision import Vision

ModelSchema = Literal["symconfig.model/1"]
Layers = tuple[bool, ...] | None  # one entry per layer


class ModelFields(Sparse):
    """What is stated of one architecture. Optional fields have the value that most models share.

    `name`, `source` and `notes` are for people; everything else changes what is computed or rendered.
    """

    rare: ClassVar[tuple[str, ...]] = (
        "mixers", "mlp_layers", "norm_bias", "norm_weight", "norm_before_sublayer", "shared_input_norm",
        "embedding_norm", "residual_multiplier", "logits_multiplier", "rope_layers", "qk_norm_of", "v_norm",
        "attention_gate", "v_head_dim", "chunked_attention", "indexer", "embedding_multiplier", "norm_after_residual",
        "final_norm", "inner_norm", "qk_norm_bias", "extra_positions", "particulars", "vision",
        "stream_scale", "mlp_token_shift", "streams", "laurel_rank",
        "mlp_sparsity", "hypersphere", "loop",
        "shared_block", "layer_inputs", "num_kv_shared_layers", "wide_intermediate_size",
        "first_input_norm", "head_projection", "norm_gate_rank", "num_labels",
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
    norm_after_residual: bool = Field(default=False, description="the stream is normed after each sum (GPT-1)")
    final_norm: bool = Field(default=True, description="a norm between the last layer and the head")
    inner_norm: bool = Field(default=False, description="a norm before each sublayer's last projection (BitNet)")
    parallel_residual: bool = Field(default=False, description="attention and MLP read one input (GPT-NeoX)")
    shared_input_norm: bool = Field(default=False, description="and both the same norm of it (Cohere, Phi)")
    first_input_norm: bool = Field(
        default=True, description="the first layer's attention reads a norm (not ModernBERT's)"
    )
    norm_gate_rank: PositiveInt | None = Field(
        default=None,
        description="norms before attention and before experts are gated by a low-rank MLP of this width (A.X K2)",
    )
    head_projection: bool = Field(
        default=False, description="a square linear layer, GELU and a norm stand before the head (ModernBERT)"
    )
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
    qk_norm_bias: bool = Field(default=False, description="that norm has a bias, too (Persimmon)")
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
    stream_scale: bool = Field(
        default=False, description="the stream has a learned scale of each channel where a sublayer joins it (Doge)"
    )
    mlp_token_shift: bool = Field(
        default=False, description="the MLP reads each token mixed with the one before, and a gate opens it (RWKV)"
    )
    hypersphere: bool = Field(
        default=False,
        description="the stream itself is normed, a sublayer draws it towards its result by a learned rate for each "
        "channel, and queries, gates, the MLP's halves and logits have learned scales (nGPT, arXiv:2410.01131)",
    )
    streams: Streams | None = Field(default=None, description="several residual streams (Gemma 3n, DeepSeek-V4)")
    laurel_rank: PositiveInt | None = Field(default=None, description="of a path beside attention (Gemma 3n)")
    mlp_sparsity: tuple[Rate, ...] | None = Field(
        default=None, description="per layer: the share of the MLP's gates that is cut off (Gemma 3n)"
    )
    loop: Loop | None = Field(default=None, description="layers that run several times with one set of weights")
    shared_block: SharedBlock | None = Field(default=None, description="attention and an MLP that many layers call")
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

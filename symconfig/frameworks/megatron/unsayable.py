"""Fields of a model for which Megatron-LM's GPTModel has one value, core_v0.12 to core_v0.19, and no option."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By field, dotted; each has its default there.
NEVER: Mapping[str, str] = MappingProxyType(
    {
        "mixers": "every layer of GPTModel has attention",
        "mlp_layers": "every layer of GPTModel has an MLP",
        "lm_head_bias": "its output layer has no bias",
        "norm_bias": "its LayerNorm has a bias",
        "norm_weight": "its norms have weights",
        "norm_before_sublayer": "attention and MLP always read a norm",
        "norm_after_sublayer": "it has no norms after attention and MLP",
        "parallel_residual": "attention and MLP always follow each other",
        "shared_input_norm": "attention and MLP have a norm each",
        "embedding_norm": "it has no norm behind the embedding",
        "residual_multiplier": "it does not scale what a sublayer adds",
        "logits_multiplier": "it does not scale logits",
        "embedding_multiplier": "it does not scale embeddings",
        "rope_local_base_freq": "all layers share one rope base",
        "rope_layers": "every layer has rope, or none",
        "qk_norm_of": "its norms of queries and keys have one weight vector for all heads",
        "v_norm": "it has no norm of values",
        "attention_gate": "attention has no gate",
        "v_head_dim": "values are as wide as keys",
        "chunked_attention": "its windows slide",
        "indexer": "attention is never sparse",
        "attn_logit_softcapping": "it does not cap attention logits",
        "final_logit_softcapping": "it does not cap logits",
        "experts.zero_experts": "every expert computes",
        "experts.latent_size": "experts read tokens as wide as they are",
        "experts.latent_bias": "experts read tokens as wide as they are",
    }
)

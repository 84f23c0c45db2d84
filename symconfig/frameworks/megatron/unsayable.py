"""Fields of a model for which Megatron-LM's GPTModel and HybridModel have one value, core_v0.12 to core_v0.19, and no
option."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By field, dotted; each has its default there.
NEVER: Mapping[str, str] = MappingProxyType(
    {
        "lm_head_bias": "its output layer has no bias",
        "num_labels": "its output layer gives logits",
        "norm_bias": "its LayerNorm has a bias",
        "norm_weight": "its norms have weights",
        "norm_before_sublayer": "attention and MLP always read a norm",
        "norm_after_sublayer": "it has no norms after attention and MLP",
        "final_norm": "it has a norm before the output layer",
        "extra_positions": "its table has a row for each position",
        "parallel_residual": "attention and MLP always follow each other",
        "shared_input_norm": "attention and MLP have a norm each",
        "embedding_norm": "it has no norm behind the embedding",
        "residual_multiplier": "it does not scale what a sublayer adds",
        "rope_local_base_freq": "all layers share one rope base",
        "v_norm": "it has no norm of values",
        "v_head_dim": "values are as wide as keys",
        "chunked_attention": "its windows slide",
        "attn_logit_softcapping": "it does not cap attention logits",
        "final_logit_softcapping": "it does not cap logits",
        "experts.zero_experts": "every expert computes",
        "experts.input_scaled": "a choice's weight scales what its expert gives",
        "experts.shortcut": "what experts give joins the stream in their own layer",
        "experts.norms_apart": "router and experts read one norm",
        "streams": "it has one residual stream",
        "layer_inputs": "tokens have one embedding, read by the first layer",
        "num_kv_shared_layers": "each layer's attention has keys and values of its own",
        "wide_intermediate_size": "all MLPs are as wide",
        "particulars": "its modules compute nothing besides",
    }
)

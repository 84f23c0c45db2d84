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
        "norm_after_residual": "its norms stand before attention and MLP",
        "final_norm": "it has a norm before the output layer",
        "inner_norm": "nothing stands between attention or activation and the projection behind it",
        "extra_positions": "its table has a row for each position",
        "parallel_residual": "attention and MLP always follow each other",
        "shared_input_norm": "attention and MLP have a norm each",
        "first_input_norm": "the first layer has the norms of all others",
        "head_projection": "nothing stands between the final norm and the output layer",
        "embedding_norm": "it has no norm behind the embedding",
        "residual_multiplier": "it does not scale what a sublayer adds",
        "rope_local_base_freq": "all layers share one rope base",
        "qk_norm_bias": "its norms of queries and keys have no bias of their own",
        "v_norm": "it has no norm of values",
        "v_head_dim": "values are as wide as keys",
        "chunked_attention": "its windows slide",
        "attn_logit_softcapping": "it does not cap attention logits",
        "final_logit_softcapping": "it does not cap logits",
        "experts.zero_experts": "every expert computes",
        "experts.input_scaled": "a choice's weight scales what its expert gives",
        "experts.shortcut": "what experts give joins the stream in their own layer",
        "experts.result_norm": "it has no norm of what experts give",
        "experts.result_bias": "it has no bias of what experts give together",
        "experts.norms_apart": "router and experts read one norm",
        "stream_scale": "the stream is added to as it is",
        "mlp_token_shift": "its MLP reads one token at a time",
        "streams": "it has one residual stream",
        "laurel_rank": "no path leads around attention but the residual stream",
        "mlp_sparsity": "its MLPs cut no gates off",
        "hypersphere": "its stream is never normed itself, and no matrix has a learned scale",
        "loop": "each layer runs once for a token",
        "shared_block": "every layer has weights of its own",
        "layer_inputs": "tokens have one embedding, read by the first layer",
        "num_kv_shared_layers": "each layer's attention has keys and values of its own",
        "wide_intermediate_size": "all MLPs are as wide",
        "norm_gate_rank": "its norms have no gates",
        "latent.queries_of_both": "queries come from the norm of the low-rank ones only",
        "latent.rope_key_norm": "the part of keys that rope turns has no norm",
        "particulars": "its modules compute nothing besides",
    }
)

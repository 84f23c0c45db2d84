"""DeepSeek's models with latent attention."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture, without
from symconfig.descriptor.architectures.llama import LLAMA

_DEEPSEEK_V2 = without(LLAMA, "head_dim", "attention_bias", "mlp_bias") | {
    "vocab_size": 102400,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "n_group": None,
    "topk_group": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "routed_scaling_factor": 1.0,
    "num_experts_per_tok": None,
    "moe_intermediate_size": 1407,
    "aux_loss_alpha": 0.0,
}
_DEEPSEEK_V3 = _DEEPSEEK_V2 | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "num_nextn_predict_layers": 1,
}
_MLA = {"attention": "mla"}

ARCHITECTURES: dict[str, Architecture] = {
    "deepseek_v2": Architecture(
        _DEEPSEEK_V2,
        {**_MLA, "experts.norm_topk_prob": False},
        only={
            "norm_topk_prob": (False,),
            "scoring_func": ("softmax",),
            "moe_layer_freq": (1,),
            "topk_method": ("greedy", "group_limited_greedy"),
        },
        ignored=("head_dim", "qk_head_dim"),
        same_as={"num_experts": "n_routed_experts"},
        groups_with="group_limited_greedy",
    ),
    "deepseek_v3": Architecture(
        _DEEPSEEK_V3,
        {**_MLA, "experts.scoring_func": "sigmoid", "experts.e_score_correction_bias": True},
        only={
            "scoring_func": ("sigmoid",),
            "moe_layer_freq": (1,),
            "topk_method": ("noaux_tc",),
            "rope_interleave": (True,),
        },
        ignored=("head_dim", "qk_head_dim"),
        same_as={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    ),
}

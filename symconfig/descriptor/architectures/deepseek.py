"""DeepSeek's models with latent attention."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture

MLA = {"attention": "mla"}
V3 = {**MLA, "experts.scoring_func": "sigmoid", "experts.e_score_correction_bias": True}
LATENT_IGNORED = ("head_dim", "qk_head_dim")

ARCHITECTURES: dict[str, Architecture] = {
    "deepseek_v2": Architecture(
        constants={**MLA, "experts.norm_topk_prob": False},
        names={"mlp_bias": ()},
        defaults={"aux_loss_alpha": 0.0},  # a key of the published files that transformers' class has not
        only={
            "norm_topk_prob": (False,),
            "scoring_func": ("softmax",),
            "moe_layer_freq": (1,),
            "topk_method": ("greedy", "group_limited_greedy"),
        },
        ignored=LATENT_IGNORED,
        same_as={"num_experts": "n_routed_experts"},
        groups_with="group_limited_greedy",
    ),
    "deepseek_v3": Architecture(
        constants=V3,
        defaults={"aux_loss_alpha": 0.0},
        only={
            "scoring_func": ("sigmoid",),
            "moe_layer_freq": (1,),
            "topk_method": ("noaux_tc",),
            "rope_interleave": (True,),
        },
        ignored=LATENT_IGNORED,
        same_as={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    ),
}

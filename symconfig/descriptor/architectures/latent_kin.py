"""Models with DeepSeek's latent attention: Kimi-K2, GLM-4.7-Flash, A.X K1, LongCat-Flash, and dense ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symconfig.descriptor.architectures.architecture import Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.deepseek import ARCHITECTURES as DEEPSEEK
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, MLA, V3
from symconfig.descriptor.architectures.expert_rules import experts_at, particulars
from symconfig.descriptor.architectures.structure_rules import scale

ROUTED_AS_V3 = {"scoring_func": ("sigmoid",), "moe_layer_freq": (1,), "topk_method": ("noaux_tc",)}


def _longcat(reader: Reading) -> None:
    """Read LongCat: each layer of the class is two.

    Attention and MLP come twice, with experts beside the first MLP that join behind the second.
    """
    if reader.values["q_lora_rank"] is None:
        return reader.problem("LongCat's queries are low-rank", "q_lora_rank", got="null", need="a whole number")
    reader.fields["num_hidden_layers"] *= 2


def lengthened(rank: str) -> Callable[[Values], float]:
    """Return what low-rank queries, or keys and values, are multiplied by."""
    return lambda values: (values["hidden_size"] / (values[rank] or 1)) ** 0.5


def _minicpm3(reader: Reading) -> None:
    """Read scales by depth and width; a value's width follows from the hidden size where it is not given."""
    values, fields = reader.values, reader.fields
    layers, hidden = fields["num_hidden_layers"], fields["hidden_size"]
    width = values["v_head_dim"]
    fields["latent.v_head_dim"] = hidden // fields["num_attention_heads"] if width is None else width
    depth, base = values["scale_depth"], values["dim_model_base"]
    if depth is not None:
        fields["residual_multiplier"] = depth / layers**0.5
    if base is not None:
        fields["logits_multiplier"] = base / hidden


def _youtu(reader: Reading) -> None:
    """Read the weights' first spread: as wide as the hidden size says, where the file does not say it."""
    given = reader.values["initializer_range"]
    reader.fields["initializer_range"] = 2 / (5 * reader.fields["hidden_size"]) ** 0.5 if given is None else given


ARCHITECTURES: dict[str, Architecture] = {
    # Kimi-K2's files name a class of their own, whose code is DeepSeek's (its deploy_guidance.md says so).
    "kimi_k2": replace(DEEPSEEK["deepseek_v3"], of_class="deepseek_v3"),
    "sarvam_mla": Architecture(
        constants=V3,
        only={**ROUTED_AS_V3, "rope_interleave": (True,)},
        ignored=(*LATENT_IGNORED, "q_head_dim"),
        same_as={
            "num_mtp_layers": "num_nextn_predict_layers",
            "num_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
        },
    ),
    "glm4_moe_lite": Architecture(
        constants={**V3, "experts.first_k_dense_replace": 1},
        defaults={"num_nextn_predict_layers": 0, "first_k_dense_replace": 1},
        only=ROUTED_AS_V3,
        ignored=LATENT_IGNORED,
    ),
    "axk1": Architecture(
        constants={**V3, "experts.result_norm": True},
        defaults={"first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
        only=ROUTED_AS_V3,
        ignored=LATENT_IGNORED,
    ),
    "longcat_flash": Architecture(
        constants={
            **MLA,
            "experts.norm_topk_prob": False,
            "experts.e_score_correction_bias": True,
            "experts.shortcut": True,
        },
        names={
            "num_layers": ("num_hidden_layers",),
            "ffn_hidden_size": ("intermediate_size", "experts.shared_expert_intermediate_size"),
            "expert_ffn_hidden_size": ("experts.moe_intermediate_size",),
            "moe_topk": ("experts.num_experts_per_tok",),
            "zero_expert_num": ("experts.zero_experts",),
        },
        only={
            "attention_method": ("MLA",),
            "zero_expert_type": ("identity",),
            "router_bias": (False,),
            "mla_scale_q_lora": (True,),
            "mla_scale_kv_lora": (True,),
        },
        ignored=LATENT_IGNORED,
        rules=(
            Rule(_longcat),
            experts_at(lambda values, layers: [index % 2 == 0 for index in range(layers)]),
            particulars(
                {}, {"mla_scale_q_lora": lengthened("q_lora_rank"), "mla_scale_kv_lora": lengthened("kv_lora_rank")}
            ),
        ),
    ),
    "minicpm3": Architecture(
        constants=MLA,
        ignored=LATENT_IGNORED,
        rules=(
            scale("embedding_multiplier", "scale_emb"),
            Rule(_minicpm3, ("scale_depth", "dim_model_base", "v_head_dim")),
        ),
    ),
    "youtu": Architecture(
        constants=MLA,
        ignored=(*LATENT_IGNORED, "embedding_initializer_range"),
        rules=(Rule(_youtu, ("initializer_range",)),),
    ),
}

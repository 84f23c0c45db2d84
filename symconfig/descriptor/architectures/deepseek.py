"""DeepSeek's latent attention and router, and what has one or both: Kimi-K2, A.X K1, LongCat, GLM-4.5, dots.llm1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Derived, Reading, Rule, Values
from symconfig.descriptor.architectures.rules import NO_DENSE, SIGMOID, experts_at, particulars, scale, short
from symconfig.descriptor.model import ModelDescriptor

MLA = {"attention": "mla"}
V3 = {**MLA, "experts.scoring_func": "sigmoid", "experts.e_score_correction_bias": True}
LATENT_IGNORED = ("head_dim", "qk_head_dim")


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


def _minicpm(reader: Reading) -> None:
    """Read scales by depth and width."""
    values, fields = reader.values, reader.fields
    depth, base = values["scale_depth"], values["dim_model_base"]
    if depth is not None:
        fields["residual_multiplier"] = short(depth / fields["num_hidden_layers"] ** 0.5)
    if base is not None:
        fields["logits_multiplier"] = base / fields["hidden_size"]


def _minicpm_keys(model: ModelDescriptor) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if model.residual_multiplier is not None:
        keys["scale_depth"] = short(model.residual_multiplier * model.num_hidden_layers**0.5)
    if model.logits_multiplier is not None:
        keys["dim_model_base"] = round(model.logits_multiplier * model.hidden_size)
    return keys


def _minicpm3(reader: Reading) -> None:
    """Read the width of a value, which follows from the hidden size where it is not given."""
    width, fields = reader.values["v_head_dim"], reader.fields
    fields["latent.v_head_dim"] = fields["hidden_size"] // fields["num_attention_heads"] if width is None else width


def _minicpm3_keys(model: ModelDescriptor) -> dict[str, Any]:
    return {} if model.latent is None else {"v_head_dim": model.latent.v_head_dim}


# Its factors: of the embedding, by depth of what a sublayer adds, by width of logits.
MINICPM = (scale("embedding_multiplier", "scale_emb"), Rule(_minicpm, ("scale_depth", "dim_model_base"), _minicpm_keys))


# What the files of Ling say beside what their classes read. Angles follow from partial_rotary_factor, and windows are
# off.
BAILING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("use_bias", "norm_head", "norm_softmax", "use_sliding_window"), (False,)),
    **dict.fromkeys(("embedding_dropout", "output_dropout"), (0.0,)),
    **dict.fromkeys(("use_rmsnorm", "moe_router_enable_routed_scaling", "moe_router_enable_shared_expert"), (True,)),
}
_SHARED = "moe_shared_expert_intermediate_size"
BAILING_IGNORED = (
    "rotary_dim", "max_window_layers", "mtp_loss_scaling_factor", "router_dtype", "sliding_window", _SHARED,
)  # fmt: skip


def _shared_as_routed(reader: Reading) -> None:
    """Check the width of shared experts, which the code beside the weights does not read."""
    given, routed = reader.data.get(_SHARED), reader.values["moe_intermediate_size"]
    if given not in (None, routed):
        reader.problem("shared experts are as wide as the others", _SHARED, got=given, need=str(routed))


shared_as_routed = Rule(_shared_as_routed)


def _youtu(reader: Reading) -> None:
    """Read the weights' first spread: as wide as the hidden size says, where the file does not say it."""
    given = reader.values["initializer_range"]
    reader.fields["initializer_range"] = 2 / (5 * reader.fields["hidden_size"]) ** 0.5 if given is None else given


def _choices(reader: Reading) -> None:
    """Read num_experts_per_tok, which the class leaves open: as DeepSeek-V2 has it, where the file does, too."""
    if reader.values["num_experts_per_tok"] is None:
        reader.note("num_experts_per_tok is null, with which no token has experts: 6 is assumed, as of DeepSeek-V2")
    reader.fields["experts.num_experts_per_tok"] = reader.values["num_experts_per_tok"] or 6


def _choices_keys(model: ModelDescriptor) -> dict[str, Any]:
    return {} if model.experts is None else {"num_experts_per_tok": model.experts.num_experts_per_tok}


QKV_BIAS = {"attention_bias": ("qkv_bias",)}


def _from_max_window_layers(values: Values, layers: int) -> list[str]:
    return [SLIDING if index >= values["max_window_layers"] else FULL for index in range(layers)]


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
        rules=(Rule(_choices, ("num_experts_per_tok",), _choices_keys),),
    ),
    "deepseek_v3": Architecture(
        constants=V3,
        defaults={"aux_loss_alpha": 0.0},
        only={**ROUTED_AS_V3, "rope_interleave": (True,)},
        ignored=LATENT_IGNORED,
        same_as={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    ),
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
            Rule(_longcat, (), lambda model: {"num_layers": model.num_hidden_layers // 2}),
            experts_at(lambda values, layers: [index % 2 == 0 for index in range(layers)]),
            particulars(
                {}, {"mla_scale_q_lora": lengthened("q_lora_rank"), "mla_scale_kv_lora": lengthened("kv_lora_rank")}
            ),
        ),
    ),
    "minicpm3": Architecture(
        constants=MLA,
        ignored=LATENT_IGNORED,
        rules=(*MINICPM, Rule(_minicpm3, ("v_head_dim",), _minicpm3_keys)),
    ),
    "youtu": Architecture(
        constants=MLA,
        ignored=(*LATENT_IGNORED, "embedding_initializer_range"),
        rules=(Rule(_youtu, ("initializer_range",), lambda model: {"initializer_range": model.initializer_range}),),
    ),
    "glm4_moe": Architecture(
        constants=SIGMOID,
        names={**QKV_BIAS, "use_qk_norm": ("qk_norm",)},
        only=ROUTED_AS_V3,
        same_as={"num_mtp_layers": "num_nextn_predict_layers"},
    ),
    "sarvam_moe": Architecture(
        constants=SIGMOID,
        names={**QKV_BIAS, "use_qk_norm": ("qk_norm",)},
        only=ROUTED_AS_V3,
        same_as={"num_mtp_layers": "num_nextn_predict_layers", "num_shared_experts": "n_shared_experts"},
    ),
    "solar_open": Architecture(
        constants={**SIGMOID, **NO_DENSE},
        names=QKV_BIAS,
        defaults={"partial_rotary_factor": 1.0},
        only={**ROUTED_AS_V3, "first_k_dense_replace": (0,), "use_qk_norm": (False,)},
    ),
    "dots1": Architecture(
        constants={**SIGMOID, "qk_norm": True},
        # Its published file gives the name of the choice where others have that of the scores.
        only={**ROUTED_AS_V3, "scoring_func": ("sigmoid", "noaux_tc")},
        layers=_from_max_window_layers,
    ),
}
ARCHITECTURES["bailing_moe"] = replace(
    ARCHITECTURES["sarvam_moe"],
    constants={},
    names={
        **ARCHITECTURES["sarvam_moe"].names,
        "score_function": ("experts.scoring_func",),
        "moe_router_enable_expert_bias": ("experts.e_score_correction_bias",),
    },
    # What its first release had, and its files do not say; those of Ling 2.0 say what they have instead.
    defaults={
        "score_function": "softmax",
        "moe_router_enable_expert_bias": False,
        "use_qk_norm": False,
        "head_dim": Derived.HEAD_DIM,
        "first_k_dense_replace": 0,
        "n_shared_experts": 0,
        "n_group": None,
        "topk_group": None,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
    },
    only=BAILING,
    ignored=BAILING_IGNORED,
    rules=(shared_as_routed,),
    of_class="sarvam_moe",
)
# Kimi-K2's files name a class of their own, whose code is DeepSeek's (its deploy_guidance.md says so).
ARCHITECTURES["kimi_k2"] = replace(ARCHITECTURES["deepseek_v3"], of_class="deepseek_v3")

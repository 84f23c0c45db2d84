"""How Transformers' classes compute what most of them compute as Llama's does (release 5.24, models/*/modeling_*.py).

Each row names a kernel and the families, by model_type, whose class has it. What a kernel keeps is the graph's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from symconfig.descriptor.architectures.keys import SAME_NETWORK, recorded, words
from symconfig.graph.implementation import (
    Angles,
    Attention,
    Implementation,
    Kernel,
    NormKernel,
    RotationKernel,
    Router,
    Routing,
)

_NORMS: Mapping[str, NormKernel] = {
    kind: kernel
    for kernel, kinds in {
        NormKernel.EAGER_WIDE: "afmoe deepseek_v4 flex_olmo flint gpt_oss olmo2 olmo3",
        NormKernel.EAGER_COPYING: """gemma gemma2 gemma3_text helium lara_mini nemotron_h
            qwen3_5_moe_text qwen3_5_text qwen3_next vaultgemma""",
        NormKernel.EAGER_POWER: "gemma4_text gemma4_unified_text",
        NormKernel.LAYER_WIDE: "olmo",
        NormKernel.LAYER_COPYING: "nemotron",
        NormKernel.LAYER_IN_TURN: "cohere cohere2 cohere2_moe",
    }.items()
    for kind in words(kinds)
}
_CHAINED_GELU = words("codegen gpt-sw3 gpt2 gptj phi")  # activations.py:NewGELUActivation
_JOINED_HEADS = words(
    """bloom codegen falcon gpt-sw3 gpt2 gpt_bigcode gpt_neox mpt phi3
    phi4_multimodal"""
)
_LATENT = words(  # keys' and values' two products, each of parts together
    """deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa
    kimi_linear longcat_flash minicpm3 sarvam_mla youtu"""
)
_JOINED_GATES = words("glm glm4 phi3 phi4_multimodal")
# Tables of angles that a layer makes for itself, and which of them it leaves in fp32.
_ANGLES = {
    **dict.fromkeys(words("gptj codegen"), Angles.APART),
    **dict.fromkeys(words("ernie4_5 ernie4_5_moe glm glm4 helium"), Angles.BY_LAYER),
}
_WIDE_ANGLES = words("codegen ernie4_5 ernie4_5_moe")
# Queries that are joined from a turned and another part, head by head, give a result that is copied by token.
_JOINED_PARTS = words(
    """deepseek_v2 deepseek_v3 deepseek_v32 glm glm4 glm4_moe glm4_moe_lite
    glm_moe_dsa gpt_neox longcat_flash minicpm3 minimax_m2 nemotron phi phi3
    phi4_multimodal qwen3_5_moe_text qwen3_5_text qwen3_next sarvam_mla sarvam_moe
    stablelm youtu"""
)
# Plain attention that leaves the softmax in the scores' precision; that multiplies in fp32.
_NARROW_SOFTMAX = words("gpt_oss")
_WIDE_PRODUCTS = words("flint")

_ONE_HEAD = words("falcon")  # one key is broadcast, which torch's fused kernels refuse

# From where on a router is in fp32, and whether the weights of its choices are.
_ROUTERS = {
    **dict.fromkeys(words("aria_text deepseek_v4 gpt_oss lfm2_moe"), Router.NARROW),
    **dict.fromkeys(
        words(
            """deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe
            exaone_moe flint glm4_moe glm4_moe_lite glm_moe_dsa hunyuan_v1_moe hy_v3 kimi_linear kolibri1
            lara_mini longcat_flash nemotron_h sarvam_mla sarvam_moe solar_open"""
        ),
        Router.WIDE,
    ),
}
_WIDE_WEIGHTS = words(
    """afmoe deepseek_v2 deepseek_v3 deepseek_v32 dots1 exaone_moe flint
    gemma4_text glm4_moe glm4_moe_lite glm_moe_dsa hunyuan_v1_moe hy_v3 kimi_linear kolibri1 longcat_flash
    minimax_m2 mixtral nemotron_h sarvam_mla sarvam_moe solar_open"""
)

_EVERY_TOKEN = words("llama4_text")  # Llama4TextExperts, which no grouped product replaces


def written(how: Implementation, kind: str) -> Implementation:
    """Return the implementation with the kernels that a family's Transformers class has instead of Llama's: of norm,
    activation, rotation, linear layers, experts' routing, and attention (`_attention`).

    kind: the model_type; one that builds another type's network counts as that. Only eager kernels change; those that
    are fused, compiled or replaced by other libraries stay.
    """
    kernels, kind = how, SAME_NETWORK.get(kind, kind)
    if how.norm is NormKernel.EAGER:
        kernels = replace(kernels, norm=_NORMS.get(kind, how.norm))
    if not how.fused_activation and kind in _CHAINED_GELU:
        kernels = replace(kernels, gelu_in_steps=True)
    if how.rotation.kernel is RotationKernel.EAGER and how.rotation.angles is Angles.ONCE:
        angles = _ANGLES.get(kind, Angles.ONCE)
        kernels = replace(kernels, rotation=replace(how.rotation, angles=angles, wide_angles=kind in _WIDE_ANGLES))
    if not how.linear.joined:
        views = how.linear.views or kind in _JOINED_HEADS or kind in _LATENT
        joined = {"qkv_proj": _JOINED_HEADS, "gate_up_proj": _JOINED_GATES}
        products = frozenset(name for name, kinds in joined.items() if kind in kinds)
        kernels = replace(kernels, linear=replace(how.linear, products=products, views=views))
    if how.experts.routing is Routing.INDEXED:
        experts = replace(
            how.experts,
            router=_ROUTERS.get(kind, how.experts.router),
            wide_weights=kind in _WIDE_WEIGHTS,
            every_token=kind in _EVERY_TOKEN,
        )
        kernels = replace(kernels, experts=experts)
    return replace(kernels, attention=_attention(how.attention, kind))


def _attention(how: Attention, kind: str) -> Attention:
    """Return the attention of a family's class; kernels other than flash and plain attention stay as they are.

    Flash stays flash where the class has torch's fused kernel. Other classes, and all where a job asks for plain
    attention, run plain attention with copied shared key and value heads; some classes keep its softmax narrow.
    """
    if how.kernel not in (Kernel.FLASH, Kernel.IN_TURN):
        return how
    if how.kernel is Kernel.FLASH and not recorded(kind, "plain_attention"):
        copies = how.copies_result or kind in _JOINED_PARTS
        return replace(how, copies_result=copies, one_head_apart=kind in _ONE_HEAD)
    kernel = Kernel.NARROW if kind in _NARROW_SOFTMAX else Kernel.IN_TURN
    return replace(how, kernel=kernel, copies_shared_heads=True, wide_products=kind in _WIDE_PRODUCTS)

"""Mixture of experts -> Megatron-LM options (router semantics: megatron/core/transformer/moe/moe_utils.py)."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts
from symconfig.frameworks.megatron.hybrid import hybrid
from symconfig.plans.plan import Candidate
from symconfig.render.megatron_args import Arguments, pattern
from symconfig.render.megatron_extras import dispatcher_args

# Activations that the experts' grouped kernels have, each with whether a gate goes with it (moe/experts.py).
ACTIVATIONS = frozenset((("silu", True), ("clamped_swiglu", True), ("gelu_sigmoid", True), ("relu2", False)))
GROUPED_FP16_SINCE = "core_v0.16.1"  # before, the grouped kernels are for bf16 only
MANY_EXPERTS = 32  # TransformerConfig warns of scores of more in half precision
BIAS_UPDATE_RATE = 0.001  # DeepSeek-V3, arXiv:2412.19437, section 4.2; also Megatron's default


def moe_args(out: Arguments, model: ModelDescriptor, best: Candidate, grouped_gemm: bool, engine: bool = True) -> None:
    """Put the experts, their router and their dispatcher into MOE_ARGS. `grouped_gemm`: the GPU has the kernels;
    `engine`: it runs Transformer Engine, which chooses experts in one."""
    experts = model.experts
    if experts is None:
        return
    out.group = "MOE_ARGS"
    out.put("--num-experts", experts.num_experts)
    out.put("--moe-ffn-hidden-size", experts.moe_intermediate_size)
    if not all(model.moe_layers) and not hybrid(model):
        out.put("--moe-layer-freq", pattern(model.moe_layers))
    if experts.shared_expert_intermediate_size:
        out.put("--moe-shared-expert-intermediate-size", experts.shared_expert_intermediate_size)
        if experts.shared_expert_gate and out.needs(
            "experts.shared_expert_gate", "--moe-shared-expert-gate", "its shared expert has no gate"
        ):
            out.put("--moe-shared-expert-gate")
    if experts.latent_size is not None and out.needs(
        "experts.latent_size", "--moe-latent-size", "experts read tokens as wide as they are", experts.latent_size
    ):
        out.put("--moe-latent-size", experts.latent_size)
    _router(out, experts)
    _balance(out, experts)
    dispatcher_args(out, best.options)
    overlapped = "--overlap-moe-expert-parallel-comm"
    out.put(overlapped, best.options.overlap.moe_a2a and out.known(overlapped))
    of_fp16 = best.options.precision == "fp16"
    out.put("--moe-grouped-gemm", grouped_gemm and (not of_fp16 or out.at_least(GROUPED_FP16_SINCE)))
    out.put("--moe-permute-fusion")
    out.put("--moe-router-fusion", engine and out.known("--moe-router-fusion"))
    if (model.hidden_act, model.gated_mlp) not in ACTIVATIONS:
        out.refuse("hidden_act", "its grouped experts have no such activation", model.hidden_act)


def _router(out: Arguments, experts: Experts) -> None:
    top_k = experts.num_experts_per_tok
    out.put("--moe-router-topk", top_k)
    out.put("--moe-router-score-function", experts.scoring_func)
    if experts.scoring_func == "sigmoid":
        # Megatron divides the chosen scores by their sum whenever there is more than one.
        if experts.norm_topk_prob != (top_k > 1):
            out.refuse(
                "experts.norm_topk_prob",
                "it renormalises sigmoid scores of several chosen experts, and never that of one",
                experts.norm_topk_prob,
            )
    elif not experts.norm_topk_prob and not experts.softmax_after_topk:
        out.put("--moe-router-pre-softmax")
    elif top_k == 1:
        out.refuse(
            "experts.norm_topk_prob", "a softmax over one chosen expert has no gradient, and it refuses that", True
        )
    # else: softmax over the chosen logits, which equals a softmax over all, chosen and renormalised.
    many = experts.num_experts >= MANY_EXPERTS and out.known("--moe-router-dtype")
    if many or experts.scoring_func == "sigmoid":  # as transformers' DeepSeek-V3 computes them
        out.put("--moe-router-dtype", "fp32")
    if experts.n_group is not None and experts.topk_group is not None and experts.n_group > 1:
        _groups(out, experts, experts.n_group, experts.topk_group)
    if experts.routed_scaling_factor != 1.0:
        out.put("--moe-router-topk-scaling-factor", experts.routed_scaling_factor)
    if experts.e_score_correction_bias:
        if experts.scoring_func != "sigmoid":
            out.refuse(
                "experts.e_score_correction_bias", "a bias of the choice needs sigmoid scores", experts.scoring_func
            )
        out.put("--moe-router-enable-expert-bias")
        out.put("--moe-router-bias-update-rate", BIAS_UPDATE_RATE)


def _groups(out: Arguments, experts: Experts, n_group: int, topk_group: int) -> None:
    """Add the group-limited choice. Megatron scores a group by the sum of its best topk / topk_group experts;
    DeepSeek-V3 (sigmoid) by its best two, DeepSeek-V2 (softmax) by its best one.
    """
    best = 2 if experts.scoring_func == "sigmoid" else 1
    scored = experts.num_experts_per_tok // topk_group
    if scored != best:
        out.refuse(
            "experts.topk_group",
            f"it would score a group by its best {scored} experts, the model by its best {best}",
            topk_group,
        )
    out.put("--moe-router-num-groups", n_group)
    out.put("--moe-router-group-topk", topk_group)


def _balance(out: Arguments, experts: Experts) -> None:
    if not experts.router_aux_loss_coef:
        out.put("--moe-router-load-balancing-type", "none")
        return
    # Beside the bias, DeepSeek-V3 balances within each sequence only.
    kind = "seq_aux_loss" if experts.e_score_correction_bias else "aux_loss"
    out.put("--moe-router-load-balancing-type", kind)
    out.put("--moe-aux-loss-coeff", experts.router_aux_loss_coef)

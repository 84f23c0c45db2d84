"""What a plan switches on beside its degrees -> Megatron-LM options, in the words of each release.

What a release lacks is refused by the table of constraints (`frameworks.megatron.option_constraints`). Read in
Megatron-LM's `arguments.py`, `transformer_config.py` and `transformer/moe/token_dispatcher.py` of core_v0.12.1 to
core_v0.19.0.
"""

from __future__ import annotations

from symconfig.frameworks.megatron.behaviour import Graphed
from symconfig.frameworks.megatron.releases import GRAPHED_MODULES_SINCE
from symconfig.plans.plan import Options, Plan
from symconfig.render.megatron_args import Arguments

# Garbage collection in the same step on every rank: 238 of the 328 Megatron recipes of model_zoo/recipes have it.
COLLECTED_EVERY = 100
# Steps before graphs are captured: --cuda-graph-warmup-steps, its default since core_v0.12.1.
WARM_UP_STEPS = 3
ROUTER = ("moe_router", "moe_preprocess")
# Modules of a layer that graphs replay (`plans.plan.Options.cuda_graphs`).
GRAPHED_MODULES: dict[Graphed, tuple[str, ...]] = {
    "router": ROUTER,
    "outside experts": ("attn", *ROUTER),
    "all": ("attn", "mlp"),
}
WHOLE_LAYER = "full"  # of --cuda-graph-scope before modules had names


def switched_args(out: Arguments, plan: Plan) -> None:
    """Put garbage collection, the loss's kernel and CUDA graphs into the current group."""
    options = plan.best.options
    interval = plan.training.manual_gc_interval
    if interval or (interval is None and plan.best.parallel.world_size > 1):
        out.put("--manual-gc")
        out.put("--manual-gc-interval", interval or COLLECTED_EVERY)
    if options.fused_loss:
        out.put("--cross-entropy-loss-fusion")
        out.put("--cross-entropy-fusion-impl", "te")
    if options.cuda_graphs != "none":
        if out.known("--cuda-graph-impl"):
            out.put("--cuda-graph-impl", "transformer_engine")
        else:
            out.put("--external-cuda-graph")
        modules = GRAPHED_MODULES[options.cuda_graphs] if out.at_least(GRAPHED_MODULES_SINCE) else (WHOLE_LAYER,)
        out.put("--cuda-graph-modules" if out.known("--cuda-graph-modules") else "--cuda-graph-scope", *modules)
        out.put("--cuda-graph-warmup-steps", WARM_UP_STEPS)
        out.put("--te-rng-tracker")


# core_v0.13 stops without it, later ones set it and warn


def gathered_args(out: Arguments, options: Options) -> None:
    """Put the gather of weights in 8 bits into the current group."""
    if not options.fp8_param_gather:
        return
    out.put("--fp8-param-gather")
    # Weights in mxfp8 have two copies, of other layouts: they are gathered through the gradients' buffer, but by
    # Megatron-FSDP, which has a way of its own (distributed_data_parallel.py, mcore_fsdp_adapter.py).
    out.put("--reuse-grad-buf-for-mxfp8-param-ag", options.precision == "mxfp8" and options.zero_stage == 1)


def dispatcher_args(out: Arguments, options: Options) -> None:
    """Put the experts' dispatcher into the current group."""
    dispatcher = options.moe_dispatcher or "alltoall"
    out.put("--moe-token-dispatcher-type", dispatcher)
    if dispatcher != "flex":
        return
    if out.known("--moe-flex-dispatcher-backend"):
        out.put("--moe-flex-dispatcher-backend", options.moe_flex_backend or "deepep")
    else:
        out.put("--moe-enable-deepep")
    # Both take the router's probabilities in fp32 only: others are widened, and every layer of every microbatch warns
    # (token_dispatcher.py, dispatch).
    if ("--moe-router-dtype", "fp32") not in out.filled[out.group]:
        out.put("--moe-router-dtype", "fp32")

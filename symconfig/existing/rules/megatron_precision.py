"""Number formats of weights, gradients and optimizer states that Megatron-LM does not take together."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import fails
from symconfig.existing.rules.megatron_switches import ZERO
from symconfig.existing.rules.refusal import Reason, absent, both, equal, on, other_than, present, refuses, together
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.option_constraints import GATHER_FORMAT

PRECISE = "use_precision_aware_optimizer"
STATES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
BF16_LAYERS = "first_last_layers_bf16"
FP8_GATHER, FP4_GATHER, REUSED = "fp8_param_gather", "fp4_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"

MEGATRON: Rules[MegatronFacts] = Rules()


def _half(facts: MegatronFacts) -> bool:
    return facts.on("bf16") or facts.on("fp16")


MEGATRON.rule(
    "half-precision-options",
    "error",
    "An option of half precision in another precision",
    "validate_args: the loss in fp16 goes with --fp16 only, residuals in fp32 with --fp16 or --bf16.",
    "--fp16-lm-cross-entropy",
)(
    together(
        refuses("fp16_lm_cross_entropy", Reason("fp16", absent("fp16"))),
        refuses("fp32_residual_connection", Reason("bf16", lambda facts: not _half(facts))),
    )
)


@MEGATRON.rule(
    "optimizer-types-refused",
    "error",
    "Optimizer states in another type without the precision-aware optimizer",
    "OptimizerConfig asserts fp32 for gradients, weights and both moments without --use-precision-aware-optimizer "
    "(core/optimizer/optimizer_config.py).",
    "--exp-avg-dtype bf16",
)
def _states(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(PRECISE):
        return
    for dest in STATES:
        if (kind := facts.text(dest)) not in (None, "fp32"):
            yield facts.problem(
                "needs the precision-aware optimizer", dest, got=kind, need="fp32, or --use-precision-aware-optimizer"
            )


MEGATRON.rule(
    "gradient-types-contradict",
    "error",
    "Gradients are added up in fp32 and held in another type",
    "validate_args: with --bf16 --accumulate-allreduce-grads-in-fp32 asks for --main-grads-dtype fp32.",
    "--use-precision-aware-optimizer --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
)(
    refuses(
        "accumulate_allreduce_grads_in_fp32",
        Reason(
            "main_grads_dtype",
            lambda facts: facts.on("bf16") and facts.text("main_grads_dtype") not in (None, "fp32"),
            "fp32",
        ),
    )
)

MEGATRON.rule(
    "precision-aware-optimizer-refused",
    "error",
    "The precision-aware optimizer is a sharded Adam",
    "OptimizerConfig asserts --optimizer adam and the distributed optimizer (core/optimizer/optimizer_config.py).",
    "--use-precision-aware-optimizer --optimizer sgd",
)(
    refuses(
        PRECISE,
        Reason("optimizer", other_than("optimizer", "adam"), "adam"),
        Reason(ZERO, lambda facts: not (facts.on(ZERO) or facts.fsdp)),
    )
)

# What plans can have of it is GATHER_OFFLOAD in the table of constraints.
MEGATRON.rule(
    "offloaded-optimizer-of-quantised-weights",
    "error",
    "An offloaded optimizer does not write these FP8 weights",
    "validate_args: with --fp8-param-gather --optimizer-cpu-offload asks for delayed scaling.",
    "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather --use-precision-aware-optimizer "
    "--optimizer-cpu-offload",
    since="core_v0.14.0",
)(
    refuses(
        "optimizer_cpu_offload",
        Reason("fp8_recipe", both(on(FP8_GATHER), other_than("fp8_recipe", "delayed")), "delayed"),
    )
)


def _of_stage(facts: MegatronFacts) -> int:
    """Return the layers of a pipeline stage, as TransformerConfig counts them."""
    return facts.number("num_layers") // facts.pp


def _layers(dest: str) -> Reason:
    return Reason(
        dest,
        lambda facts: not 0 <= facts.number(dest) <= _of_stage(facts),
        "no more than the layers of a pipeline stage",
    )


MEGATRON.rule(
    "bf16-layers-refused",
    "error",
    "The first and last layers cannot stay in bf16 here",
    "TransformerConfig refuses them under delayed scaling, whose scales span the model, and more of them than a "
    "pipeline stage has layers (transformer_config.py, __post_init__).",
    "--fp8-format hybrid --first-last-layers-bf16",
    since="core_v0.12.1",
)(
    refuses(
        BF16_LAYERS,
        Reason("fp8_recipe", equal("fp8_recipe", "delayed"), "another recipe"),
        _layers("num_layers_at_start_in_bf16"),
        _layers("num_layers_at_end_in_bf16"),
        where=lambda facts: facts.on(BF16_LAYERS) and facts.value("fp8") is not None,
    )
)

MEGATRON.rule(
    "gathered-without-format",
    "error",
    "Quantised weights are to be gathered, and nothing quantises them",
    "TransformerConfig asks for --fp8-format beside --fp8-param-gather, and for --fp4-format beside "
    "--fp4-param-gather; the reuse of the gradient buffer asks for --fp8-param-gather "
    "(distributed_data_parallel_config.py).",
    "--fp8-param-gather",
    since="core_v0.12.1",
)(
    together(
        refuses(FP8_GATHER, Reason("fp8", lambda facts: fails(GATHER_FORMAT, facts))),
        refuses(FP4_GATHER, Reason("fp4", absent("fp4"))),
        refuses(
            REUSED, Reason(FP8_GATHER, absent(FP8_GATHER)), where=lambda facts: facts.on(REUSED) and not facts.fsdp
        ),
    )
)

MEGATRON.rule(
    "quantiser-not-named",
    "error",
    "A recipe of one's own without its quantiser",
    "TransformerConfig asks for the Python path that makes it (transformer_config.py, __post_init__).",
    "--fp8-format hybrid --fp8-recipe custom",
    since="core_v0.16.1",
)(
    together(
        *(
            refuses(
                f"{name}_recipe",
                Reason(f"{name}_quantizer_factory", absent(f"{name}_quantizer_factory")),
                where=both(present(name), equal(f"{name}_recipe", "custom")),
            )
            for name in ("fp8", "fp4")
        )
    )
)

MEGATRON.rule(
    "quantised-parts-without-format",
    "error",
    "A part is to be quantised, and nothing else is",
    "TransformerConfig asks for a quantised format beside --moe-router-padding-for-quantization, and for FP8 in MXFP8 "
    "blocks beside --fp8-output-proj (transformer_config.py, __post_init__).",
    "--fp8-output-proj",
    since="core_v0.15.0",
)(
    together(
        refuses(
            "fp8_output_proj",
            Reason("fp8", absent("fp8")),
            Reason("fp8_recipe", both(present("fp8"), other_than("fp8_recipe", "mxfp8")), "mxfp8"),
        ),
        refuses(
            "moe_router_padding_for_quantization",
            Reason("fp8", lambda facts: not facts.low_precision, "it, or --fp4-format"),
        ),
    )
)

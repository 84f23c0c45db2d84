"""Mixture of experts: their grid, their sizes and their kernels."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import fails
from symconfig.existing.rules.megatron_grid import EP, ETP, TP
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron import constraints as table

GROUPED = "moe_grouped_gemm"
BIASES = "add_bias_linear"
SHARED = "moe_shared_expert_intermediate_size"
OF_EXPERTS = (
    GROUPED,
    "moe_ffn_hidden_size",
    SHARED,
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_enable_expert_bias",
    "moe_permute_fusion",
    "moe_shared_expert_overlap",
    "moe_layer_recompute",
    "moe_expert_capacity_factor",
)
MANY_EXPERTS = 8  # with as many small matrices a step is mostly launches of kernels
KERNELS = "--disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01 "
EIGHT = KERNELS + "--num-experts 8 "

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "ep-without-experts",
    "error",
    "Expert parallelism without experts",
    "validate_args and TransformerConfig refuse it.",
    "--expert-model-parallel-size 8",
)
def _no_experts(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts and facts.ep > 1:
        yield facts.problem("without experts", EP, got=facts.ep, need="--num-experts, or 1")


@MEGATRON.rule(
    "expert-options-without-experts",
    "warning",
    "Options of experts in a dense model",
    "Without --num-experts a dense model is built, and they do nothing.",
    "--moe-grouped-gemm --moe-permute-fusion",
)
def _idle_options(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts:
        given = [dest for dest in OF_EXPERTS if facts.names.given(dest) and facts.value(dest)]
        if given:
            yield facts.problem("does nothing: the model has no experts", given[0], need="--num-experts")


@MEGATRON.rule(
    "experts-cut-by-default",
    "note",
    "Experts are cut by tp, since etp is not said",
    "--expert-tensor-parallel-size is tp by default (validate_args); small experts are faster whole, with "
    "expert parallelism instead (core/transformer/moe/README.md).",
    EIGHT + "--tensor-model-parallel-size 4 --sequence-parallel",
)
def _etp(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and facts.tp > 1 and not facts.given(ETP):
        hint = "1, and a larger ep" if facts.ep < facts.experts else "1"
        yield facts.problem("is tp by default: every expert is cut", ETP, TP, got=facts.tp, hint=hint)


@MEGATRON.rule(
    "biases-of-experts",
    "error",
    "Experts with biases, which Megatron-LM adds by default",
    "Grouped experts refuse biases: all of them up to core_v0.14, later beside the fusion of bias and dropout "
    "(moe/experts.py); shared experts have none (shared_experts.py), and those that are cut may not "
    "(transformer_config.py).",
    "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01",
)
def _biases(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts or not facts.on(BIASES):
        return
    fused = facts.on("bias_dropout_fusion") or not facts.at_least("core_v0.15.0")
    for wrong, what in (
        (facts.on(GROUPED) and fused, "grouped experts take no biases"),
        ((facts.maybe(SHARED) or 0) > 0, "shared experts have no biases"),
        (fails(table.EXPERT_BIAS, facts), "experts that are cut (etp above 1) take no biases"),
    ):
        if wrong:
            yield facts.problem(f"is missing: {what}", BIASES, "num_experts", need="it", value=False)
            return


@MEGATRON.rule(
    "experts-one-by-one",
    "warning",
    "The experts of a rank are multiplied one after another",
    "Without --moe-grouped-gemm each local expert is a module of its own, with small kernels "
    "(core/transformer/moe/README.md; compute capability 8.0 or later).",
    "--num-experts 64 --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01",
)
def _one_by_one(facts: MegatronFacts) -> Iterator[Problem]:
    local = facts.experts // facts.ep
    half = facts.on("fp16") and not facts.at_least("core_v0.16.1")  # the kernels are for bf16
    if local > 1 and facts.experts >= MANY_EXPERTS and not facts.on(GROUPED) and not half:
        if facts.architecture == "volta":
            return
        yield facts.problem(
            "is missing: the experts run one after another",
            GROUPED,
            "num_experts",
            got=f"{local} experts on a rank",
            need="it",
        )

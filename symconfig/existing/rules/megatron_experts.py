"""Mixture of experts: their grid, their sizes and their kernels."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import fails
from symconfig.existing.rules.megatron_grid import EP, ETP, PP, TP, undivided
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks import shared
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
    "experts-over-ep",
    "error",
    "The experts cannot be divided by ep",
    "validate_args asserts it.",
    KERNELS + "--num-experts 6 --expert-model-parallel-size 4",
    constraints=(shared.EXPERTS,),
)
def _experts(facts: MegatronFacts) -> Iterator[Problem]:
    yield undivided(facts, "the experts", "num_experts", facts.experts, by=facts.ep, named="ep", related=(EP,))


@MEGATRON.rule(
    "stage-over-expert-grid",
    "error",
    "The GPUs of a pipeline stage cannot be divided by ep x etp",
    "The experts span a grid of their own over the same ranks, ep x etp x edp (parallel_state.py; Megatron-LM#1580).",
    EIGHT + "--expert-model-parallel-size 8 --pipeline-model-parallel-size 2 --num-layers 32",
    constraints=(shared.EXPERT_GRID,),
)
def _grid(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts:
        yield undivided(
            facts,
            "a pipeline stage",
            EP,
            facts.gpus // facts.pp,
            by=facts.ep * facts.etp,
            named="ep x etp",
            related=(
                ETP,
                PP,
            ),
        )


@MEGATRON.rule(
    "expert-over-etp",
    "error",
    "An expert's width cannot be divided by etp",
    "Its weights are cut over the expert-tensor-parallel ranks (experts.py, layers.py).",
    EIGHT + "--moe-ffn-hidden-size 1410 --tensor-model-parallel-size 4 --expert-tensor-parallel-size 4 "
    "--sequence-parallel",
    constraints=(shared.EXPERT_WIDTH,),
)
def _width(facts: MegatronFacts) -> Iterator[Problem]:
    size = facts.maybe("moe_ffn_hidden_size") or facts.number("ffn_hidden_size")
    yield undivided(
        facts,
        "an expert",
        "moe_ffn_hidden_size",
        size,
        by=facts.etp,
        named="etp",
        related=(
            ETP,
            TP,
        ),
    )


@MEGATRON.rule(
    "shared-expert-over-tp",
    "error",
    "The shared expert's width cannot be divided by tp",
    "It lies on the dense grid, and is cut over tp like an MLP (shared_experts.py).",
    EIGHT + "--moe-shared-expert-intermediate-size 1410 --tensor-model-parallel-size 4 --sequence-parallel "
    "--expert-tensor-parallel-size 1",
    constraints=(shared.SHARED_EXPERT,),
)
def _shared(facts: MegatronFacts) -> Iterator[Problem]:
    yield undivided(facts, "the shared expert", SHARED, facts.number(SHARED), by=facts.tp, named="tp", related=(TP,))


@MEGATRON.rule(
    "experts-need-sequence-parallel",
    "error",
    "Experts with tensor parallelism need sequence parallelism",
    "The parser refuses it up to core_v0.14; from core_v0.16.1 on it passes, and the first training step raises "
    "(moe_layer.py, forward).",
    EIGHT + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
    constraints=(table.EXPERTS_WITHOUT_SEQUENCE,),
)
def _sequence(facts: MegatronFacts) -> Iterator[Problem]:
    yield facts.problem(
        "experts with tensor parallelism fail in the first step without sequence parallelism",
        "sequence_parallel",
        TP,
        "num_experts",
        got="absent",
        need="it",
        hint="add --sequence-parallel",
    )


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

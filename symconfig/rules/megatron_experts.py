"""Mixture of experts: their grid, their router and their kernels."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.rules.facts import MegatronFacts
from symconfig.rules.megatron_grid import EP, ETP, PP, TP, divides
from symconfig.rules.rule import Rules

GROUPED, DISPATCHER, TOPK = "moe_grouped_gemm", "moe_token_dispatcher_type", "moe_router_topk"
BIASES = "add_bias_linear"
OVERLAP = "overlap_moe_expert_parallel_comm"
SHARED = "moe_shared_expert_intermediate_size"
OF_EXPERTS = (GROUPED, "moe_ffn_hidden_size", SHARED, "moe_router_num_groups", "moe_router_group_topk",
              "moe_router_enable_expert_bias", "moe_permute_fusion", "moe_shared_expert_overlap",
              "moe_layer_recompute", "moe_expert_capacity_factor")
MANY_EXPERTS = 8  # with as many small matrices a step is mostly launches of kernels
KERNELS = "--disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
EIGHT = KERNELS + "--num-experts 8 "

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "ep-without-experts", "error", "Expert parallelism without experts",
    "validate_args and TransformerConfig refuse it.", "--expert-model-parallel-size 8")
def _no_experts(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts and facts.ep > 1:
        yield facts.problem("without experts", EP, got=facts.ep, need="--num-experts, or 1")


@MEGATRON.rule(
    "expert-options-without-experts", "warning", "Options of experts in a dense model",
    "Without --num-experts a dense model is built, and they do nothing.",
    "--moe-grouped-gemm --moe-permute-fusion")
def _idle_options(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts:
        given = [dest for dest in OF_EXPERTS if facts.names.given(dest) and facts.value(dest)]
        if given:
            yield facts.problem("does nothing: the model has no experts", given[0], need="--num-experts")


@MEGATRON.rule(
    "experts-over-ep", "error", "The experts cannot be divided by ep",
    "validate_args asserts it.", KERNELS + "--num-experts 6 --expert-model-parallel-size 4")
def _experts(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts:
        yield from divides(facts, "the experts", "num_experts", facts.experts, facts.ep, "ep", EP)


@MEGATRON.rule(
    "stage-over-expert-grid", "error", "The GPUs of a pipeline stage cannot be divided by ep x etp",
    "The experts span a grid of their own over the same ranks, ep x etp x edp (parallel_state.py; Megatron-LM#1580).",
    EIGHT + "--expert-model-parallel-size 8 --pipeline-model-parallel-size 2 --num-layers 32")
def _grid(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts:
        yield from divides(facts, "a pipeline stage", EP, facts.gpus // facts.pp, facts.ep * facts.etp, "ep x etp", ETP,
                           PP)


@MEGATRON.rule(
    "expert-over-etp", "error", "An expert's width cannot be divided by etp",
    "Its weights are cut over the expert-tensor-parallel ranks (experts.py, layers.py).",
    EIGHT + "--moe-ffn-hidden-size 1410 --tensor-model-parallel-size 4 --expert-tensor-parallel-size 4 "
    "--sequence-parallel")
def _width(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts:
        size = facts.maybe("moe_ffn_hidden_size") or facts.maybe("ffn_hidden_size") or 0
        yield from divides(facts, "an expert", "moe_ffn_hidden_size", size, facts.etp, "etp", ETP, TP)


@MEGATRON.rule(
    "shared-expert-over-tp", "error", "The shared expert's width cannot be divided by tp",
    "It lies on the dense grid, and is cut over tp like an MLP (shared_experts.py).",
    EIGHT + "--moe-shared-expert-intermediate-size 1410 --tensor-model-parallel-size 4 --sequence-parallel "
    "--expert-tensor-parallel-size 1")
def _shared(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and (shared := facts.maybe(SHARED) or 0) > 0:
        yield from divides(facts, "the shared expert", SHARED, shared, facts.tp, "tp", TP)


@MEGATRON.rule(
    "experts-need-sequence-parallel", "error", "Experts with tensor parallelism need sequence parallelism",
    "The parser refuses it up to core_v0.14; from core_v0.16.1 on it passes, and the first training step raises "
    "(moe_layer.py, forward).",
    EIGHT + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1")
def _sequence(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and facts.tp > 1 and not facts.on("sequence_parallel"):
        yield facts.problem("experts with tensor parallelism fail in the first step without sequence parallelism",
                            "sequence_parallel", TP, "num_experts", got="absent", need="it",
                            hint="add --sequence-parallel")


@MEGATRON.rule(
    "experts-cut-by-default", "note", "Experts are cut by tp, since etp is not said",
    "--expert-tensor-parallel-size is tp by default (validate_args); small experts are faster whole, with "
    "expert parallelism instead (core/transformer/moe/README.md).",
    EIGHT + "--tensor-model-parallel-size 4 --sequence-parallel")
def _etp(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and facts.tp > 1 and not facts.given(ETP):
        yield facts.problem("is tp by default: every expert is cut", ETP, TP, got=facts.tp, hint="1, and a larger ep")


@MEGATRON.rule(
    "topk-over-experts", "error", "More experts are chosen than there are",
    "torch.topk fails in the first step.", EIGHT + "--moe-router-topk 9")
def _topk(facts: MegatronFacts) -> Iterator[Problem]:
    topk = facts.maybe(TOPK)
    if facts.experts and topk is not None and topk > facts.experts:
        yield facts.problem("is more than there are experts", TOPK, got=topk, need=f"up to {facts.experts}")


@MEGATRON.rule(
    "experts-over-router-groups", "error", "The experts cannot be divided by the router's groups",
    "TransformerConfig asserts it, and that no more groups are chosen than there are.",
    EIGHT + "--moe-router-num-groups 3 --moe-router-group-topk 2")
def _groups(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and (groups := facts.maybe("moe_router_num_groups") or 0):
        yield from divides(facts, "the experts", "num_experts", facts.experts, groups, "the router's groups")
        chosen = facts.maybe("moe_router_group_topk") or 0
        if chosen > groups:
            yield facts.problem("is more than there are groups", "moe_router_group_topk", got=chosen,
                                need=f"up to {groups}")


@MEGATRON.rule(
    "one-expert-after-softmax", "error", "A softmax over the one chosen expert has no gradient",
    "TransformerConfig refuses --moe-router-topk 1 with softmax scores without --moe-router-pre-softmax.",
    EIGHT + "--moe-router-topk 1")
def _one(facts: MegatronFacts) -> Iterator[Problem]:
    if (facts.experts and facts.maybe(TOPK) == 1 and facts.value("moe_router_score_function") == "softmax"
            and not facts.on("moe_router_pre_softmax")
            and "sinkhorn" not in str(facts.value("moe_router_load_balancing_type"))):
        yield facts.problem("a softmax over one expert is always 1", TOPK, got=1, need="--moe-router-pre-softmax")


@MEGATRON.rule(
    "expert-bias-of-softmax", "error", "The router's bias needs sigmoid scores",
    "TransformerConfig refuses --moe-router-enable-expert-bias with softmax scores.",
    EIGHT + "--moe-router-enable-expert-bias")
def _bias(facts: MegatronFacts) -> Iterator[Problem]:
    if (facts.experts and facts.on("moe_router_enable_expert_bias")
            and facts.value("moe_router_score_function") == "softmax"):
        yield facts.problem("the scores are a softmax", "moe_router_enable_expert_bias",
                            need="--moe-router-score-function sigmoid")


@MEGATRON.rule(
    "deepep-without-flex", "error", "DeepEP needs the flex dispatcher",
    "TransformerConfig refuses --moe-enable-deepep with another --moe-token-dispatcher-type.",
    EIGHT + "--expert-model-parallel-size 8 --moe-enable-deepep", since="core_v0.12.1")
def _deepep(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("moe_enable_deepep") and facts.value(DISPATCHER) != "flex":
        yield facts.problem("DeepEP is a backend of another dispatcher", DISPATCHER, "moe_enable_deepep",
                            got=facts.text(DISPATCHER), need="flex")


@MEGATRON.rule(
    "biases-of-experts", "error", "Experts with biases, which Megatron-LM adds by default",
    "Grouped experts refuse biases: all of them up to core_v0.14, later beside the fusion of bias and dropout "
    "(moe/experts.py); shared experts have none (shared_experts.py), and those that are cut may not "
    "(transformer_config.py).",
    "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall")
def _biases(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts or not facts.on(BIASES):
        return
    fused = facts.on("bias_dropout_fusion") or not facts.at_least("core_v0.15.0")
    for wrong, what in (
        (facts.on(GROUPED) and fused, "grouped experts take no biases"),
        ((facts.maybe(SHARED) or 0) > 0, "shared experts have no biases"),
        (facts.etp > 1, "experts that are cut (etp above 1) take no biases"),
    ):
        if wrong:
            yield facts.problem(f"is missing: {what}", BIASES, "num_experts", need="it", value=False)
            return


@MEGATRON.rule(
    "gathered-tokens", "warning", "Every rank gathers all tokens for its experts",
    "The allgather dispatcher, which is the default, sends every token to every expert-parallel rank; alltoall sends "
    "it to the chosen ones (core/transformer/moe/README.md).",
    "--num-experts 8 --disable-bias-linear --moe-grouped-gemm --expert-model-parallel-size 8")
def _allgather(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and facts.ep > 1 and facts.value(DISPATCHER) == "allgather" and facts.maybe(TOPK) != facts.experts:
        yield facts.problem("every expert-parallel rank gathers all tokens", DISPATCHER, EP,
                            got="allgather" + ("" if facts.given(DISPATCHER) else ", the default"),
                            need="alltoall, or flex")


@MEGATRON.rule(
    "experts-one-by-one", "warning", "The experts of a rank are multiplied one after another",
    "Without --moe-grouped-gemm each local expert is a module of its own, with small kernels "
    "(core/transformer/moe/README.md; compute capability 8.0 or later).",
    "--num-experts 64 --moe-token-dispatcher-type alltoall")
def _one_by_one(facts: MegatronFacts) -> Iterator[Problem]:
    local = facts.experts // facts.ep
    half = facts.on("fp16") and not facts.at_least("core_v0.16.1")  # the kernels are for bf16
    if local > 1 and facts.experts >= MANY_EXPERTS and not facts.on(GROUPED) and not half:
        if facts.architecture == "volta":
            return
        yield facts.problem("is missing: the experts run one after another", GROUPED, "num_experts",
                            got=f"{local} experts on a rank", need="it")


@MEGATRON.rule(
    "expert-overlap-refused", "error", "The experts' exchange cannot be hidden like this",
    "TransformerConfig asserts it all for --overlap-moe-expert-parallel-comm (transformer_config.py, __post_init__).",
    EIGHT + "--expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1", since="core_v0.14.0",
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
def _overlap(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.on(OVERLAP):
        return
    modules = facts.value("recompute_modules")
    for wrong, what, need in (
        (facts.ep == 1, "there is nothing to hide", "--expert-model-parallel-size above 1"),
        (facts.value(DISPATCHER) == "allgather", "the dispatcher has no all-to-all",
         "--moe-token-dispatcher-type alltoall or flex"),
        (facts.value("recompute_granularity") == "full" and not facts.on("recompute_activations"),
         "whole layers are recomputed", "selective recompute, or none"),
        (isinstance(modules, tuple) and "moe" in modules, "the experts are recomputed",
         "no moe in --recompute-modules"),
        (facts.on("moe_shared_expert_overlap"), "the shared expert is to hide it, too",
         "no --moe-shared-expert-overlap"),
        (not facts.on("bf16") and not facts.on("fp16"), "it is for half precision", "--bf16"),
        (facts.pp > 1 and facts.chunks == 1, "a pipeline needs virtual stages for it",
         "--num-virtual-stages-per-pipeline-rank"),
    ):
        if wrong:
            yield facts.problem(f"cannot be: {what}", OVERLAP, need=need)

"""Mixture of experts: which of them a token goes to, and how it gets there."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.recover.layer_pattern import layer_pattern
from symconfig.existing.recover.moe import moe_layers
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_experts import EIGHT
from symconfig.existing.rules.megatron_grid import EP, divides
from symconfig.existing.rules.rule import Rules

DISPATCHER, BACKEND, TOPK = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_router_topk"
OVERLAP = "overlap_moe_expert_parallel_comm"
MANY_EXPERTS = 32  # transformer_config.py

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "topk-over-experts",
    "error",
    "More experts are chosen than there are",
    "torch.topk fails in the first step.",
    EIGHT + "--moe-router-topk 9",
)
def _topk(facts: MegatronFacts) -> Iterator[Problem]:
    topk = facts.maybe(TOPK)
    if facts.experts and topk is not None and topk > facts.experts:
        yield facts.problem("is more than there are experts", TOPK, got=topk, need=f"up to {facts.experts}")


@MEGATRON.rule(
    "experts-over-router-groups",
    "error",
    "The experts cannot be divided by the router's groups",
    "TransformerConfig asserts it, and that no more groups are chosen than there are.",
    EIGHT + "--moe-router-num-groups 3 --moe-router-group-topk 2",
)
def _groups(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and (groups := facts.maybe("moe_router_num_groups") or 0):
        yield from divides(facts, "the experts", "num_experts", facts.experts, by=groups, named="the router's groups")
        chosen = facts.maybe("moe_router_group_topk") or 0
        if chosen > groups:
            yield facts.problem(
                "is more than there are groups", "moe_router_group_topk", got=chosen, need=f"up to {groups}"
            )


@MEGATRON.rule(
    "one-expert-after-softmax",
    "error",
    "A softmax over the one chosen expert has no gradient",
    "TransformerConfig refuses --moe-router-topk 1 with softmax scores without --moe-router-pre-softmax.",
    EIGHT + "--moe-router-topk 1",
)
def _one(facts: MegatronFacts) -> Iterator[Problem]:
    if (
        facts.experts
        and facts.maybe(TOPK) == 1
        and facts.value("moe_router_score_function") == "softmax"
        and not facts.on("moe_router_pre_softmax")
        and "sinkhorn" not in str(facts.value("moe_router_load_balancing_type"))
    ):
        yield facts.problem("a softmax over one expert is always 1", TOPK, got=1, need="--moe-router-pre-softmax")


@MEGATRON.rule(
    "expert-bias-of-softmax",
    "error",
    "The router's bias needs sigmoid scores",
    "TransformerConfig refuses --moe-router-enable-expert-bias with softmax scores.",
    EIGHT + "--moe-router-enable-expert-bias",
)
def _bias(facts: MegatronFacts) -> Iterator[Problem]:
    if (
        facts.experts
        and facts.on("moe_router_enable_expert_bias")
        and facts.value("moe_router_score_function") == "softmax"
    ):
        yield facts.problem(
            "the scores are a softmax", "moe_router_enable_expert_bias", need="--moe-router-score-function sigmoid"
        )


@MEGATRON.rule(
    "deepep-without-flex",
    "error",
    "DeepEP needs the flex dispatcher",
    "TransformerConfig refuses --moe-enable-deepep with another --moe-token-dispatcher-type.",
    EIGHT + "--expert-model-parallel-size 8 --moe-enable-deepep",
    since="core_v0.12.1",
)
def _deepep(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("moe_enable_deepep") and facts.value(DISPATCHER) != "flex":
        yield facts.problem(
            "DeepEP is a backend of another dispatcher",
            DISPATCHER,
            "moe_enable_deepep",
            got=facts.text(DISPATCHER),
            need="flex",
        )


@MEGATRON.rule(
    "gathered-tokens",
    "warning",
    "Every rank gathers all tokens for its experts",
    "The allgather dispatcher, which is the default, sends every token to every expert-parallel rank; alltoall sends "
    "it to the chosen ones (core/transformer/moe/README.md).",
    "--num-experts 8 --disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01 --expert-model-parallel-size 8",
)
def _allgather(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts and facts.ep > 1 and facts.value(DISPATCHER) == "allgather" and facts.maybe(TOPK) != facts.experts:
        yield facts.problem(
            "every expert-parallel rank gathers all tokens",
            DISPATCHER,
            EP,
            got="allgather" + ("" if facts.given(DISPATCHER) else ", the default"),
            need="alltoall, or flex",
        )


@MEGATRON.rule(
    "expert-overlap-refused",
    "error",
    "The experts' exchange cannot be hidden like this",
    "TransformerConfig asserts it all for --overlap-moe-expert-parallel-comm (transformer_config.py, __post_init__).",
    EIGHT + "--expert-model-parallel-size 8 --overlap-moe-expert-parallel-comm --recompute-granularity full "
    "--recompute-method uniform --recompute-num-layers 1",
    since="core_v0.14.0",
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"},
)
def _overlap(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.on(OVERLAP):
        return
    modules = facts.value("recompute_modules")
    for wrong, what, need in (
        (facts.ep == 1, "there is nothing to hide", "--expert-model-parallel-size above 1"),
        (
            facts.value(DISPATCHER) == "allgather",
            "the dispatcher has no all-to-all",
            "--moe-token-dispatcher-type alltoall or flex",
        ),
        (
            facts.value("recompute_granularity") == "full" and not facts.on("recompute_activations"),
            "whole layers are recomputed",
            "selective recompute, or none",
        ),
        (
            isinstance(modules, tuple) and "moe" in modules,
            "the experts are recomputed",
            "no moe in --recompute-modules",
        ),
        (
            facts.on("moe_shared_expert_overlap"),
            "the shared expert is to hide it, too",
            "no --moe-shared-expert-overlap",
        ),
        (not facts.on("bf16") and not facts.on("fp16"), "it is for half precision", "--bf16"),
        (
            facts.pp > 1 and facts.chunks == 1,
            "a pipeline needs virtual stages for it",
            "--num-virtual-stages-per-pipeline-rank",
        ),
    ):
        if wrong:
            yield facts.problem(f"cannot be: {what}", OVERLAP, need=need)


@MEGATRON.rule(
    "experts-not-balanced",
    "warning",
    "Nothing balances the experts",
    "--moe-router-load-balancing-type is aux_loss by default, and --moe-aux-loss-coeff 0: without a loss, a bias or "
    "another type tokens gather on few experts, and expert-parallel ranks wait for the fullest (moe/router.py).",
    "--num-experts 8 --disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall",
)
def _balance(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts or facts.on("moe_router_enable_expert_bias") or facts.on("moe_router_force_load_balancing"):
        return
    kinds, weights = facts.value("moe_router_load_balancing_type"), facts.value("moe_aux_loss_coeff")
    names = kinds if isinstance(kinds, tuple) else (kinds,)
    off = not any(weights) if isinstance(weights, tuple) else not weights
    if off and names and all("aux_loss" in str(name) for name in names):
        yield facts.problem(
            "is 0: the balancing loss counts for nothing",
            "moe_aux_loss_coeff",
            "num_experts",
            need="0.001 or 0.01, or --moe-router-enable-expert-bias",
        )


@MEGATRON.rule(
    "capacity-refused",
    "error",
    "A capacity of experts that the router does not take",
    "TransformerConfig takes --moe-expert-capacity-factor with aux_loss, seq_aux_loss or none, and asks for it beside "
    "--moe-pad-expert-input-to-capacity.",
    EIGHT + "--moe-pad-expert-input-to-capacity",
)
def _capacity(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("moe_pad_expert_input_to_capacity") and facts.value("moe_expert_capacity_factor") is None:
        yield facts.problem(
            "is missing beside the padding",
            "moe_expert_capacity_factor",
            "moe_pad_expert_input_to_capacity",
            need="a number, 1.0 for example",
        )
    if facts.value("moe_expert_capacity_factor") is not None and "sinkhorn" in str(
        facts.value("moe_router_load_balancing_type")
    ):
        yield facts.problem("does not go with sinkhorn", "moe_expert_capacity_factor", need="aux_loss, or none")


@MEGATRON.rule(
    "shared-expert-overlap-refused",
    "error",
    "The shared expert cannot hide this exchange",
    "TransformerConfig takes --moe-shared-expert-overlap with the dispatchers alltoall and flex.",
    "--num-experts 8 --disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01 "
    "--moe-shared-expert-intermediate-size 4096 --moe-shared-expert-overlap",
)
def _shared_overlap(facts: MegatronFacts) -> Iterator[Problem]:
    shared = (facts.maybe("moe_shared_expert_intermediate_size") or 0) > 0
    if shared and facts.on("moe_shared_expert_overlap") and facts.value(DISPATCHER) == "allgather":
        yield facts.problem(
            "has no all-to-all to hide",
            DISPATCHER,
            "moe_shared_expert_overlap",
            got="allgather",
            need="alltoall or flex",
        )


@MEGATRON.rule(
    "layers-of-experts",
    "error",
    "--moe-layer-freq does not say each layer",
    "A list has a 0 or a 1 for each of --num-layers; another length fails when the model is built "
    "(gpt_layer_specs.py, get_gpt_decoder_block_spec).",
    EIGHT + "--moe-layer-freq ([0]*3+[1]*28)",
)
def _pattern(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts or not facts.names.given("moe_layer_freq"):
        return
    try:
        moe_layers(layer_pattern(facts.value("moe_layer_freq")), facts.number("num_layers"))
    except ValueError as error:
        yield facts.problem(
            "does not say which layers have experts",
            "moe_layer_freq",
            got=facts.text("moe_layer_freq"),
            need=str(error),
        )


@MEGATRON.rule(
    "router-in-half-precision",
    "note",
    "Many experts are chosen among in half precision",
    "Scores of many experts lie close together; TransformerConfig warns from 32 experts on, and asks for "
    "--moe-router-dtype fp32.",
    "--num-experts 64 --disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--moe-aux-loss-coeff 0.01",
)
def _precision(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.experts >= MANY_EXPERTS and facts.value("moe_router_dtype") is None:
        yield facts.problem("is missing: scores are in half precision", "moe_router_dtype", "num_experts", hint="fp32")

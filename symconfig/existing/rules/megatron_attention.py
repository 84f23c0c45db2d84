"""Context parallelism, latent attention and multi-token prediction: what goes with what."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import exchanges
from symconfig.existing.rules.megatron_grid import CP
from symconfig.existing.rules.rule import Rules

COMM, LEVELS = "cp_comm_type", "hierarchical_context_parallel_sizes"
MLA, GQA = "multi_latent_attention", "group_query_attention"
MTP = "mtp_num_layers"

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "exchange-of-layers",
    "error",
    "--cp-comm-type has neither one value nor one for each layer",
    "TransformerConfig asserts as many values as layers, where there are several.",
    "--context-parallel-size 2 --cp-comm-type p2p a2a --seq-length 8192 --max-position-embeddings 8192",
)
def _each_layer(facts: MegatronFacts) -> Iterator[Problem]:
    count = len(exchanges(facts))
    if facts.cp > 1 and count > 1 and count != facts.number("num_layers"):
        yield facts.problem(
            "has neither one value nor one for each layer",
            COMM,
            got=f"{count} values",
            need=f"1 or {facts.number('num_layers')}",
        )


@MEGATRON.rule(
    "levels-of-cp",
    "error",
    "The levels of context parallelism do not multiply to it",
    "validate_args asks for --hierarchical-context-parallel-sizes with a2a+p2p, and for their product.",
    "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2 --seq-length 8192 "
    "--max-position-embeddings 8192",
)
def _levels(facts: MegatronFacts) -> Iterator[Problem]:
    levels = facts.value(LEVELS)
    if isinstance(levels, tuple) and levels:
        product = 1
        for level in levels:
            product *= int(str(level))
        if product != facts.cp:
            yield facts.problem(
                "do not multiply to --context-parallel-size", LEVELS, CP, got=product, need=str(facts.cp)
            )
    elif "a2a+p2p" in exchanges(facts):
        yield facts.problem("is missing beside --cp-comm-type a2a+p2p", LEVELS, COMM, need="the ranks of each level")


@MEGATRON.rule(
    "latent-attention-in-groups",
    "error",
    "Latent attention has no query groups",
    "validate_args asserts one of --multi-latent-attention and --group-query-attention.",
    "--multi-latent-attention --group-query-attention --num-query-groups 8",
)
def _latent(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(MLA) and facts.on(GQA):
        yield facts.problem("stands beside --multi-latent-attention", GQA, MLA, need="one of them")


@MEGATRON.rule(
    "positions-of-mtp",
    "error",
    "Multi-token prediction with these positions",
    "validate_args takes rope and none (rope, mrope, learned_absolute and none at its end).",
    "--mtp-num-layers 1",
    since="core_v0.12.1",
)
def _positions(facts: MegatronFacts) -> Iterator[Problem]:
    kind = facts.value("position_embedding_type")
    if facts.maybe(MTP) and kind not in ("rope", "none") and not facts.on("use_rotary_position_embeddings"):
        yield facts.problem(
            "does not go with multi-token prediction", "position_embedding_type", MTP, got=kind, need="rope or none"
        )


@MEGATRON.rule(
    "activation-said-twice",
    "error",
    "Two activations of the MLP",
    "core_transformer_config_from_args asserts --squared-relu without --swiglu.",
    "--swiglu --squared-relu",
)
def _activation(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on("swiglu") and facts.on("squared_relu"):
        yield facts.problem("stands beside --swiglu", "squared_relu", "swiglu", need="one of them")

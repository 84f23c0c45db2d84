"""Recompute: how its options depend on each other."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_grid import TP
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.releases import RECOMPUTE_SINCE

GRANULARITY, METHOD, LAYERS, MODULES = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
)
SHORT = "recompute_activations"
SAVED = "distribute_saved_activations"

MEGATRON: Rules[MegatronFacts] = Rules()


def granularity(facts: MegatronFacts) -> str | None:
    """Return the granularity as it comes out: --recompute-activations goes before --recompute-granularity
    (validate_args).
    """
    return "selective" if facts.on(SHORT) else facts.text(GRANULARITY)


@MEGATRON.rule(
    "recompute-said-twice",
    "error",
    "--recompute-activations overrides full recompute",
    "validate_args sets the granularity to selective: whole layers are not recomputed, memory runs out, or the method "
    "that stands beside it is refused.",
    "--recompute-activations --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
)
def _twice(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(SHORT) and facts.value(GRANULARITY) == "full":
        yield facts.problem("turns --recompute-granularity full into selective", SHORT, GRANULARITY, need="one of them")


@MEGATRON.rule(
    "full-recompute-without-method",
    "error",
    "Full recompute without a method or a number of layers",
    "TransformerConfig asks for --recompute-method uniform or block, and for --recompute-num-layers.",
    "--recompute-granularity full",
)
def _method(facts: MegatronFacts) -> Iterator[Problem]:
    if granularity(facts) != "full":
        return
    for dest, need in ((METHOD, "uniform or block"), (LAYERS, "a number of layers")):
        if facts.value(dest) is None:
            yield facts.problem("is missing beside full recompute", dest, GRANULARITY, need=need)


@MEGATRON.rule(
    "selective-recompute-with-method",
    "error",
    "Selective recompute takes no method and no number of layers",
    "validate_args and TransformerConfig refuse them: selected modules are recomputed in all layers.",
    "--recompute-granularity selective --recompute-method block --recompute-num-layers 4",
)
def _selective(facts: MegatronFacts) -> Iterator[Problem]:
    if granularity(facts) == "selective" and not (facts.on(SHORT) and facts.value(GRANULARITY) == "full"):
        for dest in (METHOD, LAYERS):
            if facts.value(dest) is not None:
                yield facts.problem(
                    "does not go with selective recompute",
                    dest,
                    GRANULARITY,
                    SHORT,
                    got=facts.value(dest),
                    need="nothing, or --recompute-granularity full",
                )


@MEGATRON.rule(
    "idle-recompute-options",
    "warning",
    "Options of recompute without its granularity do nothing",
    "Nothing is recomputed unless --recompute-granularity (or --recompute-activations) is there; modules count for "
    "selective only.",
    "--recompute-method uniform --recompute-num-layers 1",
)
def _idle(facts: MegatronFacts) -> Iterator[Problem]:
    chosen = granularity(facts)
    if chosen is None:
        for dest in (METHOD, LAYERS, MODULES):
            if facts.names.given(dest):
                yield facts.problem("does nothing: nothing is recomputed", dest, need="--recompute-granularity")
    elif chosen == "full" and facts.names.given(MODULES):
        yield facts.problem(
            "does nothing: whole layers are recomputed", MODULES, GRANULARITY, need="--recompute-granularity selective"
        )


@MEGATRON.rule(
    "recompute-modules-refused",
    "error",
    "A module that cannot be recomputed",
    "TransformerConfig knows the names, and asks for the kernels and layers behind them (transformer_config.py, "
    "__post_init__).",
    "--recompute-granularity selective --recompute-modules attention",
    since="core_v0.12.1",
)
def _modules(facts: MegatronFacts) -> Iterator[Problem]:
    given = facts.value(MODULES)
    if granularity(facts) != "selective" or not isinstance(given, tuple):
        return
    names = [str(name) for name in given]
    known = [name for name, since in RECOMPUTE_SINCE.items() if facts.at_least(since)]
    quantised = facts.value("fp8") is not None and facts.value("fp8_recipe") == "delayed"
    for name in names:
        need = (
            f"one of {', '.join(known)}"
            if name not in known
            else "--moe-grouped-gemm"
            if name == "moe_act" and not facts.on("moe_grouped_gemm")
            else "--multi-latent-attention"
            if name == "mla_up_proj" and not facts.on("multi_latent_attention")
            else "another --fp8-recipe than delayed"
            if name in ("moe_act", "layernorm") and quantised
            else "no --moe-shared-expert-overlap"
            if name == "shared_experts" and facts.on("moe_shared_expert_overlap")
            else None
        )
        if need:
            yield facts.problem("is not recomputed here", MODULES, got=name, need=need)


@MEGATRON.rule(
    "idle-attention-recompute",
    "note",
    "The core of fused attention is recomputed",
    "Flash and fused attention keep no scores: recomputing the core costs a forward pass of it and saves little "
    "(transformer_config.py warns of it).",
    "--recompute-activations --attention-backend flash",
)
def _core(facts: MegatronFacts) -> Iterator[Problem]:
    modules = facts.value(MODULES)
    core = modules is None or (isinstance(modules, tuple) and "core_attn" in modules)
    if granularity(facts) == "selective" and core and facts.value("attention_backend") in ("flash", "fused"):
        yield facts.problem("recomputes attention that keeps no scores", GRANULARITY, SHORT)


@MEGATRON.rule(
    "distributed-saved-activations",
    "error",
    "--distribute-saved-activations does not go with this",
    "validate_args asks for full recompute with a method and tp above 1; TransformerConfig refuses sequence "
    "parallelism, which has distributed them already.",
    "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1 --distribute-saved-activations",
)
def _saved(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.on(SAVED):
        return
    for wrong, need in (
        (facts.tp == 1, "tp above 1"),
        (granularity(facts) != "full", "--recompute-granularity full"),
        (facts.tp > 1 and facts.on("sequence_parallel"), "no --sequence-parallel"),
    ):
        if wrong:
            yield facts.problem("cannot be", SAVED, TP, need=need)


@MEGATRON.rule(
    "everything-recomputed",
    "note",
    "Every layer is computed twice",
    "Full recompute of all layers costs a third more computation; selected modules, or the first layers of each "
    "stage (--recompute-method block), often fit as well (arXiv:2205.05198).",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
)
def _everything(facts: MegatronFacts) -> Iterator[Problem]:
    if granularity(facts) == "full" and facts.value(METHOD) == "uniform":
        yield facts.problem("recomputes every layer", GRANULARITY, got="full, uniform", hint="selective, or block")

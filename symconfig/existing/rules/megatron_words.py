"""Values that rows about Megatron-LM name: options by destination, facts of a launch, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.rules.facts import LAYOUT, MegatronFacts, NotKnown
from symconfig.existing.rules.refused import exchanges, fails
from symconfig.existing.rules.rule import TEXTS, Language, Looked
from symconfig.frameworks.megatron import constraints, option_constraints, sparse
from symconfig.frameworks.megatron.releases import LAYOUT_MTP_ALONE_SINCE, NO_GROUPED_GEMM
from symconfig.plans import pipeline_layout

# Attributes of the facts that rows name as they are. Every other name is an option's destination.
FACTS = words("tp pp cp ep etp dp gpus experts chunks microbatches fsdp low_precision architecture")
LEVELS, POSITIONS = "hierarchical_context_parallel_sizes", "position_embedding_type"
LOSSES = "moe_router_load_balancing_type"
ROPES = ("rope", "yarn", "mrope")
TABLE = {**vars(constraints), **vars(option_constraints), **vars(sparse)}
_MODEL = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048"
_KERNELS = "--disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01"
BASES = {
    "EIGHT": f"{_KERNELS} --num-experts 8",
    "PLAIN": f"{_MODEL} --micro-batch-size 1 --global-batch-size 64",
}


def granularity(facts: MegatronFacts) -> str | None:
    """Return the effective granularity of recompute: --recompute-activations overrides --recompute-granularity
    (validate_args).

    None without recompute.
    """
    return "selective" if facts.on("recompute_activations") else facts.text("recompute_granularity")


def absent(facts: MegatronFacts, dest: str) -> bool:
    """Return whether the option's value is None, False or (). Raises NotKnown."""
    return facts[dest] in (None, False, ())


def _gpu(facts: MegatronFacts) -> str:
    if facts.architecture is None:
        raise NotKnown
    return facts.architecture


def _layout(facts: MegatronFacts) -> list[str]:
    """Return the letters of each chunk of --pipeline-model-parallel-layout; [] without it."""
    layout = facts.text(LAYOUT)
    return [] if layout is None else pipeline_layout.expanded(layout)


def _levels(facts: MegatronFacts) -> int | None:
    levels = facts[LEVELS]
    return prod(int(str(level)) for level in levels) if isinstance(levels, tuple) and levels else None


def _weightless_losses(facts: MegatronFacts) -> bool:
    """Return whether experts are balanced only by auxiliary losses and all of these have weight 0."""
    kinds, weights = (
        value if isinstance(value, tuple) else (value,)
        for value in map(facts.__getitem__, (LOSSES, "moe_aux_loss_coeff"))
    )
    return bool(kinds) and not any(weights) and all("aux_loss" in str(kind) for kind in kinds)


def _vocabulary_step(facts: MegatronFacts) -> int:
    return facts.number("make_vocab_size_divisible_by") * facts.tp


# What follows from options, by the names that rows give it.
DERIVED: Mapping[str, Callable[[MegatronFacts], Any]] = {
    "node": lambda facts: facts.known(facts.gpus_per_node),
    "gpu": _gpu,
    "without_grouped_gemm": lambda facts: _gpu(facts) in NO_GROUPED_GEMM,
    "replicas": lambda facts: facts.dp * facts.cp,
    "replicas_of_experts": lambda facts: facts.gpus // (facts.etp * facts.ep * facts.pp) if facts.experts else 0,
    "ranks_of_experts": lambda facts: facts.ep * facts.etp if facts.experts and facts.ep > 1 else 0,
    "local_experts": lambda facts: facts.experts // facts.ep,
    "biased_experts": lambda facts: facts.experts and facts.on("add_bias_linear"),
    "weightless_losses": _weightless_losses,
    "stage_layers": lambda facts: facts.number("num_layers") // facts.pp,
    "chunks_of_layout": lambda facts: len(_layout(facts)),
    "mtp_before_loss": lambda facts: "m" in "".join(_layout(facts)[:-1]),
    "mtp_on_first_stage": lambda facts: "m" in "".join(_layout(facts)[: -1 : facts.pp]),
    "LAYOUT_MTP_ALONE_SINCE": lambda facts: LAYOUT_MTP_ALONE_SINCE,
    "exchanges": exchanges,
    "count_of_exchanges": lambda facts: len(exchanges(facts)),
    "levels": _levels,
    "vocabulary_step": _vocabulary_step,
    "padded_vocabulary": lambda facts: (
        facts.number("vocab_size") + -facts.number("vocab_size") % _vocabulary_step(facts)
    ),
    "rotary": lambda facts: facts[POSITIONS] in ROPES or facts.on("use_rotary_position_embeddings"),
    "local_attention": lambda facts: facts["transformer_impl"] == "local" and not facts.on("use_flash_attn"),
    "mask_gib": lambda facts: facts.number("seq_length") ** 2 / 2**30,
    "masks_gib": lambda facts: facts.number("seq_length") ** 2 / 2**28,
    "granularity": granularity,
    "recompute_overridden": lambda facts: (
        facts.on("recompute_activations") and facts["recompute_granularity"] == "full"
    ),
    "scaled_as_it_goes": lambda facts: facts.on("fp16") and not facts["loss_scale"],
    "thrice_evaluated": lambda facts: 3 * facts.number("eval_iters"),
    "option": lambda facts: Looked(facts.option),
}


def _value(facts: MegatronFacts, name: str) -> Any:
    if name in FACTS:
        return getattr(facts, name)
    if name.startswith("$"):
        return facts.variable(name[1:]) or ""
    return DERIVED[name](facts) if name in DERIVED else facts[name]


def _problem(facts: MegatronFacts, about: list[str], what: str, **more: Any) -> Problem:
    """Return a problem about an option (`about`: its destination and related ones), or about `more["variable"]` if
    given.

    more: the row's keys; with `unset` the switch is named by the option that turns it off.
    """
    texts = {key: more[key] for key in TEXTS if key in more}
    if "variable" in more:
        return facts.about(more["variable"], what, *about, **texts)
    return facts.problem(what, *about, value=not more.get("unset", False), **texts)


NAME_TESTS: Mapping[str, Callable[[MegatronFacts, str], bool]] = {
    "given": MegatronFacts.given,
    "stated": lambda facts, dest: facts.names.given(dest),  # and nothing guessed of what was not read
    "absent": absent,
    "fails": lambda facts, name: fails(TABLE[name], facts),
    "since": MegatronFacts.at_least,
}
LANGUAGE = Language(_value, _problem, NAME_TESTS, BASES)

"""What rows about Megatron-LM can ask: options by destination, the facts of a launch, and a few questions more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.rules.facts import LAYOUT, MegatronFacts, NotKnown
from symconfig.existing.rules.known import exchanges, fails
from symconfig.existing.rules.row import Language, Row
from symconfig.frameworks.megatron import constraints, option_constraints, sparse
from symconfig.frameworks.megatron.flags import Value
from symconfig.frameworks.megatron.releases import LAYOUT_MTP_ALONE_SINCE, NO_GROUPED_GEMM
from symconfig.plans import pipeline_layout

# Attributes of the facts that rows name as they are. Every other word is an option's value, by its destination.
FACTS = words(
    """
    tp pp cp ep etp dp gpus experts chunks microbatches fsdp low_precision architecture
    given number maybe real text value option at_least variable
    """
)
TABLE = {**vars(constraints), **vars(option_constraints), **vars(sparse)}
_MODEL = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048"
_KERNELS = "--disable-bias-linear --moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 0.01"
BASES = {
    "KERNELS": _KERNELS,
    "EIGHT": f"{_KERNELS} --num-experts 8",
    "PLAIN": f"{_MODEL} --micro-batch-size 1 --global-batch-size 64",
    "WHOLE_FSDP": (
        "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim_grads_params "
        "--no-gradient-accumulation-fusion"
    ),
}


def granularity(facts: MegatronFacts) -> str | None:
    """Return the granularity of recompute as it comes out: --recompute-activations goes before --recompute-granularity
    (validate_args).
    """
    return "selective" if facts.on("recompute_activations") else facts.text("recompute_granularity")


def absent(facts: MegatronFacts, dest: str) -> bool:
    """Tell whether a switch is off, or an option has no value."""
    return facts.value(dest) in (None, False, ())


def undivided(value: int, by: int) -> bool:
    """Tell whether `by` leaves a rest of `value`. What is not positive has a rule of its own."""
    return value > 0 and by > 0 and value % by > 0


def _gpu(facts: MegatronFacts) -> str:
    if facts.architecture is None:
        raise NotKnown
    return facts.architecture


def _refusal(facts: MegatronFacts, dest: str, owner: str) -> str:
    """Return what is wrong with an option beside its owner: that it is there, or that it is missing."""
    setting = facts.names.setting(owner)
    named = setting.spelled if setting is not None else facts.option(owner)
    there = facts.names.given(dest) or not _is_switch(facts.value(dest))
    return f"does not go with {named}" if there else f"is missing beside {named}"


def _kept(facts: MegatronFacts, dest: str) -> str | None:
    """Return the value of an option that is no switch, and whether it is so by default."""
    value = facts.value(dest)
    return None if _is_switch(value) else str(value) if facts.names.given(dest) else f"{value} by default"


def _is_switch(value: Value) -> bool:
    return value is None or isinstance(value, bool)


def _layout(facts: MegatronFacts) -> list[str]:
    """Return the letters of each chunk of --pipeline-model-parallel-layout; nothing without it."""
    layout = facts.text(LAYOUT)
    return [] if layout is None else pipeline_layout.expanded(layout)


# Each is given the facts; what it returns may be a function, which a row then calls.
QUESTIONS: Mapping[str, Callable[[MegatronFacts], Any]] = {
    "node": lambda facts: facts.known(facts.gpus_per_node),
    "gpu": _gpu,
    "exchanges": exchanges,
    "granularity": granularity,
    "stated": lambda facts: facts.names.given,  # with whatever value, and nothing guessed of what was not read
    "absent": lambda facts: lambda dest: absent(facts, dest),
    "present": lambda facts: lambda dest: not absent(facts, dest),
    "off": lambda facts: lambda dest: facts.names.given(dest) and not facts.on(dest),
    "fails": lambda facts: lambda name: fails(TABLE[name], facts),
    "undivided": lambda facts: undivided,
    "refusal": lambda facts: lambda dest, owner: _refusal(facts, dest, owner),
    "kept": lambda facts: lambda dest: _kept(facts, dest),
    "prod": lambda facts: prod,
    "layout": lambda facts: (
        pipeline_layout.expanded(str(facts.value(LAYOUT))) if facts.value(LAYOUT) is not None else []
    ),
    "NO_GROUPED_GEMM": lambda facts: NO_GROUPED_GEMM,
    "LAYOUT_MTP_ALONE_SINCE": lambda facts: LAYOUT_MTP_ALONE_SINCE,
}


def _word(facts: MegatronFacts, name: str) -> Any:
    if name in FACTS:
        return getattr(facts, name)
    return QUESTIONS[name](facts) if name in QUESTIONS else facts.value(name)


def _problem(
    facts: MegatronFacts, about: list[str], what: str, variable: str | None = None, unset: bool = False, **texts: Any
) -> Problem:
    """Return a problem about options, or a variable of the environment. unset: the switch would have to be off."""
    if variable is not None:
        return facts.about(variable, what, *about, **texts)
    return facts.problem(what, *about, value=not unset, **texts)


def _expanded(case: Row) -> Iterator[Row]:
    """Make a case of each reason for which Megatron-LM refuses an option, the `owner`, beside another.

    A reason `needs` an option, `excludes` it, or is about the option `at` which something is wrong. need: what it must
    be; by default there, or absent. The owner's `when` is what it takes to be refused; by default that it is there.
    """
    if "owner" not in case:
        yield case
        return
    owner = case["owner"]
    rest = {key: value for key, value in case.items() if key not in ("owner", "when", "reasons")}
    there = case.get("when", f"present({owner!r})")
    for reason in case["reasons"]:
        needed, excluded = reason.get("needs"), reason.get("excludes")
        dest = needed or excluded or reason["at"]
        wrong = [f"absent({needed!r})"] * bool(needed) + [f"present({excluded!r})"] * bool(excluded)
        if "when" in reason:
            wrong.append(f"({reason['when']})")
        yield {
            **rest,
            **{key: value for key, value in reason.items() if key not in ("needs", "excludes")},
            "where": there,
            "when": " and ".join(reversed(wrong)),
            "at": f"{dest} {owner}",
            "what": f"{{refusal({dest!r}, {owner!r})}}",
            "got": f"{{kept({dest!r})}}",
            "need": reason.get("need", f"{{'it absent' if stated({dest!r}) else 'it'}}"),
        }


LANGUAGE = Language(_word, _problem, _expanded, BASES)

"""All rules about Megatron-LM, the names that their rows use, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from string import Template
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules import megatron_checks
from symconfig.existing.rules.facts import LAYOUT, MegatronFacts, NotKnown, granularity
from symconfig.existing.rules.refused import exchanges, fails, of_constraints
from symconfig.existing.rules.rule import BASES, OF_RULE, Finding, Language, Lookup, Row, Rule, rows_of, rules_of
from symconfig.existing.rules.rule import findings as findings_of
from symconfig.frameworks.megatron import constraints, option_constraints, sparse
from symconfig.frameworks.megatron.flags import Flag, destination_by_version, flags, parsed, versions
from symconfig.frameworks.megatron.releases import (
    LAYOUT_MTP_ALONE_SINCE,
    NO_GROUPED_GEMM,
    RECOMPUTE_SINCE,
    RECOMPUTE_UNPLANNED,
)
from symconfig.plans import pipeline_layout

# Attributes of the facts that rows name as they are. Every other name is an option's destination.
FACTS = words("tp pp cp ep etp dp gpus experts chunks microbatches fsdp low_precision architecture")
LEVELS, POSITIONS = "hierarchical_context_parallel_sizes", "position_embedding_type"
LOSSES = "moe_router_load_balancing_type"
ROPES = ("rope", "yarn", "mrope")
TABLE = {**vars(constraints), **vars(option_constraints), **vars(sparse)}


def absent(facts: MegatronFacts, dest: str) -> bool:
    """Return whether the option's value is None, False or (). Raises NotKnown."""
    return facts[dest] in (None, False, ())


def _layout(facts: MegatronFacts) -> list[str]:
    """Return the letters of each chunk of --pipeline-model-parallel-layout; [] without it."""
    layout = facts.text(LAYOUT)
    return [] if layout is None else pipeline_layout.expanded(layout)


def _levels(facts: MegatronFacts) -> int | None:
    levels = facts[LEVELS]
    return prod(int(str(level)) for level in levels) if isinstance(levels, tuple) and levels else None


def _weightless_losses(facts: MegatronFacts) -> bool:
    """Return whether experts are balanced only by auxiliary losses of weight 0. Raises NotKnown."""
    kinds, weights = (
        value if isinstance(value, tuple) else (value,)
        for value in map(facts.__getitem__, (LOSSES, "moe_aux_loss_coeff"))
    )
    return bool(kinds) and not any(weights) and all("aux_loss" in str(kind) for kind in kinds)


def _known_modules(facts: MegatronFacts) -> list[str]:
    """Return the modules that this version recomputes."""
    return [name for name, since in (RECOMPUTE_SINCE | RECOMPUTE_UNPLANNED).items() if facts.at_least(since)]


def _strange_modules(facts: MegatronFacts) -> str:
    """Return the modules that are to be recomputed and that this version does not have."""
    given = facts["recompute_modules"]
    names = map(str, given if isinstance(given, tuple) else ())
    return " ".join(name for name in names if name not in _known_modules(facts))


def _vocabulary_step(facts: MegatronFacts) -> int:
    return facts.number("make_vocab_size_divisible_by") * facts.tp


# What follows from options, by the names that rows give it.
DERIVED: Mapping[str, Callable[[MegatronFacts], Any]] = {
    "node": lambda facts: facts.known(facts.gpus_per_node),
    "gpu": lambda facts: facts.known(facts.architecture),
    "without_grouped_gemm": lambda facts: facts.known(facts.architecture) in NO_GROUPED_GEMM,
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
    "decay_iters": lambda facts: facts.maybe("lr_decay_iters") or facts.maybe("train_iters"),
    "decay_samples": lambda facts: facts.maybe("lr_decay_samples") or facts.maybe("train_samples"),
    "known_modules": lambda facts: ", ".join(_known_modules(facts)),
    "strange_modules": _strange_modules,
    "scaled_as_it_goes": lambda facts: facts.on("fp16") and not facts["loss_scale"],
    "thrice_evaluated": lambda facts: 3 * facts.number("eval_iters"),
    "option": lambda facts: Lookup(facts.option),
    "tokens_left": lambda facts: (
        facts.number("seq_length")
        * facts.number("micro_batch_size")
        % (facts.cp * (facts.tp if facts.on("sequence_parallel") else 1))
    ),
    "engine_graphs": lambda facts: facts["cuda_graph_impl"] == "transformer_engine" or facts.on("external_cuda_graph"),
}


def _value(facts: MegatronFacts, name: str) -> Any:
    if name in FACTS:
        return getattr(facts, name)
    if name.startswith("$"):
        return facts.variable(name[1:]) or ""
    return DERIVED[name](facts) if name in DERIVED else facts[name]


def _problem(facts: MegatronFacts, about: list[str], texts: dict[str, Any], row: Row) -> Problem:
    """Return a problem about options (`about`), or the row's `variable`; with `unset` about the switch that is off."""
    what = texts.pop("what")
    if "variable" in row:
        return facts.about(row["variable"], what, *about, **texts)
    return facts.problem(what, *about, value=not row.get("unset", False), **texts)


NAME_TESTS: Mapping[str, Callable[[MegatronFacts, str], bool]] = {
    "given": MegatronFacts.given,
    "stated": lambda facts, dest: facts.names.given(dest),  # and nothing guessed of what was not read
    "absent": absent,
    "fails": lambda facts, name: fails(TABLE[name], facts),
    "since": MegatronFacts.at_least,
}
LANGUAGE = Language(_value, _problem, NAME_TESTS, BASES)

_WHY = "validate_args, the configuration that it fills, or the process groups assert it: nothing starts."

_VERBS = {"needs": "needs", "excludes": "excludes", "be": "restricts"}


def _rule(key: str, row: Row) -> Rule[MegatronFacts]:
    """Return the rule "...-refused" (an error) of an option, or of one of its values if `key` is "--option value".

    row: options that it `needs` or `excludes`, and values that others must have (`be`); `if`: conditions besides.
    """
    option, *values = key.split()
    newest = flags([*destination_by_version(option)][-1]).flags[option]

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        """Yield a problem for each other option that the row names and that is not as it demands, if this one is given.

        Nothing unless `if` holds; what is not known is passed over.
        """
        flag = facts.names.table.flags.get(option, newest)
        own = {flag.dest: _stated(flag, values, option)}
        for kind in ("needs", "excludes", "be"):
            for dest, wanted in _by_dest(row.get(kind, "")).items():
                with suppress(NotKnown):
                    if LANGUAGE.holds(facts, own) and LANGUAGE.holds(facts, row.get("if", {})):
                        yield from _broken(facts, kind, dest, wanted, flag.dest)

    example = Template(f"{key} {row.get('example', '')}".strip()).substitute(BASES)
    whole = {name: row[name] for name in OF_RULE if name in row} | {"example": example}
    name = key.strip("-").replace("_", "-").replace(" ", "-")
    clauses = [f"{verb} {_options(row[kind])}" for kind, verb in _VERBS.items() if kind in row]
    return Rule(f"{name}-refused", "error", f"{key} {' and '.join(clauses)}", _WHY, check=check, **whole)


def _options(others: Any) -> str:
    """Return the names of the first three options, and how many more there are."""
    newest, dests = MegatronFacts(Namespace((), flags(versions()[-1]))), list(_by_dest(others))
    names = ", ".join(newest.option(dest) for dest in dests[:3])
    return names + (f" and {len(dests) - 3} more" if len(dests) > 3 else "")


def _by_dest(others: Any) -> Mapping[str, Any]:
    return others if isinstance(others, dict) else dict.fromkeys(others.split())


def _stated(flag: Flag, values: list[str], option: str) -> Any:
    """Return the condition under which the option counts as given (with this value, if any)."""
    if values:
        return values[0]
    return {"absent": False} if flag.kind == "store" else [parsed(flag, [], option)]


def _broken(facts: MegatronFacts, kind: str, dest: str, wanted: Any, owner: str) -> Iterator[Problem]:
    """Yield one problem if the option `dest` is on though excluded, off though needed, or fails the tests of its value.

    kind: "needs", "excludes" or "be". wanted: tests of its value, with optional `need` (a text), `since` (a version)
    and `if` (conditions). owner: the destination that has the rule. Raises NotKnown.
    """
    tests = dict(wanted) if isinstance(wanted, dict) else {"is" if kind == "be" else "need": wanted}
    need, since, others = (tests.pop(name, None) for name in ("need", "since", "if"))
    wrong = not LANGUAGE.holds(facts, {dest: tests}) if kind == "be" else absent(facts, dest) == (kind == "needs")
    if wrong and (since is None or facts.at_least(since)) and LANGUAGE.holds(facts, others or {}):
        setting, value = facts.names.setting(owner), facts[dest]
        there, switch = facts.names.given(dest), value is None or isinstance(value, bool)
        name = setting.spelled if setting is not None else facts.option(owner)
        missing = switch and not there
        yield facts.problem(
            f"is missing: {name} needs it" if missing else f"conflicts with {name}",
            dest,
            owner,
            got=None if switch else value if there else f"{value} by default",
            need=need or (str(tests["is"]) if kind == "be" else "it unset" if there else None),
            value=kind != "excludes",
        )


PAIRS = "megatron_pairs"
FILES = (
    "megatron_options", "megatron_grid", "megatron_layers", "megatron_sizes", "megatron_attention", "megatron_experts",
    "megatron_router", "megatron_switches", PAIRS, "megatron_training", "megatron_checkpoints", "megatron_recompute",
    "megatron_speed", "machine", "environment",
)  # fmt: skip
BY_FILE: Mapping[str, tuple[Rule[MegatronFacts], ...]] = {
    file: tuple(_rule(*row) for row in rows_of(file).items())
    if file == PAIRS
    else rules_of(file, LANGUAGE, vars(megatron_checks))
    for file in FILES
}
# GPUs, sequences and heads come whole, whichever program deals them out. Layers and vocabularies may be dealt unevenly.
UNDIVIDED = frozenset(("not-positive", "gpus-over-degrees", "batch-over-replicas", "heads-over-tp"))
DEALT = frozenset(("layers-over-stages", "layers-over-virtual-stages"))  # of what Megatron-Core itself deals out


def every() -> tuple[Rule[MegatronFacts], ...]:
    """Return all rules about Megatron-LM, those of the table of constraints last."""
    return (*(rule for rules in BY_FILE.values() for rule in rules), *of_constraints(LANGUAGE))


RULES = every()
# What holds whichever program reads the options: of what Megatron-LM's own parser refuses, values of another type.
MEANING = tuple(rule for rule in RULES if rule not in BY_FILE["megatron_options"] or rule.name == "refused-value")


def findings(facts: MegatronFacts, rules: Sequence[Rule[MegatronFacts]] | None = None) -> list[Finding]:
    """Return a finding for each problem of the rules that apply to the version, by line and column. rules: None: all.

    If the options are not those of a known release, errors become warnings, except of rules in UNDIVIDED, and in DEALT
    if Megatron-Core distributes the layers (`dealt`).
    """
    released = facts.released
    stay = UNDIVIDED | (DEALT if facts.dealt else frozenset())
    checked = [
        rule if released or rule.severity != "error" or rule.name in stay else replace(rule, severity="warning")
        for rule in (every() if rules is None else rules)
        if applies(rule, facts.version)
    ]
    return findings_of(checked, facts)


def applies(rule: Rule[MegatronFacts], version: str) -> bool:
    """Return whether the rule covers this version. Raises ValueError for a version that is not in the tables."""
    order = versions()
    since, until = rule.since or order[0], rule.until or order[-1]
    return order.index(since) <= order.index(version) <= order.index(until)

"""All rules about Megatron-LM, and what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from string import Template
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules import environment, megatron_checks, megatron_options
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_words import BASES, LANGUAGE, absent
from symconfig.existing.rules.refused import of_constraints
from symconfig.existing.rules.rule import OF_RULE, Finding, Row, Rule, rows_of, rules_of
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.constraints import EXPERT_BIAS
from symconfig.frameworks.megatron.flags import Flag, flags, parsed, versions

_WHY = "validate_args, the configuration that it fills, or the process groups assert it: nothing starts."

_VERBS = {"needs": "needs", "excludes": "excludes", "be": "restricts"}


def rules_of_pairs(file: str) -> tuple[Rule[MegatronFacts], ...]:
    """Return one rule for each row of a file of options that need or exclude other options."""
    return tuple(_rule(key, row) for key, row in rows_of(file).items())


def _rule(key: str, row: Row) -> Rule[MegatronFacts]:
    """Return the rule of an option, or of one of its values if `key` is "--option value"."""
    option, *values = key.split()
    newest = next(flags(version).flags[option] for version in reversed(versions()) if flags(version).known(option))

    def check(facts: MegatronFacts) -> Iterator[Problem]:
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
    """Yield a problem if the option `dest` is given, is missing, or has another value than its owner allows.

    kind: "needs", "excludes" or "be". wanted: tests of its value, with optional `need`, `since` and `if`. owner: the
    destination that has the rule.
    """
    tests = dict(wanted) if isinstance(wanted, dict) else {"is" if kind == "be" else "need": wanted}
    need, since, others = (tests.pop(name, None) for name in ("need", "since", "if"))
    wrong = not LANGUAGE.holds(facts, {dest: tests}) if kind == "be" else absent(facts, dest) == (kind == "needs")
    if wrong and (since is None or facts.at_least(since)) and LANGUAGE.holds(facts, others or {}):
        setting, value = facts.names.setting(owner), facts[dest]
        there, switch = facts.names.given(dest), value is None or isinstance(value, bool)
        yield facts.problem(
            f"{'is missing beside' if switch and not there else 'does not go with'} "
            f"{setting.spelled if setting is not None else facts.option(owner)}",
            dest,
            owner,
            got=None if switch else value if there else f"{value} by default",
            need=need or (str(tests["is"]) if kind == "be" else "it absent" if there else "it"),
            value=kind != "excludes",
        )


PAIRS = "megatron_pairs"
FILES = (
    "megatron_options",
    "megatron_grid",
    "megatron_layers",
    "megatron_sizes",
    "megatron_attention",
    "megatron_experts",
    "megatron_router",
    "megatron_switches",
    PAIRS,
    "megatron_training",
    "megatron_checkpoints",
    "megatron_recompute",
    "megatron_speed",
    "machine",
    "environment",
)
CHECKS = {**vars(environment), **vars(megatron_checks), **vars(megatron_options)}
BY_FILE: Mapping[str, tuple[Rule[MegatronFacts], ...]] = {
    file: rules_of_pairs(file) if file == PAIRS else rules_of(file, LANGUAGE, CHECKS) for file in FILES
}
# GPUs, sequences and heads come whole, whichever program deals them out. Layers and vocabularies may be dealt unevenly.
UNDIVIDED = frozenset(("not-positive", "gpus-over-degrees", "batch-over-replicas", "heads-over-tp"))
DEALT = frozenset(("layers-over-stages", "layers-over-virtual-stages"))  # of what Megatron-Core itself deals out
# A constraint that is one case of a rule that has others, which it asks for by itself.
REASONS: Mapping[Constraint, str] = {EXPERT_BIAS: "biases-of-experts"}


def every() -> tuple[Rule[MegatronFacts], ...]:
    """Return all rules about Megatron-LM, those of the table of constraints last."""
    return (*(rule for rules in BY_FILE.values() for rule in rules), *of_constraints(REASONS))


RULES = every()
# What holds whichever program reads the options: of what Megatron-LM's own parser refuses, values of another type.
MEANING = tuple(rule for rule in RULES if rule not in BY_FILE["megatron_options"] or rule.name == "refused-value")


def findings(facts: MegatronFacts, rules: Sequence[Rule[MegatronFacts]] | None = None) -> list[Finding]:
    """Return a finding for each broken rule that applies to the version, in the order of the file. rules: None: all.

    Errors become warnings for a fork or an older release, which may accept more, but for divisibility.
    """
    released = facts.released
    broken_rules = [
        Finding(rule.name, "warning" if rule.severity == "error" and not stays else rule.severity, problem)
        for rule in (every() if rules is None else rules)
        if applies(rule, facts.version)
        for stays in (released or rule.name in UNDIVIDED or (facts.dealt and rule.name in DEALT),)
        for problem in broken(rule, facts)
    ]
    return sorted(broken_rules, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))


def applies(rule: Rule[MegatronFacts], version: str) -> bool:
    """Return whether the rule covers this version. Raises ValueError for a version that is not in the tables."""
    order = versions()
    since, until = rule.since or order[0], rule.until or order[-1]
    return order.index(since) <= order.index(version) <= order.index(until)


def broken(rule: Rule[MegatronFacts], facts: MegatronFacts) -> Iterator[Problem]:
    """Yield the rule's problems; the check ends silently at the first fact that is not known."""
    try:
        yield from rule.check(facts)
    except NotKnown:
        return

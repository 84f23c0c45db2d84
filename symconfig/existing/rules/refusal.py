"""Options that Megatron-LM refuses for what stands beside them, or does not: such a rule is a table of reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.rule import Check
from symconfig.frameworks.megatron.flags import Value

Asks: TypeAlias = Callable[[MegatronFacts], bool]


@dataclass(frozen=True, slots=True)
class Reason:
    """Another option, by its destination, that must be otherwise.

    wrong: whether it is. need: what it must be; by default that it is there, or not. value: of a switch that must be
    there, what it sets. since: the first version that refuses it; None: all that the rule holds for.
    """

    dest: str
    wrong: Asks
    need: str | None = None
    value: Value = True
    since: str | None = None


def on(dest: str) -> Asks:
    return lambda facts: facts.on(dest)


def absent(dest: str) -> Asks:
    """Return the check that a switch is off, or an option has no value."""
    return lambda facts: facts.value(dest) in (None, False, ())


def present(dest: str) -> Asks:
    return lambda facts: not absent(dest)(facts)


def unset(dest: str) -> Asks:
    """Return the check that an option has no value, not even an empty one."""
    return lambda facts: facts.value(dest) is None


def both(first: Asks, second: Asks) -> Asks:
    return lambda facts: first(facts) and second(facts)


def equal(dest: str, value: Value) -> Asks:
    return lambda facts: facts.value(dest) == value


def other_than(dest: str, *values: Value) -> Asks:
    return lambda facts: facts.value(dest) not in values


def refuses(owner: str, *reasons: Reason, where: Asks | None = None) -> Check[MegatronFacts]:
    """Return the check of an option, by its destination. where: what it takes to be refused; by default that it is
    there.
    """
    condition = present(owner) if where is None else where

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        if condition(facts):
            for reason in reasons:
                if reason.since is None or facts.at_least(reason.since):
                    yield from _refusal(facts, owner, reason)

    return check


def together(*checks: Check[MegatronFacts]) -> Check[MegatronFacts]:
    """Make one rule of several options: what is not known of one is no matter to another."""

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        for each in checks:
            yield from _known(each, facts)

    return check


def _known(check: Check[MegatronFacts], facts: MegatronFacts) -> Iterator[Problem]:
    try:
        yield from check(facts)
    except NotKnown:
        return


def _refusal(facts: MegatronFacts, owner: str, reason: Reason) -> Iterator[Problem]:
    """Yield a refusal at the other option, or where it is missing at the owner."""
    try:
        if not reason.wrong(facts):
            return
        value = facts.value(reason.dest)
    except NotKnown:
        return
    setting = facts.names.setting(owner)
    named = setting.spelled if setting is not None else facts.option(owner)
    there, switch = facts.names.given(reason.dest), value is None or isinstance(value, bool)
    what = f"does not go with {named}" if there or not switch else f"is missing beside {named}"
    got = None if switch else str(value) if there else f"{value} by default"
    need = reason.need or ("it absent" if there else "it")
    yield facts.problem(what, reason.dest, owner, got=got, need=need, value=reason.value)

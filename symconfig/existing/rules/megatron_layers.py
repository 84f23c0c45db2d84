"""How layers are dealt out over pipeline stages: several ways of saying it lose or double some without a word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.errors import Problem
from symconfig.existing.recover.mixers import spelled
from symconfig.existing.rules.facts import (
    ACCOUNTS,
    CHUNKS,
    FIRST,
    LAST,
    LAYOUT,
    PER_CHUNK,
    MegatronFacts,
    NotKnown,
    undivided,
)
from symconfig.existing.rules.megatron_checks import PP, divides
from symconfig.frameworks.megatron.hybrid import STAGE
from symconfig.plans import pipeline_layout

WAYS = ((FIRST, LAST), ACCOUNTS, (LAYOUT,))


def _way(facts: MegatronFacts) -> tuple[str, ...]:
    """Return the one way in which the stages are said; () for equal shares. NotKnown where there are several, which has
    a rule of its own.
    """
    ways = [way for way in WAYS if any(facts[dest] for dest in way)]
    if len(ways) > 1:
        raise NotKnown
    return ways[0] if ways else ()


def _ends(facts: MegatronFacts) -> dict[str, int]:
    return {dest: value for dest in (FIRST, LAST) if (value := facts.maybe(dest)) is not None}


def _named(facts: MegatronFacts, dests: tuple[str, ...] | dict[str, int]) -> str:
    settings = (facts.names.setting(dest) for dest in dests)
    return " ".join(setting.spelled for setting in settings if setting is not None)


def stages_said_twice(facts: MegatronFacts) -> Iterator[Problem]:
    ways = [way for way in WAYS if any(facts[dest] for dest in way)]
    if len(ways) > 1:
        given = tuple(dest for way in ways for dest in way if facts[dest])
        yield facts.problem("say the stages in several ways", given[0], field=_named(facts, given), need="one of them")


def layers_over_stages(facts: MegatronFacts) -> Iterator[Problem]:
    if STAGE in spelled(facts.names):
        return  # a pattern says the stages itself
    if _way(facts) in ((), ACCOUNTS):
        for each in divides(facts, "the layers", "num_layers", _counted(facts), by=facts.pp, named="pp", related=(PP,)):
            yield replace(each, hint=_evened(facts))


def _evened(facts: MegatronFacts) -> str | None:
    """Return the options with which embedding and loss, as layers of their own, make the stages even."""
    layers = facts.number("num_layers")
    for ends in (ACCOUNTS, ACCOUNTS[:1], ACCOUNTS[1:]):
        if not undivided(layers + len(ends), facts.pp) and facts.pp > 1:
            return " ".join(facts.option(dest) for dest in ends)
    return None


def _counted(facts: MegatronFacts) -> int:
    """Return the layers, and what counts as one."""
    return facts.number("num_layers") + sum(facts.on(dest) for dest in ACCOUNTS)


def layers_over_virtual_stages(facts: MegatronFacts) -> Iterator[Problem]:
    if _way(facts) not in ((), ACCOUNTS):
        return
    held = _counted(facts) // facts.pp
    if (per_chunk := facts.maybe(PER_CHUNK)) is not None:
        yield from divides(
            facts, "a stage's layers", PER_CHUNK, held, by=per_chunk, named="the layers of a virtual stage"
        )
    elif (virtual := facts.maybe(CHUNKS) or 1) > 1:
        yield from divides(facts, "a stage's layers", CHUNKS, held, by=virtual, named="vpp")


def uneven_stages(facts: MegatronFacts) -> Iterator[Problem]:
    ends = _ends(facts)
    if not ends or _way(facts) != (FIRST, LAST):
        return
    layers = facts.number("num_layers")
    left, stages = layers - sum(ends.values()), facts.pp - len(ends)
    if stages < 0 or left < 0 or (stages == 0 and left) or (stages > 0 and (left % stages or not left)):
        yield facts.problem(
            "the stages do not hold all layers",
            next(iter(ends)),
            field=_named(facts, ends),
            got=" + ".join(map(str, ends.values())),
            need=f"what leaves an equal share of {layers} layers to each of {max(stages, 0)} stages between",
        )


def uneven_virtual_stages(facts: MegatronFacts) -> Iterator[Problem]:
    ends, virtual = _ends(facts), facts.maybe(CHUNKS) or 1
    if not ends or virtual < 2 or _way(facts) != (FIRST, LAST):
        return
    left, stages = facts.number("num_layers") - sum(ends.values()), facts.pp - len(ends)
    if stages > 0 and left > 0 and not left % stages:
        yield from divides(
            facts,
            "a stage's layers",
            next(iter(ends)),
            left // stages,
            by=virtual,
            named="vpp",
            field=_named(facts, ends),
        )
    for dest, value in ends.items():
        yield from divides(facts, "a stage's layers", dest, value, by=virtual, named="vpp")


def layers_of_layout(facts: MegatronFacts) -> Iterator[Problem]:
    layout = facts.text(LAYOUT)
    if layout is None:
        return
    for problem in pipeline_layout.problems(
        layout, facts.number("num_layers"), facts.maybe("mtp_num_layers") or 0, facts.option(LAYOUT)
    ):
        yield facts.problem(problem.what, LAYOUT, got=problem.got, need=problem.need, hint=problem.hint)

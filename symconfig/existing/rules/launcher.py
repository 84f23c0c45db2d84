"""Rules about what starts the program: how many processes, on which GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import World
from symconfig.existing.launch.text import Text
from symconfig.existing.rules.rule import TEXTS, Language, rules_of


@dataclass(frozen=True, slots=True)
class LauncherFacts:
    """What rules may ask of a launcher.

    world: its numbers of nodes and GPUs. gpus: the number that the user states. gpus_per_node: of the cluster; None if
    not known. scripts: the bash files.
    """

    world: World
    gpus: int | None = None
    gpus_per_node: int | None = None
    scripts: tuple[Text, ...] = ()


def carriage_returns(facts: LauncherFacts) -> Iterator[Problem]:
    for text in facts.scripts:
        if b"\r\n" in text.data:
            place = text.place(text.data.index(b"\r\n"), text.data.index(b"\r\n") + 2)
            what, fix = "ends its lines in CR LF, of which bash passes the CR on", f"dos2unix {text.file}"
            yield place.problem(what, field="the script", hint=fix)


VALUES: Mapping[str, Callable[[LauncherFacts], Any]] = {
    "gpus": lambda facts: facts.gpus,
    "gpus_per_node": lambda facts: facts.gpus_per_node,
    "started": lambda facts: facts.world.gpus,
    "started_per_node": lambda facts: facts.world.gpus_per_node,
    "nodes": lambda facts: facts.world.nodes,
}


def _problem(facts: LauncherFacts, about: list[str], what: str, **more: Any) -> Problem:
    return Problem(what, field=" ".join(about), **{key: more[key] for key in TEXTS if key in more})


LANGUAGE: Language[LauncherFacts] = Language(lambda facts, name: VALUES[name](facts), _problem, {})
RULES = rules_of("launcher", LANGUAGE, globals())

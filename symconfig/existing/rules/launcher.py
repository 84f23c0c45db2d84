"""Rules about what starts the program: how many processes, on which GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.errors import Problem
from symconfig.existing.launch.text import Text
from symconfig.existing.rules.rule import Language, rules_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """What rules may ask of a launcher.

    started, started_per_node, nodes: GPUs and nodes that it starts. gpus: the number that the user states.
    gpus_per_node: of the cluster; None if not known. scripts: the bash files.
    """

    started: int | None
    started_per_node: int | None
    nodes: int | None
    gpus: int | None
    gpus_per_node: int | None
    scripts: tuple[Text, ...]


def carriage_returns(facts: LauncherFacts) -> Iterator[Problem]:
    for text in facts.scripts:
        if b"\r\n" in text.data:
            place = text.place(text.data.index(b"\r\n"), text.data.index(b"\r\n") + 2)
            what, fix = "ends its lines in CR LF, of which bash passes the CR on", f"dos2unix {text.file}"
            yield place.problem(what, field="the script", hint=fix)


LANGUAGE: Language[LauncherFacts] = Language(
    getattr, lambda facts, about, texts, row: Problem(field=" ".join(about), **texts), {}
)
RULES = rules_of("launcher", LANGUAGE, globals())

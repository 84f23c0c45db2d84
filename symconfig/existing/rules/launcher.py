"""Rules about what starts the program: how many processes, on which GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading
from symconfig.existing.rules.rule import Finding, Language, findings, rules_of

Facts = Mapping[str, Any]  # what rows name; `scripts` are the bash files


def carriage_returns(facts: Facts) -> Iterator[Problem]:
    for text in facts["scripts"]:
        if b"\r\n" in text.data:
            place = text.place(text.data.index(b"\r\n"), text.data.index(b"\r\n") + 2)
            what, fix = "ends its lines in CR LF, of which bash passes the CR on", f"dos2unix {text.file}"
            yield place.problem(what, field="the script", hint=fix)


LANGUAGE: Language[Facts] = Language(
    lambda facts, name: facts[name], lambda facts, about, texts, row: Problem(field=" ".join(about), **texts), {}
)
RULES = rules_of("launcher", LANGUAGE, globals())


def broken(reading: Reading, gpus: int | None, gpus_per_node: int | None) -> list[Finding]:
    """Return a finding for each rule that the launcher breaks, at its first word that gives a number of GPUs, else at
    the program.

    gpus: the number that the user states. gpus_per_node: of the user's cluster. None: not known.
    """
    config = reading.deepspeed.text if reading.deepspeed is not None else None
    facts = {
        "started": reading.world.gpus,
        "started_per_node": reading.world.gpus_per_node,
        "nodes": reading.world.nodes,
        "gpus": gpus,
        "gpus_per_node": gpus_per_node,
        "scripts": [text for text in reading.texts if text != config] if reading.format == "bash" else [],
    }
    place = next((word.place for word in reading.world.words), None)
    return findings(RULES, facts, place or (reading.program.place if reading.program is not None else None))

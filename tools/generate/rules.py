"""Every rule of `symconfig audit`, with what it says on its example, into docs/rules.md: `python docs/rules.py`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from written import fill, table

sys.path.insert(0, str(Path(__file__).parents[1]))

from symconfig.existing.audit.catalogue import GROUPS, LAUNCHER, PHASES, PREDICTION, RL
from symconfig.existing.rules import deepspeed, megatron
from symconfig.existing.rules.catalogue import SEVERITIES, Group
from symconfig.existing.rules.rule import BASE, Finding, Rule
from symconfig.runs.rl.stated import completed
from tests.existing.audit import examples as audited
from tests.existing.rules import examples

PAGE = Path(__file__).with_suffix(".md")


def findings(framework: str, rule: Rule[Any]) -> list[Finding]:
    """What is said on the rule's example."""
    if framework in (LAUNCHER.framework, PREDICTION.framework, RL.framework, PHASES.framework):
        return audited.findings(rule, completed)
    if framework == "DeepSpeed":
        found = deepspeed.findings(examples.deepspeed_facts(rule))
    else:
        found = megatron.findings(examples.megatron_facts(rule))
    return [finding for finding in found if finding.rule == rule.name]


def parts() -> dict[str, str]:
    """Return the severities, the options before each example of Megatron-LM's, and the rules of each group."""
    return {
        "severities": "\n".join(f"- **{name}**: {meaning}" for name, meaning in SEVERITIES.items()),
        "base": "```\n{}\n```".format(" \\\n".join(_wrapped(BASE, 100))),
        **{group.framework: "\n".join(_group(group)) for group in GROUPS},
    }


def _group(group: Group) -> Iterator[str]:
    rows = ((f"[{rule.name}](#{rule.name})", rule.severity, rule.title) for rule in group.rules)
    yield table(("rule", "", "what is wrong"), rows)
    for rule in group.rules:
        yield from _section(group.framework, rule)


def _section(framework: str, rule: Rule[Any]) -> Iterator[str]:
    yield f"### {rule.name}"
    yield ""
    yield f"{rule.title} ({', '.join(_facts(rule))})."
    yield ""
    yield rule.why
    yield ""
    yield "```"
    yield from (f"{name}={value}" for name, value in (rule.environment or {}).items())
    yield from (line for given in rule.example.splitlines() for line in _wrapped(given, 110))
    yield "```"
    yield ""
    yield "\n>\n".join(f"> {finding.problem}" for finding in findings(framework, rule))
    yield ""


def _facts(rule: Rule[Any]) -> Iterator[str]:
    yield rule.severity
    if rule.since or rule.until:
        yield f"{rule.since or 'all releases'} to {rule.until or 'today'}"
    if rule.gpus != 8 or rule.architecture:
        yield " ".join(("on", str(rule.gpus), *([rule.architecture] if rule.architecture else []), "GPUs"))


def _wrapped(text: str, width: int) -> list[str]:
    """Options over lines, none cut from its values; a JSON stays as it is."""
    if not text.startswith(("-", "python3 ")):
        return [text]
    lines: list[str] = []
    for option in re.sub(r" (--|[a-z_.]+=)", r"\n\1", text).split("\n"):
        if lines and len(lines[-1]) + len(option) < width:
            lines[-1] += " " + option
        else:
            lines.append(option)
    return lines


if __name__ == "__main__":
    fill(PAGE, parts())

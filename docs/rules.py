"""Every rule of `symconfig audit`, with what it says on its example, into docs/rules.md: `python docs/rules.py`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from symconfig.existing.audit.catalogue import GROUPS, LAUNCHER, PHASES, PREDICTION, RL
from symconfig.existing.rules import deepspeed, megatron
from symconfig.existing.rules.catalogue import SEVERITIES, Group
from symconfig.existing.rules.rule import BASE, Finding, Rule
from symconfig.runs.rl.stated import completed
from tests.existing.audit import examples as audited
from tests.existing.rules import examples

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# What can be wrong in a launch

`symconfig audit` asks every rule below, and names each that is broken with the line and column where it is. A rule that
needs what the configuration does not say (a value that depends on the machine, the number of GPUs, a part of the script
that was not understood) finds nothing: no finding is a guess. A rule that names no release holds for all that are known
here: core_v0.11 to core_v0.19 and dev of Megatron-LM, 0.19.8 of DeepSpeed. This page is written by `make rules`.
"""
MEGATRON = """Each example stands behind these options, unless it says them itself, on 8 Hopper GPUs of a node:

```
{base}
```

A launch with options that no release has is a fork's, or an older release's, which may take what is refused here:
unless `--megatron-version` is given, its errors are warnings. Nearly all errors are refused by core_v0.19's own parser
and config classes, which the tests ask; the others show when the model is built, in the first step, or never, and the
rule says which.
"""
INTROS = {
    "DeepSpeed": """Each example is a DeepSpeed JSON; a line before it is the command that is given it.
""",
    LAUNCHER.framework: """Each example stands before the options of Megatron-LM's, on nodes of 8 GPUs; the GPUs of the
rule are those of `--gpus`.
""",
    PREDICTION.framework: """Each example is audited for H100 GPUs of 80 GB, and needs a cluster to be found.
""",
    RL.framework: """Scripts of verl 0.9.1, slime as of August 2026, OpenRLHF 0.8 to 0.11.2, TRL 1.16, LLaMA-Factory
0.9.5, ms-swift 4.6 and NeMo-RL 0.7; what they leave out has the trainer's default. Of rules about Megatron-LM those
hold here, too, that its workers do not make false.
""",
    PHASES.framework: """Each example is a script of verl for 8 H100 GPUs of 80 GB, and needs a cluster to be found.
""",
}


def findings(framework: str, rule: Rule[Any]) -> list[Finding]:
    """What is said on the rule's example."""
    if framework in (LAUNCHER.framework, PREDICTION.framework, RL.framework, PHASES.framework):
        return audited.findings(rule, completed)
    if framework == "DeepSpeed":
        found = deepspeed.findings(examples.deepspeed_facts(rule))
    else:
        found = megatron.findings(examples.megatron_facts(rule))
    return [finding for finding in found if finding.rule == rule.name]


def markdown() -> str:
    """The page."""
    severities = [f"- **{name}**: {meaning}" for name, meaning in SEVERITIES.items()]
    parts = [INTRO, *severities, ""]
    for group in GROUPS:
        parts += [f"## {group.framework}", "", _intro(group), *_table(group), ""]
        for rule in group.rules:
            parts += _section(group.framework, rule)
    return "\n".join(parts).rstrip() + "\n"


def _intro(group: Group) -> str:
    if group.framework in INTROS:
        return INTROS[group.framework]
    return MEGATRON.format(base=" \\\n".join(_wrapped(BASE, 100)))


def _table(group: Group) -> Iterator[str]:
    yield "| rule | | what is wrong |"
    yield "|---|---|---|"
    for rule in group.rules:
        yield f"| [{rule.name}](#{rule.name}) | {rule.severity} | {rule.title} |"


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
    PAGE.write_text(markdown(), encoding="utf-8")
    print(f"{PAGE.name}: {sum(len(group.rules) for group in GROUPS)} rules")

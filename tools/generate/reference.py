"""Tables of docs/reference: rules, options, launchers, models and rates. A function returns the parts of its page."""

from __future__ import annotations

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.keys import FILE as CLASS_DEFAULTS
from symconfig.descriptor.learning_rate import habits
from symconfig.descriptor.training import Training
from symconfig.existing.audit import judge
from symconfig.existing.rules import deepspeed, launcher, megatron, rl
from symconfig.existing.rules.rule import BASE, Finding, Rule
from symconfig.existing.rules.rule import findings as found_by
from symconfig.frameworks.backend import Backend, Maturity, Option
from symconfig.frameworks.known import BACKENDS
from symconfig.render import every_launcher, targets
from symconfig.render.target import Target
from symconfig.runs.rl.stated import completed
from tests.existing.audit import examples as audited
from tests.existing.rules import examples
from tools.families import COLUMNS, READ_AS, Family, cells, every, reason
from tools.pages import table

# --- rules ------------------------------------------------------------------------------------------------------------

OF_FRAMEWORKS: Mapping[str, tuple[Rule[Any], ...]] = {"Megatron-LM": megatron.RULES, "DeepSpeed": deepspeed.RULES}
GROUPS: Mapping[str, tuple[Rule[Any], ...]] = {
    **OF_FRAMEWORKS,
    "Reinforcement learning": rl.RULES,
    "The launcher": launcher.RULES,
    "What is predicted": judge.MEMORY,
    "The phases of a step": judge.PHASES,
}
SEVERITIES: Mapping[str, str] = {
    "error": "it does not start, fails in the first step, or trains something else",
    "warning": "it is slower, larger or other than it seems",
    "note": "worth knowing",
}


def findings(framework: str, rule: Rule[Any]) -> list[Finding]:
    """What is said on the rule's example."""
    if framework not in OF_FRAMEWORKS:
        return audited.findings(rule, completed)
    if framework == "DeepSpeed":
        found = found_by(deepspeed.RULES, examples.deepspeed_facts(rule))
    else:
        found = megatron.findings(examples.megatron_facts(rule))
    return [finding for finding in found if finding.rule == rule.name]


def rules() -> dict[str, str]:
    """Return the severities, the options before each example of Megatron-LM's, and the rules of each group."""
    return {
        "severities": "\n".join(f"- **{name}**: {meaning}" for name, meaning in SEVERITIES.items()),
        "base": "```\n{}\n```".format(" \\\n".join(_wrapped(BASE, 100))),
        **{framework: "\n".join(_rule_group(framework)) for framework in GROUPS},
    }


def _rule_group(framework: str) -> Iterator[str]:
    rows = ((f"[{rule.name}](#{rule.name})", rule.severity, rule.title) for rule in GROUPS[framework])
    yield table(("rule", "", "what is wrong"), rows)
    for rule in GROUPS[framework]:
        yield from _rule_section(framework, rule)


def _rule_section(framework: str, rule: Rule[Any]) -> Iterator[str]:
    yield f"### {rule.name}"
    yield ""
    yield f"{rule.title} ({', '.join(_rule_facts(rule))})."
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


def _rule_facts(rule: Rule[Any]) -> Iterator[str]:
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


# --- options ----------------------------------------------------------------------------------------------------------


def options() -> dict[str, str]:
    """Return the order in which options are opened, and the options of each framework."""
    return {
        "order": "\n".join(f"- **{kind}**" for kind in Maturity),
        "options": "\n".join(line for backend in BACKENDS.values() for line in _options_of(backend)),
    }


def _options_of(backend: Backend) -> Iterator[str]:
    yield f"# {backend.label}\n"
    for option in backend.options:
        yield from _option(option)


def _option(option: Option) -> Iterator[str]:
    yield f"## {option.name}\n"
    yield f"{option.label[0].upper()}{option.label[1:]}.\n"
    if option.maturity is not None:
        yield f"- **{option.maturity}**{_releases(option)}: {option.why} ({option.source})"
    for need in option.needs:
        wants = [f"the Python module `{need.module}`"] if need.module else []
        wants += [f"`{name}={value}`" for name, value in need.environment.items()]
        yield f"- needs {', '.join(wants)}: {need.why}; {need.hint}"
    if option.maturity or option.needs:
        yield ""


def _releases(option: Option) -> str:
    if option.since and option.until:
        return f", {option.since} to {option.until}"
    if option.since:
        return f", since {option.since}"
    return f", up to {option.until}" if option.until else ""


# --- launchers --------------------------------------------------------------------------------------------------------


def launchers() -> dict[str, str]:
    """Return what each launcher writes, with its settings."""
    return {source.name: _launcher(source) for source in every_launcher().values()}


def _launcher(source: Target) -> str:
    rows = (
        (f"`{one.name}`", one.does, f"`{one.default}`" if one.default is not None else "") for one in source.settings
    )
    settings = "\n" + table(("setting", "is", "default"), rows) if source.settings else ""
    return f"Writes {source.does}.\n{settings}"


# --- models -----------------------------------------------------------------------------------------------------------


def models() -> dict[str, str]:
    """Return the tables of families that are read, of what is in the way, and of those refused.

    The import reads the default model of a family's class, and each target is asked what it supports of a plan of
    that model, before any search.
    """
    families = every()
    version = json.loads(CLASS_DEFAULTS.read_text(encoding="utf-8"))["version"]
    read = [one for one in families if one.model is not None]
    head = ("family", *COLUMNS)
    return {
        "version": version,
        "counts": f"{len(read)} of {len(families)}",
        "cells": textwrap.fill(READ_AS, 120),
        "families": table(head, ((f"`{one.name}`", *cells(one)) for one in read)),
        "ways": table(("what a target cannot be told", "target", "families"), _ways(read)),
        "refused": table(("family", "why"), ((f"`{one.name}`", reason(one)) for one in families if one.model is None)),
    }


def _ways(families: Sequence[Family]) -> Iterator[tuple[str, str, str]]:
    """Yield a line for each reason, with the kinds of target and the families that it is a reason for."""
    ways: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in families:
        for column, names in COLUMNS.items():
            for problem in one.cannot.get(names[0], ()):
                hand = " (by hand)" if problem.edit else ""
                ways[f"{problem.field}: {problem.what}{hand}"][column].append(f"`{one.name}`")
    for what, columns in sorted(ways.items(), key=lambda way: (-sum(map(len, way[1].values())), way[0])):
        alike: dict[str, list[str]] = defaultdict(list)
        for column, names in columns.items():
            alike[", ".join(names)].append(column)
        for names, among in alike.items():
            yield what, ", ".join(among), names


# --- rates ------------------------------------------------------------------------------------------------------------


def rates() -> dict[str, str]:
    """Return the fields of `training`, the published rates, and what targets are not told."""
    return {
        "fields": table(("field", "default", "is"), _training_fields()),
        "rates": "\n".join(_usual_rates()),
        "untold": table(("target", "fields", "why"), _unsaid()),
    }


def _training_fields() -> Iterator[tuple[str, ...]]:
    for name, field in Training.model_fields.items():
        if name != "derived":
            shown = "" if field.default in (None, ()) else f"`{field.default}`"
            yield f"`{name}`", shown, field.description or ""


def _usual_rates() -> Iterator[str]:
    for task, habit in habits().items():
        rows = ((f"{row.parameters / 1e9:g}B", f"{row.lr:g}", row.source) for row in habit.rates)
        most = "" if habit.most_warmup is None else f", at most {habit.most_warmup:,} iterations"
        lowest = f"{habit.floor:g} x `lr`" if habit.floor else "0"
        yield f"""### {task}: {habit.name}

`min_lr` is {lowest}, the warm-up {100 * habit.warmup:g} % of the decay{most}, the weight decay {habit.weight_decay:g}.
From {habit.source}.

{table(("parameters", "lr", "source"), rows)}"""


def _unsaid() -> Iterator[tuple[str, ...]]:
    for name, target in targets().items():
        why: dict[str, list[str]] = {}
        for field, why_not in target.ignored_fields.items():
            why.setdefault(why_not, []).append(f"`{field}`")
        for why_not, fields in why.items():
            yield name, ", ".join(fields), why_not

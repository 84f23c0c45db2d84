"""What loads where, by the rules and by what the real frameworks did, into docs/checkpoints.md:
`python docs/checkpoints.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from written import fill, table

from symconfig.runs.checkpoint.changes import FACTS
from symconfig.runs.checkpoint.table import Rule
from symconfig.runs.checkpoint.table import table as rules

PAGE = Path(__file__).with_suffix(".md")
SEEN = Path(__file__).parents[1] / "tests" / "runs" / "checkpoint" / "seen.json"


def parts() -> dict[str, str]:
    """Return the tables of kinds and cases, and the rules."""
    seen: dict[str, Any] = json.loads(SEEN.read_text(encoding="utf-8"))
    cases = ((name, f"`{case['kind']}`", case["verdict"], _said(case["refused"])) for name, case in seen.items())
    return {
        "kinds": table(("kind", "of", "what it is"), _kinds()),
        "count": str(len(seen)),
        "seen": table(("case", "kind", "answer", "without help the framework says"), cases),
        "rules": "\n".join(line for rule in rules().rules for line in _rule(rule)),
    }


def _kinds() -> Iterator[tuple[str, ...]]:
    for name, entry in rules().formats.items():
        ways = f" Its optimizer: {', '.join(f'`{way}`' for way in entry.optimizer)}." if entry.optimizer else ""
        yield f"`{name}`", ", ".join(entry.framework), f"{entry.does}.{ways}"


def _said(text: str) -> str:
    """The start of what the framework said, in one line."""
    words = " ".join(text.split())
    short = words if len(words) <= 150 else f"{words[:70].rstrip()} … {words[-70:].lstrip()}"
    return f"`{short.replace('`', '')}`" if short else "it loads"


def _rule(rule: Rule) -> Iterator[str]:
    otherwise = f" (else {rule.otherwise})" if rule.otherwise else ""
    yield f"### {rule.name}: {rule.verdict}{otherwise}"
    yield ""
    yield f"{_capital(rule.says.replace(': {changed}', ''))}."
    yield ""
    yield f"- of {', '.join(f'`{name}`' for name in rule.formats)}{_optimizer(rule)}"
    for what, since, until in (
        ("written by", rule.written_since, rule.written_until),
        ("read by", rule.read_since, rule.read_until),
    ):
        if since or until:
            yield f"- {what} {since or 'the first'} to {until or 'the last'}"
    for what, names in (("when one of these", rule.any_of), ("with", rule.all_of), ("without", rule.none_of)):
        if names:
            yield f"- {what}: {'; '.join(FACTS[name].does for name in names)}"
    for name in rule.how:
        if (conversion := rules().conversions.get(name)) is not None:
            for row in conversion.rows:
                yield f"- {'old run' if row.run == 'old' else 'between'}: `{_capitals(row.words)}`"
        else:
            yield f"- new run: `{_capitals(rules().tells[name].words)}`"
    if made := [rules().conversions[name].makes for name in rule.how if name in rules().conversions]:
        place = rules().conversions[rule.how[-1]].at
        yield f"- new run: `{rules().loads[made[-1]].words.replace('<<from>>', place)}`"
    if rule.across:
        yield "- also between the frameworks"
    if rule.lost:
        yield f"- starts anew: {'; '.join(rules().lost[name] for name in rule.lost)}"
    yield f"- source: {rule.source}" + (f"; *seen*: {rule.seen}" if rule.seen else "")
    yield ""


def _capitals(words: str) -> str:
    return words.replace("<<from>>", "CHECKPOINT")


def _optimizer(rule: Rule) -> str:
    return f" with the optimizer as {', '.join(f'`{name}`' for name in rule.optimizer)}" if rule.optimizer else ""


def _capital(text: str) -> str:
    return text if text[:10].startswith(("torch", "train.py")) else text[:1].upper() + text[1:]


if __name__ == "__main__":
    fill(PAGE, parts())

"""What a job says of its run, and the rates of what it leaves open, into docs/rates.md: `python docs/rates.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from written import fill, table

from symconfig.descriptor.learning_rate import USUAL
from symconfig.descriptor.training import Training
from symconfig.render import targets

PAGE = Path(__file__).with_suffix(".md")


def parts() -> dict[str, str]:
    """Return the fields of `training`, the published rates, and what targets are not told."""
    return {
        "fields": table(("field", "default", "is"), _fields()),
        "rates": "\n".join(_habits()),
        "untold": table(("target", "fields", "why"), _untold()),
    }


def _fields() -> Iterator[tuple[str, ...]]:
    for name, field in Training.model_fields.items():
        if name != "derived":
            shown = "" if field.default in (None, ()) else f"`{field.default}`"
            yield f"`{name}`", shown, field.description or ""


def _habits() -> Iterator[str]:
    for task, habit in USUAL.items():
        rows = ((f"{row.parameters / 1e9:g}B", f"{row.lr:g}", row.source) for row in habit.rates)
        most = "" if habit.most_warmup is None else f", at most {habit.most_warmup:,} iterations"
        lowest = f"{habit.floor:g} x `lr`" if habit.floor else "0"
        yield f"""### {task}: {habit.name}

`min_lr` is {lowest}, the warm-up {100 * habit.warmup:g} % of the decay{most}, the weight decay {habit.weight_decay:g}.
From {habit.source}.

{table(("parameters", "lr", "source"), rows)}"""


def _untold() -> Iterator[tuple[str, ...]]:
    for name, target in targets().items():
        why: dict[str, list[str]] = {}
        for field, reason in target.unsaid.items():
            why.setdefault(reason, []).append(f"`{field}`")
        for reason, fields in why.items():
            yield name, ", ".join(fields), reason


if __name__ == "__main__":
    fill(PAGE, parts())

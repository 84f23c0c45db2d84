"""What a job says of its run, and the rates of what it leaves open, into docs/rates.md: `python docs/rates.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from symconfig.descriptor.learning_rate import USUAL
from symconfig.descriptor.training import Training
from symconfig.render import targets

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# What a job says of its run

The section `training` of a job is passed on: no plan depends on it. Of its fields six are options, too: `--save`,
`--load`, `--data-path`, `--tokenizer`, `--train-iters` and `--lr`.

    symconfig plan --model llama3.1-8b --cluster h100 --gpus 8 --global-batch-size 64 --task sft --out run \\
      --load weights --save checkpoints --data-path 0.7 web_text_document 0.3 code_text_document --train-iters 2000

`plan --out` ends with the rates that it chose, with what the target cannot be told, and where no checkpoint is written
with how to change that. REPORT.md says the same with the sources, and plan.json records the values: a plan that is made
again for the same run keeps them, and derives them anew for another model or task.
"""
CHOSEN = """## Rates that are left open

A learning rate is the published one of the task and size. Between two sizes it lies on the straight line through both,
in the logarithms of size and rate, beyond the ends it is theirs. The size is the number of parameters that work on a
token, without adapters. A batch changes no rate.
"""
UNTOLD = """## What a target is not told

A field that is set and not passed on is named in REPORT.md and at the end of `plan --out`.
"""


def page() -> str:
    """The whole page."""
    parts = (INTRO, _table(("field", "default", "is"), _fields()), CHOSEN, *_habits(), UNTOLD)
    return "\n".join((*parts, _table(("target", "fields", "why"), _untold())))


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

{_table(("parameters", "lr", "source"), rows)}"""


def _untold() -> Iterator[tuple[str, ...]]:
    for name, target in targets().items():
        why: dict[str, list[str]] = {}
        for field, reason in target.unsaid.items():
            why.setdefault(reason, []).append(f"`{field}`")
        for reason, fields in why.items():
            yield name, ", ".join(fields), reason


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

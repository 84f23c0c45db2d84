"""What loads where, by the rules and by what the real frameworks did, into docs/checkpoints.md:
`python docs/checkpoints.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from symconfig.runs.checkpoint.changes import FACTS
from symconfig.runs.checkpoint.table import Rule, table

PAGE = Path(__file__).with_suffix(".md")
SEEN = Path(__file__).parents[1] / "tests" / "runs" / "checkpoint" / "seen.json"
INTRO = """# Does the old checkpoint still load?

A plan is not made once, and the run of a new plan should go on from what the old one saved. Whether it can depends on
the framework, its release, the format, and on what changed. `symconfig checkpoint` and `symconfig replan` answer from
the rules below:

```
$ symconfig checkpoint checkpoints --plan new/plan.json --old old/plan.json
```

says which kind of checkpoint the folder holds and of which run (nothing in it is unpickled, and one whose pickles ask
for what no checkpoint needs is refused), whether the new plan's run can go on from it, with which options or after
which command, what starts anew, and why. Without `--plan` it only reads
the folder; without `--old` what the folder does not say of its run is taken to be as in the new plan. Exit codes: 0 it
loads, at least its weights; 1 it does not; 2 the folder is no checkpoint, or not a whole one. The same from Python:
`symconfig.checkpoint.read(folder)`, `loadable(old_plan, new_plan, kind)`, `of_folder(checkpoint, new_plan)`.

There are five answers: **as it is**; **resharded on load**, every rank reads its part of another layout; **converted
first**, by one command or one short run of the old plan; **weights only**; **no**.

## What surprises

- From core_v0.15 on Megatron-LM's distributed optimizer saves its buffers as they lie (`dp_reshardable`), which another
  number of replicas can read, and another tp, pp, vpp, ep or etp cannot. Its message recommends an option that does
  nothing by now (`--ckpt-fully-parallel-save`); what helps is `--dist-ckpt-optim-fully-reshardable`, at every save or
  in one converting run.
- The optimizer's state of core_v0.12 to 0.14 is not read by any release from core_v0.16 on
  (`ShardedTensor.flattened_range is not supported`). core_v0.15 reads it and writes what the later ones read.
- Older releases do not read newer ones: core_v0.14 nothing of core_v0.15, core_v0.18 nothing of core_v0.19.
- Another global batch alone stops Megatron-LM (`OptimizerParamScheduler: class input value ... do not match`), for its
  schedule counts sequences; `--override-opt_param-scheduler` lets it go on.
- With experts, the step from ep 1 to ep 2 or more, or back, costs the optimizer's state in every format.
- `--no-load-optim` keeps the count of iterations, and starts the learning rate's schedule at 0: it warms up again.
- DeepSpeed's `ds_to_universal` stops on a ZeRO-1 or ZeRO-2 checkpoint of a Transformers model unless it is told
  `--inject_missing_state`; and no way leads from ZeRO 1 or 2 to 3, or back, but through the weights.
"""
SEEN_INTRO = """## What the real frameworks did

{count} cases, each with small models and the frameworks' own code for saving and loading on CPU ranks (gloo): the run
of the first plan saves, the run of the second loads without help, then as `symconfig` says, converting first where it
says so. Then its weights, its optimizer's main weights and moments and the count of its schedule are compared with what
they must be (Megatron-LM: training/checkpointing.py of core_v0.19.2, or of the releases that a case names), or its
losses with those of the run that was not interrupted (DeepSpeed 0.19.8, the rendered train.py). `python -m
tests.runs.checkpoint.real` does them all, and `make test` a few. What is left out where there is no GPU: Transformer
Engine's extra state, Megatron-FSDP (`fsdp_dtensor`), PyTorch's FSDP 2, the async writers.
"""
RULES_INTRO = """## The rules

All rules that hold for a checkpoint are evaluated; the worst answer counts. A rule without releases holds for all that
are known here. Its source says where it was read; *seen* is the case above in which the framework did so. This page is
written by `make checkpoints`.
"""


def markdown() -> str:
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    yield INTRO
    yield from ("## Kinds", "", "| kind | of | what it is |", "|---|---|---|")
    for name, entry in table().formats.items():
        ways = f" Its optimizer: {', '.join(f'`{way}`' for way in entry.optimizer)}." if entry.optimizer else ""
        yield f"| `{name}` | {', '.join(entry.framework)} | {_cell(entry.does)}.{ways} |"
    seen: dict[str, Any] = json.loads(SEEN.read_text(encoding="utf-8"))
    yield from ("", SEEN_INTRO.format(count=len(seen)))
    yield from ("| case | kind | answer | without help the framework says |", "|---|---|---|---|")
    for name, case in seen.items():
        yield f"| {name} | `{case['kind']}` | {case['verdict']} | {_said(case['refused'])} |"
    yield from ("", RULES_INTRO)
    for rule in table().rules:
        yield from _rule(rule)


def _said(text: str) -> str:
    """The start of what the framework said, in one line."""
    words = " ".join(text.split())
    short = words if len(words) <= 150 else f"{words[:70].rstrip()} … {words[-70:].lstrip()}"
    return f"`{_cell(short).replace('`', '')}`" if short else "it loads"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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
        if (conversion := table().conversions.get(name)) is not None:
            for row in conversion.rows:
                yield f"- {'old run' if row.run == 'old' else 'between'}: `{_capitals(row.words)}`"
        else:
            yield f"- new run: `{_capitals(table().tells[name].words)}`"
    if made := [table().conversions[name].makes for name in rule.how if name in table().conversions]:
        place = table().conversions[rule.how[-1]].at
        yield f"- new run: `{table().loads[made[-1]].words.replace('<<from>>', place)}`"
    if rule.across:
        yield "- also between the frameworks"
    if rule.lost:
        yield f"- starts anew: {'; '.join(table().lost[name] for name in rule.lost)}"
    yield f"- source: {rule.source}" + (f"; *seen*: {rule.seen}" if rule.seen else "")
    yield ""


def _capitals(words: str) -> str:
    return words.replace("<<from>>", "CHECKPOINT")


def _optimizer(rule: Rule) -> str:
    return f" with the optimizer as {', '.join(f'`{name}`' for name in rule.optimizer)}" if rule.optimizer else ""


def _capital(text: str) -> str:
    return text if text[:10].startswith(("torch", "train.py")) else text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    print(f"{PAGE.name}: {len(table().rules)} rules")

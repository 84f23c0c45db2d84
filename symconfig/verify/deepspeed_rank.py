"""Ranks of a DeepSpeed plan as DeepSpeed's own engine shares them out, against what the plan predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symconfig.errors import Problem
from symconfig.plans.plan import Plan
from symconfig.verify.checks import Check, Compared, Options, Stopwatch
from symconfig.verify.conversation import ask
from symconfig.verify.rank_states import PADDING, Predicted, predicted

Json = dict[str, Any]


def checks(folder: Path, plan: Plan, words: Sequence[str], options: Options) -> Iterator[Check]:
    """Check the first rank and the last one, which gets the padding.

    `words`: those that launch.sh gives to train.py.
    """
    watch, world = Stopwatch(), plan.best.parallel.world_size
    if plan.model.adapter is not None and plan.model.adapter.method == "qlora":
        yield watch.check("DeepSpeed's ranks", "skipped", "bitsandbytes quantises on a GPU only")
        return
    ours, ranks = predicted(plan, 0), tuple(dict.fromkeys((0, world - 1)))
    options.progress(f"DeepSpeed builds rank {' and rank '.join(map(str, ranks))} of {world}")
    for rank, real in zip(ranks, build(folder, words, world, ranks, options.timeout_s), strict=True):
        title = f"DeepSpeed's rank {rank} of {world}"
        if not real["ok"]:
            yield watch.check(title, "failed", real["error"])
            continue
        compared = tuple(_compared(ours, real))
        wrong = [
            Problem(
                f"{item.what}: not what {real['optimizer']} really holds",
                file="model/config.json" if item.unit == "count" else "ds_config.json",
                field=None if item.unit == "count" else "zero_optimization",
                got=f"{item.real:,.0f} {item.unit}",
                need=f"{item.ours:,.0f}",
            )
            for item in compared
            if abs(item.ours - item.real) > PADDING * item.real
        ]
        check = watch.problems(title, wrong, f"{real['optimizer']} holds what the plan says, but for padding")
        yield replace(check, compared=compared)


def _compared(ours: Predicted, real: Json) -> Iterator[Compared]:
    """Yield the plan's numbers beside the engine's, of host and device together: a CPU is both."""
    yield Compared("parameters before ZeRO", ours.elements, real["elements"], "count")
    yield Compared("trained ones of them", ours.trained, real["trained"], "count")
    yield Compared("optimizer state", ours.optimizer_bytes, sum(real["held"]["optimizer"].values()), "bytes")


def build(folder: Path, words: Sequence[str], world_size: int, ranks: Sequence[int], timeout_s: float) -> list[Json]:
    """Build ranks with random weights of model/config.json: return the answer on each.

    A crash or hang is `ok: false` with its end.
    """
    own = [word for word in words if not word.startswith(("--model=", "--model-config=", "--load="))]
    place = folder.resolve()
    request = {
        "folder": str(place),
        "words": [*own, f"--model-config={place / 'model'}"],
        "world_size": world_size,
        "ranks": ranks,
        "timeout_s": timeout_s,
    }
    given = ask("DeepSpeed", "symconfig.verify.deepspeed_build", request, timeout_s * len(ranks))
    answers: list[Json] = given.get("answers", [given] * len(ranks))
    return answers

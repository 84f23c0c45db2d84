"""Ranks of a DeepSpeed plan as DeepSpeed's own engine shares them out, against symconfig's exact numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from symconfig.errors import InfeasibleError, Problem
from symconfig.plans.plan import Plan
from symconfig.verify.checks import Check, Compared, Options, Stopwatch
from symconfig.verify.conversation import ask
from symconfig.verify.states.deepspeed import RankStates, Settings, rank_states

Json = dict[str, Any]


def checks(folder: Path, plan: Plan, config: Json, words: Sequence[str], options: Options) -> Iterator[Check]:
    """Check the first rank and the last one, which gets the padding.

    `words`: those that launch.sh gives to train.py.
    """
    watch, world = Stopwatch(), plan.best.parallel.world_size
    if plan.model.adapter is not None and plan.model.adapter.method == "qlora":
        yield watch.check("DeepSpeed's ranks", "skipped", "bitsandbytes quantises on a GPU only")
        return
    ranks = tuple(dict.fromkeys((0, world - 1)))
    options.progress(f"DeepSpeed builds rank {' and rank '.join(map(str, ranks))} of {world}")
    for rank, real in zip(ranks, build(folder, words, world, ranks, options.timeout_s), strict=True):
        title = f"DeepSpeed's rank {rank} of {world}"
        if not real["ok"]:
            yield watch.check(title, "failed", real["error"])
            continue
        try:
            ours = rank_states(plan.model, config, world, rank)
        except InfeasibleError as error:
            yield watch.check(title, "failed", str(error))
            continue
        compared = _compared(ours, real, Settings.of(config, world))
        check = watch.problems(
            title,
            _differences(compared, real["optimizer"]),
            f"{real['optimizer']} holds what the plan says, to the byte",
        )
        yield Check(check.name, check.status, check.detail, check.seconds, compared)


def _differences(compared: Sequence[Compared], optimizer: str) -> Iterator[Problem]:
    """Yield the differences: a count of elements comes from the model's shape, bytes from what ZeRO does with them."""
    for item in compared:
        if item.ours != item.real:
            file, field = (
                ("model/config.json", None) if item.unit == "count" else ("ds_config.json", "zero_optimization")
            )
            yield Problem(
                f"{item.what}: not what {optimizer} really holds",
                file=file,
                field=field,
                got=f"{item.real:,.0f} {item.unit}",
                need=f"{item.ours:,.0f}",
            )


def _compared(ours: RankStates, real: Json, settings: Settings) -> tuple[Compared, ...]:
    """Compare host and device together: a CPU is both.

    There was no backward yet, which is when the host's sums are made.
    """
    held = {kind: sum(places.values()) for kind, places in real["held"].items()}
    kept = Compared("gradients between steps", ours.kept_gradients.total, held["gradients"], "bytes")
    return (
        Compared("parameters before ZeRO", ours.elements, real["elements"], "count"),
        Compared("trained ones of them", ours.trained, real["trained"], "count"),
        Compared("frozen ones of them", ours.elements - ours.trained, real["elements"] - real["trained"], "count"),
        Compared("parameters held", ours.parameters.total, held["parameters"], "bytes"),
        Compared("optimizer state", ours.optimizer.total, held["optimizer"], "bytes"),
        *(() if settings.sums_on_host else (kept,)),
        Compared("buffers", ours.buffers.total, held["buffers"], "bytes"),
    )


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

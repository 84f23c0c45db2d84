"""Plan the zoo with uniform and with solved stages, into docs/evidence/pipelines.md.

Every Megatron model at its size of tools/verify/real.yaml is planned with four stages or more. The plan's degrees,
policy and schedule are then kept, and its layers laid out once more: uniformly, and by the stage solver. Both are
simulated as the search does it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.graph.model import sequence
from symconfig.plans.pipeline_layout import LETTERS, written
from symconfig.solve.budget import peak_budget
from symconfig.solve.costed import Costed, costed
from symconfig.solve.prospect import Prospect
from symconfig.solve.refine import stage_problem
from symconfig.solve.run import run
from symconfig.solve.search import resolved
from symconfig.solve.split import Split, equal, plainest, uneven
from symconfig.solve.stages import fastest_cut
from symconfig.solve.timeline import refined_s, stage_seconds, times
from symconfig.units import GIB
from tools.pages import EVIDENCE, ROOT, fill, table

JOBS = ROOT / "tools" / "verify" / "real.yaml"
PAGE = EVIDENCE / "pipelines.md"
LEAST_PP = 4
CLOSE = 1e-9  # sums of the same seconds in another order
ENDS = ((False, False), (True, True), (True, False), (False, True))  # counted as layers; the plainest first
TITLES = {"chunks": {}, "one chunk": {"vpp": "1"}}  # places of the page, and pins
HEADS = (
    "model",
    "on",
    "pipeline",
    "uniform",
    "step s",
    "stage ms",
    "GiB",
    "solved",
    "step s",
    "stage ms",
    "GiB",
    "gain",
    "search",
)


@dataclass(frozen=True)
class Laid:
    """A candidate with its layers laid out."""

    found: Prospect

    @cached_property
    def parts(self) -> Costed:
        return costed(self.found)

    @cached_property
    def step_s(self) -> float:
        return refined_s(self.found, self.parts)

    @cached_property
    def stage_s(self) -> float:
        """Of the heaviest stage."""
        return float(stage_seconds(self.parts, times(self.found, self.parts)).max())

    @property
    def peak_bytes(self) -> float:
        return max(self.parts.peaks)


@dataclass(frozen=True, slots=True)
class Row:
    """One job: uniform is None where there is no such layout that fits."""

    job: Job
    uniform: Laid | None
    solved: Laid
    planned_s: float  # the search's answer

    @property
    def gain(self) -> float:
        """Share of the uniform step that is saved; 0 where there is none."""
        return 1 - self.solved.step_s / self.uniform.step_s if self.uniform else 0.0


def row(job: dict[str, Any]) -> Row:
    """The job planned, and its layers laid out in both ways."""
    model, cluster = load_model(job["model"]), load_cluster(job["cluster"])
    complete = resolved(model, cluster, Job.model_validate(job))
    found = run(model, cluster, complete, 1).best[0]
    budget = peak_budget(found.request, found.machine)
    chunks = fastest_cut(stage_problem(found, costed(found)))
    cut = None if chunks is None else plainest(found.split.pp, chunks, found.request.limits.layouts)
    solved = fastest(found, [found.split, *([cut] if cut else [])], budget)
    assert solved is not None
    return Row(complete, uniform(found, budget), solved, found.step_s)


def fastest(found: Prospect, splits: Iterable[Split], budget: float) -> Laid | None:
    """Of the layouts that fit."""
    every = [Laid(replace(found, split=split)) for split in dict.fromkeys(splits)]
    return min((laid for laid in every if laid.peak_bytes <= budget), key=lambda laid: laid.step_s, default=None)


def uniform(found: Prospect, budget: float) -> Laid | None:
    """With the plan's number of chunks, or with the one that is fastest."""
    kinds, pp, vpp = sequence(found.request.model), found.split.pp, found.split.vpp
    own = evenly(kinds, pp, vpp)
    laid = fastest(found, [own], budget) if own else None
    if laid or vpp == 1:
        return laid
    others = (evenly(kinds, pp, other) for other in range(2, len(kinds) // pp + 1))
    return fastest(found, filter(None, others), budget)


def evenly(kinds: tuple[str, ...], pp: int, vpp: int) -> Split | None:
    """The plainest split without a layout string."""
    for ends in ENDS:
        if (split := equal(kinds, pp, vpp, *ends)) is not None:
            return split
    return min(_other_ends(kinds, pp, vpp), key=_unevenness, default=None)


def _other_ends(kinds: tuple[str, ...], pp: int, vpp: int) -> Iterator[Split]:
    layers = sum(kind not in LETTERS for kind in kinds)
    for first, last in product(range(1, layers), repeat=2):
        if (split := uneven(kinds, pp, vpp, first, last)) is not None:
            yield split


def _unevenness(split: Split) -> tuple[int, int, int]:
    """Layers between the fullest and the emptiest stage, and between both ends; the loss is the heavier end."""
    layers = [sum(kind not in LETTERS for chunk in split.stage(i) for kind in chunk) for i in range(split.pp)]
    return max(layers) - min(layers), abs(layers[0] - layers[-1]), layers[-1]


def markdown(rows: Iterable[Row]) -> str:
    """Return one line a job."""
    return table(HEADS, map(cells, rows), (4, 5, 6, 8, 9, 10, 11))


def cells(row: Row) -> tuple[str, ...]:
    found = row.solved.found
    names = ("tp", "pp", "cp", "ep", "etp", "dp")
    degrees = {**{name: getattr(found.degrees, name) for name in names}, "micro-batch ": found.micro}
    shape = " ".join(f"{name}{value}" for name, value in degrees.items() if value > 1)
    chunks = f", vpp{found.split.vpp}" if found.split.vpp > 1 else ""
    gain = f"{100 * row.gain:.2f} %" if row.uniform else "-"
    return (
        str(row.job.model),
        f"{row.job.gpus:,} x {row.job.cluster}",
        shape + chunks,
        *figures(row.uniform, found),
        *figures(row.solved, found),
        gain,
        _searched(row),
    )


def _searched(row: Row) -> str:
    missed = 1 - row.solved.step_s / row.planned_s
    return f"beaten by {missed:.2%}" if missed > CLOSE else "the same"


def figures(laid: Laid | None, planned: Prospect) -> tuple[str, ...]:
    """Layout, step, heaviest and fullest stage."""
    if laid is None:
        return ("none fits", "-", "-", "-")
    split = laid.found.split
    other = f" (vpp{split.vpp})" if split.vpp != planned.split.vpp else ""
    return (
        f"`{written(split.chunks)}`{other}",
        f"{laid.step_s:.3f}",
        f"{1e3 * laid.stage_s:.2f}",
        f"{laid.peak_bytes / GIB:.2f}",
    )


def jobs(path: Path = JOBS) -> list[dict[str, Any]]:
    """Return those that Megatron-LM trains: no adapters, and no models that only DeepSpeed can be told."""
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    of_megatron = (job for job in found if job.get("backend", "megatron") == "megatron")
    return [job for job in of_megatron if load_model(job["model"]).adapter is None]


def parts(every: list[dict[str, Any]]) -> dict[str, str]:
    """Return the table of each number of chunks."""
    jobs_of = {
        title: [{**job, "pins": {"pp": f"{LEAST_PP}..", **pins}} for job in every] for title, pins in TITLES.items()
    }
    return {title: markdown(map(row, some)) for title, some in jobs_of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", metavar="TEXT", help="models with this in their name; the page is printed instead")
    only = parser.parse_args().only
    found = parts([job for job in jobs() if only is None or only in job["model"]])
    if only is None:
        fill(PAGE, found)
    else:
        print("\n".join(found.values()))

"""The rows of `make bench`: what each runs, and the limits that it is held to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import process

ADDED = Path(__file__).parent / "models"
AUDITED = Path(__file__).parent.parent / "tests" / "render" / "golden" / "deepseek-v3.launch.sh"  # more than 50 options
DEPTHS = (32, 126)  # layers
FEWER = {"exact": 3}  # processes of a solver that takes long
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a row is done: processes of a command, random jobs, and every which point of the sweep."""

    repeats: int = 5
    jobs: int = 500
    every: int = 1


WHOLE, QUICK = Effort(), Effort(repeats=1, jobs=40, every=25)


@dataclass(frozen=True, slots=True)
class Target:
    """A limit of a figure, in its unit; at_least: it must not be less."""

    figure: str
    limit: float
    unit: str = "x import"
    at_least: bool = False

    def met(self, figures: Mapping[str, Any]) -> bool:
        value = float(figures[self.figure])
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """shown: what the table calls it."""

    name: str
    shown: str
    measure: Callable[[Effort], Figures]
    targets: tuple[Target, ...] = ()


def job(model: str, cluster: str, gpus: int, batch: int, seq_length: int) -> tuple[str, ...]:
    """Return the options of a command that say a job."""
    values = {"model": model, "cluster": cluster, "gpus": gpus, "global-batch-size": batch, "seq-length": seq_length}
    return tuple(word for name, value in values.items() for word in (f"--{name}", str(value)))


# Jobs, and how many times the import's CPU seconds a plan of each may take.
PLANS = (
    (job("llama2-13b", "a100-80gb", 64, 1024, 4096), 1.5),
    (job("llama3.1-8b", "h100", 16, 256, 4096), 1.5),
    (job("mixtral-8x7b", "h100", 64, 1024, 4096), 2.5),
    (job("qwen3-30b-a3b", "h100", 32, 512, 4096), 2.5),
    (job("gpt3-175b", "a100-80gb", 512, 1536, 2048), 2.0),
    (job("llama3.1-405b", "h100", 16384, 2048, 8192), 2.0),
    (job("deepseek-v3", "h800", 2048, 15360, 4096), 6.0),
)
LEAN = {"deepseek-v3": Target("peak_mib", 300, "MiB")}
UNFIT = job("llama3.1-405b", "gb300-nvl72", 4, 2048, 8192)
UNTOLD = job(str(ADDED / "capped.yaml"), "h100", 16, 256, 4096)  # Megatron-LM caps no logits
PARTITION = job("llama3.1-405b", "h100", 1024, 2048, 8192)
# Alpa's largest GPT on its cluster (its repository, benchmark/alpa/suite_auto_gpt.py, has the sizes).
ALPA = (
    *job(str(ADDED / "gpt-39b.json"), "v100-16gb", 64, 1024, 1024),
    "--num-microbatches",
    "128",
    "--stages",
    "1..16",
)


def command(words: tuple[str, ...], effort: Effort, status: int = 0) -> Figures:
    """Measure a symconfig command that ends with this status."""
    return process.compared(("-m", "symconfig", *words), effort.repeats, (status,))


def inside(words: tuple[str, ...], effort: Effort) -> Figures:
    """Measure what new processes say of themselves, and set their CPU seconds beside the import's."""
    process.run(process.IMPORT)
    units, printed = [], []
    for _ in range(effort.repeats):
        units.append(process.run(process.IMPORT).cpu_s)
        printed.append(json.loads(process.run(("-m", "benchmarks.inside", *words)).output))
    figures, unit = process.medians(printed), sorted(units)[len(units) // 2]
    return {**figures, "ratio": round(figures["cpu_s"] / unit, 3)} if "cpu_s" in figures else figures


def once(words: tuple[str, ...], effort: Effort) -> Figures:
    """Measure what one process says of itself."""
    return dict(json.loads(process.run(("-m", "benchmarks.inside", *words)).output))


def sweep(effort: Effort) -> Figures:
    return once(("sweep", str(effort.every)), effort)


def random_jobs(effort: Effort) -> Figures:
    from benchmarks import jobs

    return jobs.measure(effort.jobs)


def depth(solver: str, effort: Effort) -> Figures:
    """CPU seconds of a partition by layers, each in new processes, in turn."""
    repeats = min(effort.repeats, FEWER.get(solver, effort.repeats))
    spent: dict[int, list[float]] = {layers: [] for layers in DEPTHS}
    for _ in range(repeats):
        for layers, seconds in spent.items():
            seconds.append(once(("partition", str(layers), solver), effort)["cpu_s"])
    few, many = (sorted(seconds)[len(seconds) // 2] for seconds in spent.values())
    names = [f"layers_{layers}_cpu_s" for layers in DEPTHS]
    return {names[0]: few, names[1]: many, "deeper": round(many / few, 3), "processes": repeats}


def _plans() -> list[Row]:
    """Return the rows of plans."""
    rows = []
    for words, limit in PLANS:
        model, cluster, gpus = words[1::2][:3]
        shown, lean = f"{model}, {int(gpus):,} {cluster}", tuple(filter(None, (LEAN.get(model),)))
        times = (Target("ratio", limit), *lean)
        rows.append(Row(f"plan-{model}", f"plan {shown}", partial(command, ("plan", *words)), times))
    return rows


ROWS = (
    Row("help", "--help", partial(command, ("--help",)), (Target("ratio", 0.15),)),
    Row("version", "--version", partial(command, ("--version",)), (Target("ratio", 0.15),)),
    *_plans(),
    Row("unfit-plan", "plan 405B on 4 GB300: cannot fit", partial(command, ("plan", *UNFIT), status=1),
        (Target("ratio", 2),)),
    Row("unfit-partition", "partition 405B on 4 GB300: cannot fit", partial(command, ("partition", *UNFIT), status=1),
        (Target("ratio", 2),)),
    Row("untold", "plan for a target that cannot be told",
        partial(command, ("plan", *UNTOLD, "--target", "megatron"), status=1), (Target("ratio", 2),)),
    Row("random-jobs", "99 in 100 of random jobs", random_jobs, (Target("p99", 10),)),
    Row("partition-adaptive", "partition 405B, 1,024 h100, adaptive",
        partial(command, ("partition", *PARTITION, "--solver", "adaptive")), (Target("ratio", 2.5),)),
    Row("partition-exact", "partition 405B, 1,024 h100, exact",
        partial(command, ("partition", *PARTITION, "--solver", "exact")), (Target("ratio", 25),)),
    Row("partition-stages", "partition GPT-39B, 64 v100-16gb, 1 to 16 stages",
        partial(command, ("partition", *ALPA))),
    Row("depth-adaptive", "adaptive, 126 layers over 32", partial(depth, "adaptive"),
        (Target("deeper", 1.2, "x 32 layers"),)),
    Row("depth-exact", "exact, 126 layers over 32", partial(depth, "exact"), (Target("deeper", 1.2, "x 32 layers"),)),
    Row("rate", "candidates weighed a CPU second", partial(inside, ("rate",)),
        (Target("candidates_per_cpu_s", 10e6, "a CPU s", at_least=True),)),
    Row("second-plan", "second plan of a process",
        partial(inside, ("second_plan",)), (Target("cpu_s", 0.1, "CPU s"),)),
    Row("sweep", "plans a second of a sweep, two cores", sweep,
        (Target("plans_per_s", 20, "a second", at_least=True),)),
    Row("audit", "audit of 80 options",
        partial(command, ("audit", str(AUDITED), "--cluster", "h200", "--no-plan"))),
    Row("simulator", "tasks simulated a CPU second", partial(inside, ("simulator",)),
        (Target("tasks_per_cpu_s", 1e6, "a CPU s", at_least=True),)),
    Row("stages", "stage solver, 61 unequal layers", partial(once, ("stages",)),
        (Target("61_unequal_layers_16x4_s", 1, "s"),)),
    Row("page", "page of deepseek-v3, 2,048 h800", partial(once, ("page",)),
        (Target("mb", 0.5, "MB"),)),
    Row("growth", "weighing by layers and GPUs", partial(once, ("growth",))),
)  # fmt: skip

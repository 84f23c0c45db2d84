"""Speed and memory of the planner: prints a table and records it as JSON. Timed figures vary with the machine: no test.

Cold: a new process with an empty user cache. Warm: a new process after an equal one. Byte code is compiled before
either, as an installed package's is. Peak memory is the largest resident set of the process, as the kernel counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGE = (
    "--model",
    "llama3.1-405b",
    "--cluster",
    "h100",
    "--gpus",
    "16384",
    "--global-batch-size",
    "2048",
    "--seq-length",
    "8192",
)
REPEATS = 5
RATE_MODEL, RATE_CLUSTER, RATE_GPUS, RATE_BATCH, RATE_SEQ = "gpt3-175b", "a100-80gb", 512, 1536, 2048
PARTITION = (
    "--model",
    "llama3.1-405b",
    "--cluster",
    "h100",
    "--gpus",
    "1024",
    "--global-batch-size",
    "2048",
    "--seq-length",
    "8192",
)
AUDITED = Path(__file__).parent.parent / "tests" / "render" / "golden" / "deepseek-v3.launch.sh"  # more than 50 options
DEPTHS = (2, 126)
LAYERS = (16, 32, 64, 128, 256)
GPUS = (64, 256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Run:
    """One process: wall and CPU seconds, peak resident bytes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(arguments: tuple[str, ...], cache: str) -> Run:
    """One `symconfig` command in a new process. Raises RuntimeError when it fails."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "SYMCONFIG_CACHE": cache}
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "symconfig", *arguments], stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"symconfig {' '.join(arguments)}: {errors.read().decode(errors='replace')}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def command(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Cold and warm figures of one command: medians of several processes, and the worst memory."""
    with tempfile.TemporaryDirectory() as cache:
        run(arguments, cache)  # byte code
    cold = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(run(arguments, cache))
    with tempfile.TemporaryDirectory() as cache:
        run(arguments, cache)
        warm = [run(arguments, cache) for _ in range(REPEATS)]
    return {
        "cold_s": round(statistics.median(one.wall_s for one in cold), 3),
        "cold_worst_s": round(max(one.wall_s for one in cold), 3),
        "warm_s": round(statistics.median(one.wall_s for one in warm), 3),
        "cpu_s": round(statistics.median(one.cpu_s for one in cold), 3),
        "peak_mib": round(max(one.peak_bytes for one in [*cold, *warm]) / 2**20, 1),
    }


def search(
    model: Any,
    cluster: str,
    gpus: int,
    batch: int,
    seq_length: int,
    pins: dict[str, str] | None = None,
    exhaustive: bool = True,
) -> dict[str, Any]:
    """The degrees of one job weighed in this process, once everything is loaded: candidates a CPU second.

    exhaustive: without the lower bounds, so that every candidate of the space is weighed.
    """
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.solve.run import weigh_all
    from symconfig.solve.search import resolved

    described = load_model(model) if isinstance(model, str) else model
    machine = load_cluster(cluster)
    asked = Job.model_validate(
        {
            "model": described.name,
            "cluster": cluster,
            "gpus": gpus,
            "global_batch_size": batch,
            "seq_length": seq_length,
            "pins": pins or {},
        }
    )
    job = resolved(described, machine, asked)

    def once() -> Any:
        return weigh_all(described, machine, job, 5, exhaustive=exhaustive)

    once()
    best: tuple[float, float] | None = None
    for _ in range(2):
        cpu, wall = time.process_time(), time.perf_counter()
        result = once()
        spent = (time.process_time() - cpu, time.perf_counter() - wall)
        best = spent if best is None or spent < best else best
    assert best is not None
    return {
        "candidates": result.candidates,
        "cpu_s": round(best[0], 4),
        "wall_s": round(best[1], 4),
        "candidates_per_cpu_s": round(result.candidates / best[0]),
    }


def growth() -> dict[str, list[dict[str, Any]]]:
    """The cost of weighing against the number of layers (the same space) and of GPUs (a space that grows with them)."""
    from symconfig.descriptor.load import load_model

    base = load_model("llama2-7b")
    pins = {"pp": "1..8", "vpp": "1"}  # more layers could be cut more ways: the same cuts for all
    models = {n: base.model_copy(update={"num_hidden_layers": n}) for n in LAYERS}
    layers = [{"layers": n, **search(model, "a100-80gb", 256, 1024, 4096, pins)} for n, model in models.items()]
    gpus = [{"gpus": n, **search("llama2-70b", "h100", n, max(1024, n), 4096, {"vpp": "1..4"})} for n in GPUS]
    return {"layers": layers, "gpus": gpus}


def measured(truth: Path) -> dict[str, Any]:
    """`validate` and `calibrate` over a folder of measured runs, once each; nothing where there is none."""
    files = sorted(str(path) for path in truth.glob("*.yaml"))
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as cache:
        runs = {
            name: run(words, cache)
            for name, words in (
                ("validate", ("validate", *files)),
                ("calibrate", ("calibrate", *files, "--from-scratch")),
            )
        }
    return {
        name: {
            "wall_s": round(one.wall_s, 2),
            "cpu_s": round(one.cpu_s, 2),
            "peak_mib": round(one.peak_bytes / 2**20, 1),
        }
        for name, one in runs.items()
    }


def refined() -> dict[str, Any]:
    """The refinement of the large job's search by itself, in this process: CPU seconds, and what it was spent on."""
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.solve.refine import refine
    from symconfig.solve.run import weigh_all
    from symconfig.solve.search import resolved

    words = dict(zip((word.removeprefix("--").replace("-", "_") for word in LARGE[::2]), LARGE[1::2], strict=True))
    model, cluster = load_model(words["model"]), load_cluster(words["cluster"])
    numbers = {name: int(words[name]) for name in ("gpus", "global_batch_size", "seq_length")}
    job = resolved(model, cluster, Job.model_validate({**words, **numbers}))
    spent = []
    for _ in range(3):  # the first one loads everything
        weighed = weigh_all(model, cluster, job, 5)
        cpu = time.process_time()
        proof = refine(weighed)
        spent.append(time.process_time() - cpu)
    return {
        "cpu_s": round(min(spent[1:]), 3),
        "layouts": proof.layouts,
        "simulated": proof.simulated,
        "gap": proof.gap(proof.floor_s, weighed.best_s),
    }


def simulated(pp: int, vpp: int, m: int) -> dict[str, Any]:
    """Tasks a CPU second of the schedule simulator, with the orders of the stages made anew and with them at hand."""
    import numpy as np

    from symconfig.schedule.program import program
    from symconfig.schedule.schedules import SCHEDULES
    from symconfig.schedule.simulate import simulate
    from symconfig.schedule.times import Times

    one = np.ones((pp, vpp))
    times = Times(one, 0 * one, one, one, gather=one, reduce=one, hide=0.5, contention=0.1)

    def once(anew: bool) -> float:
        if anew:
            program.cache_clear()
        cpu = time.process_time()
        simulate(SCHEDULES["interleaved"], times, m)
        return time.process_time() - cpu

    tasks = 2 * pp * vpp * m
    names = {"tasks_per_cpu_s": False, "tasks_per_cpu_s_with_orders": True}
    return {"tasks": tasks, **{name: round(tasks / min(once(anew) for _ in range(9))) for name, anew in names.items()}}


def depth() -> dict[str, Any]:
    """CPU seconds of a partition by the adaptive solver, for models that differ in their layers only: from a descriptor
    to an answer, all of a step's ways at hand, without a limit of memory."""
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.descriptor.mesh_source import of_cluster
    from symconfig.graph.program.of_model import program
    from symconfig.solve.partition.run import Ask, Solver, partition

    model, cluster = load_model(PARTITION[1]), load_cluster(PARTITION[3])
    ask = Ask(of_cluster(cluster, int(PARTITION[5])), cluster, float("inf"), solver=Solver.ADAPTIVE)

    def once(layers: int) -> float:
        deep, cpu = model.model_copy(update={"num_hidden_layers": layers}), time.process_time()
        partition(lambda turns: program(deep, int(PARTITION[7]) // turns, int(PARTITION[9]), vocab_multiple=128), ask)
        return time.process_time() - cpu

    once(DEPTHS[0])
    spent = {layers: min(once(layers) for _ in range(3)) for layers in DEPTHS}
    return {
        **{f"{layers}_layers_cpu_s": round(cpu, 3) for layers, cpu in spent.items()},
        "ratio": round(spent[DEPTHS[1]] / spent[DEPTHS[0]], 3),
    }


def stage_solver() -> dict[str, dict[str, Any]]:
    """The stage solver by itself: with its bounds, and with CBC for all of the proof."""
    sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' problems
    from symconfig.solve.stages.problem import Layouts, Scope, StageSolution
    from symconfig.solve.stages.solve import solve
    from tests.solve.stages.samples import DEEPSEEK, dense, large

    empty = Layouts(any_cut=True, empty_ends=True, empty=True)
    problems = {
        "126_layers_16x8": large(dense(126), 16, 8, layouts=empty),
        "61_unequal_layers_16x4": large(DEEPSEEK, 16, 4, layouts=empty),
        "80_layers_8x1_short_of_memory": large(dense(80), 8, 1, Scope.STAGE, 110),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, problem in problems.items():
        for solver in ("auto", "cbc"):
            solve(problem, solver=solver, time_limit_s=60)
            answer = solve(problem, solver=solver, time_limit_s=60)
            assert isinstance(answer, StageSolution)
            found[f"{name}_{solver}"] = {"seconds": round(answer.seconds, 4), "optimal": answer.optimal}
    return found


def measure(truth: Path) -> dict[str, Any]:
    """All figures."""
    space = (RATE_MODEL, RATE_CLUSTER, RATE_GPUS, RATE_BATCH, RATE_SEQ)
    return {
        "machine": {"python": platform.python_version(), "system": platform.system(), "cpus": os.cpu_count()},
        "plan_llama3.1-405b_16384_h100": command(("plan", *LARGE)),
        "refinement_llama3.1-405b_16384_h100": refined(),
        "help": command(("--help",)),
        "partition_llama3.1-405b_1024_h100_adaptive": command(("partition", *PARTITION, "--solver", "adaptive")),
        "partition_llama3.1-405b_1024_h100_exact": command(("partition", *PARTITION, "--solver", "exact")),
        "audit": command(("audit", str(AUDITED), "--cluster", "h200", "--no-plan")),
        "partition_depth": depth(),
        "rate_gpt3-175b_512_a100": search(*space),
        "bounded_gpt3-175b_512_a100": search(*space, exhaustive=False),
        "growth": growth(),
        "simulator_16_stages_8_chunks_64_microbatches": simulated(16, 8, 64),
        "stage_solver": stage_solver(),
        "measured_runs": measured(truth),
    }


def show(results: dict[str, Any]) -> str:
    """The figures as a table."""
    large, rate, start = results["plan_llama3.1-405b_16384_h100"], results["rate_gpt3-175b_512_a100"], results["help"]
    bounded = results["bounded_gpt3-175b_512_a100"]
    refinement = results["refinement_llama3.1-405b_16384_h100"]
    simulator = results["simulator_16_stages_8_chunks_64_microbatches"]
    lines = [
        "figure                                              measured     target",
        f"plan 405B on 16,384 H100, cold                      {large['cold_s']:8.3f} s  < 3 s",
        f"plan 405B on 16,384 H100, warm                      {large['warm_s']:8.3f} s  < 3 s",
        f"its refinement alone, CPU                           {refinement['cpu_s']:8.3f} s",
        f"layouts tried, candidates simulated, gap            {refinement['layouts']:,}, {refinement['simulated']:,}, "
        f"{refinement['gap']:.2%}",
        f"peak memory of that process                         {large['peak_mib']:6.1f} MiB  < 1024 MiB",
        f"symconfig --help                                    {start['warm_s']:8.3f} s  < 0.2 s",
        f"candidates, GPT-3 175B on 512 A100                  {rate['candidates']:10,}  >= 1,000,000",
        f"candidates a CPU second, the same                   {rate['candidates_per_cpu_s']:10,}  >= 1,000,000",
        f"CPU seconds, the same, with and without the bounds  {bounded['cpu_s']:5.2f}, {rate['cpu_s']:5.2f}",
        f"simulated tasks a CPU second, p=16 v=8 m=64         {simulator['tasks_per_cpu_s']:10,}  >= 1,000,000",
        f"the same with the stages' orders made anew          {simulator['tasks_per_cpu_s_with_orders']:10,}",
        *_partitions(results),
        f"audit of a script of 80 options, less --help        {results['audit']['warm_s'] - start['warm_s']:8.3f} s  "
        "< 0.5 s",
        *(
            f"{f'stages: {name}'.replace('_', ' '):50}  {row['seconds']:8.4f} s  < {5 if '61' in name else 1} s"
            for name, row in results["stage_solver"].items()
        ),
        *(
            f"{f'{name} over all published runs':50}  {results['measured_runs'][name]['wall_s']:8.2f} s  < {target} s"
            for name, target in (("validate", 20), ("calibrate", 120))
            if name in results["measured_runs"]
        ),
        "",
        "layers  candidates    CPU s",
        *(f"{row['layers']:6}  {row['candidates']:10,}  {row['cpu_s']:7.3f}" for row in results["growth"]["layers"]),
        "",
        "  GPUs  candidates    CPU s",
        *(f"{row['gpus']:6}  {row['candidates']:10,}  {row['cpu_s']:7.3f}" for row in results["growth"]["gpus"]),
    ]
    return "\n".join(lines)


def _partitions(results: dict[str, Any]) -> list[str]:
    """Seconds beyond start-up are those of a command less those of `--help`."""
    start, lines = results["help"]["warm_s"], []
    for solver, target in (("adaptive", 1), ("exact", 10)):
        spent = results[f"partition_llama3.1-405b_1024_h100_{solver}"]
        lines += [
            f"{f'partition 405B, {solver}, {heat}, less --help':50}  {spent[f'{heat}_s'] - start:8.3f} s  < {target} s"
            for heat in ("cold", "warm")
        ]
    depths = results["partition_depth"]
    lines.append(f"{'partition of 126 layers over 2 layers':50}  {depths['ratio']:8.2f}    <= 1.2")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", metavar="FILE", type=Path, help="write the figures there as JSON")
    parser.add_argument(
        "--truth",
        metavar="FOLDER",
        type=Path,
        default=Path("../shared/truth"),
        help="measured runs for validate and calibrate (default %(default)s)",
    )
    arguments = parser.parse_args()
    results = measure(arguments.truth)
    print(show(results))
    if arguments.record:
        arguments.record.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

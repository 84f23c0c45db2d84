"""Figures that a process takes of itself once everything is loaded: `python -m benchmarks.inside FIGURE [WORDS]`.

It prints one JSON object. `benchmarks/bench.py` starts a new process for each, so that nothing is left from another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = (16, 32, 64, 128, 256)
GPUS = (64, 256, 1024, 4096, 16384)


def search(
    model: Any, cluster: str, gpus: int, batch: int, seq_length: int, pins: dict[str, str] | None = None
) -> dict[str, float]:
    """Weigh every candidate of a job, without the lower bounds: candidates a CPU second, of the faster of two runs."""
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.solve.search import resolved
    from tests.solve.naive import unpruned

    described = load_model(model) if isinstance(model, str) else model
    machine = load_cluster(cluster)
    fields = {"model": described.name, "cluster": cluster, "gpus": gpus, "pins": pins or {}}
    sizes = {"global_batch_size": batch, "seq_length": seq_length}
    job = resolved(described, machine, Job.model_validate({**fields, **sizes}))

    def once() -> tuple[float, int]:
        cpu = time.process_time()
        weighed = unpruned(described, machine, job, 5)
        return time.process_time() - cpu, weighed.candidates

    once()  # loads everything
    cpu_s, candidates = min(once() for _ in range(2))
    return {"candidates": candidates, "cpu_s": round(cpu_s, 4), "candidates_per_cpu_s": round(candidates / cpu_s)}


def rate() -> dict[str, float]:
    """Weigh the candidates of GPT-3 175B on 512 A100."""
    return search("gpt3-175b", "a100-80gb", 512, 1536, 2048)


def growth() -> dict[str, float]:
    """CPU seconds of weighing by layers, over one space, and by GPUs, over a space that grows with them."""
    from symconfig.descriptor.load import load_model

    base = load_model("llama2-7b")
    pins = {"pp": "1..8", "vpp": "1"}  # more layers could be cut more ways: the same cuts for all
    seconds = {}
    for layers in LAYERS:
        model = base.model_copy(update={"num_hidden_layers": layers})
        seconds[f"layers_{layers}_cpu_s"] = search(model, "a100-80gb", 256, 1024, 4096, pins)["cpu_s"]
    for gpus in GPUS:
        weighed = search("llama2-70b", "h100", gpus, max(1024, gpus), 4096, {"vpp": "1..4"})
        seconds[f"gpus_{gpus}_cpu_s"] = weighed["cpu_s"]
    return seconds


def simulator() -> dict[str, float]:
    """Tasks a CPU second of the schedule simulator: 16 stages of 8 chunks, 64 microbatches; with the orders of the
    stages made anew and with them at hand."""
    import numpy as np

    from symconfig.schedule.simulate import simulate
    from symconfig.schedule.timeline import Times, orders

    stages, chunks, microbatches = 16, 8, 64
    one = np.ones((stages, chunks))
    times = Times(one, 0 * one, one, one, gather=one, reduce=one, hide=0.5, contention=0.1)

    def once(anew: bool) -> float:
        if anew:
            orders.cache_clear()
        cpu = time.process_time()
        simulate(times, microbatches)
        return time.process_time() - cpu

    tasks = 2 * stages * chunks * microbatches
    names = {"tasks_per_cpu_s": False, "tasks_per_cpu_s_with_orders": True}
    return {name: round(tasks / min(once(anew) for _ in range(9))) for name, anew in names.items()}


def stages() -> dict[str, float]:
    """Return the seconds of the stage solver by itself, of one candidate each."""
    import numpy as np

    from symconfig.solve.stages import Blocks, Layouts, StageProblem, fastest_cut

    anything = Layouts(any_cut=True, empty_ends=True)
    seconds = {}
    for layers, pp, vpp in ((126, 16, 8), (61, 16, 4), (80, 8, 1)):
        sequence = ("embedding", *("dense",) * layers, "head")
        each = np.array([[0.5, *(1.0,) * layers, 2.5]] * 2)
        limit_bytes = 2.2 * pp * layers / pp
        blocks = Blocks(seconds=each, fixed_bytes=each, kept_bytes=each, working_bytes=each, limit_bytes=limit_bytes)
        problem = StageProblem(
            sequence=sequence,
            pp=pp,
            vpp=vpp,
            layouts=anything,
            blocks=(blocks,),
            on=(0,) * pp,
            wait_s=np.zeros(pp),
            held=tuple(np.full((1, vpp), float(pp - stage)) for stage in range(pp)),
        )
        cpu = time.process_time()
        fastest_cut(problem)
        seconds[f"{layers}_layers_{pp}x{vpp}_s"] = round(time.process_time() - cpu, 4)
    return seconds


def second_plan() -> dict[str, float]:
    """CPU seconds of a process's second plan: the first one's model and cluster, another batch."""
    import symconfig

    def once(batch: int) -> float:
        cpu = time.process_time()
        symconfig.plan("llama2-13b", "a100-80gb", gpus=64, global_batch_size=batch, seq_length=4096)
        return time.process_time() - cpu

    return {"first_cpu_s": once(1024), "cpu_s": once(512)}


def partition(layers: str, solver: str) -> dict[str, float]:
    """CPU seconds of the command's partition of Llama-3.1-405B with so many layers, without imports."""
    from symconfig.descriptor.load import load_cluster, load_model
    from symconfig.descriptor.mesh import of_cluster
    from symconfig.graph.program.of_model import program
    from symconfig.solve.partition.run import Ask, Solver
    from symconfig.solve.partition.run import partition as solve

    model, cluster = load_model("llama3.1-405b"), load_cluster("h100")
    deep = model.model_copy(update={"num_hidden_layers": int(layers)})
    # Without a limit of memory: fewer layers would else be another problem.
    ask = Ask(of_cluster(cluster, 1024), cluster, float("inf"), solver=Solver(solver))
    cpu = time.process_time()
    solve(lambda turns: program(deep, 2048 // turns, 8192, vocab_multiple=128), ask)
    return {"cpu_s": round(time.process_time() - cpu, 3)}


def sweep(every: str) -> dict[str, float]:
    """Plan every N-th point of sweep.yaml in two processes, as `symconfig sweep` does: plans a second."""
    from collections import Counter

    from symconfig.api.sweep import read_sweep
    from symconfig.runs.sweep.run import Task, run_tasks

    points = read_sweep(Path(__file__).with_name("sweep.yaml")).points[:: int(every)]
    started = time.perf_counter()
    counts = Counter(row.status.value for row in run_tasks([Task.of(one) for one in points], jobs=2))
    wall_s = time.perf_counter() - started
    return {"plans": len(points), "plans_per_s": round(len(points) / wall_s, 2), **counts}


def page() -> dict[str, float]:
    """CPU seconds of making the page of a plan of 2,048 GPUs, and its megabytes."""
    import symconfig

    made = symconfig.plan("deepseek-v3", "h800", gpus=2048, global_batch_size=15360, seq_length=4096)
    cpu = time.process_time()
    text = made.html()
    return {"cpu_s": round(time.process_time() - cpu, 3), "mb": round(len(text.encode()) / 1e6, 3)}


FIGURES: dict[str, Callable[..., dict[str, float]]] = {
    each.__name__: each for each in (rate, growth, simulator, stages, second_plan, partition, sweep, page)
}


def main(words: list[str]) -> None:
    print(json.dumps(FIGURES[words[0]](*words[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])

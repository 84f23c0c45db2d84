"""Every format started for real: tiny plans, written, launched on two ranks of this machine, and held against the plan.

`python -m tools verify training` runs all cases and writes docs/evidence/training.md; texts behind it run those whose
plan or format holds one, and renew their part of it. Formats of Megatron-LM need its checkout: MEGATRON_PATH=FOLDER.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from symconfig.plans.plan import Plan
from symconfig.render.files import write
from tests.processor import lacking
from tools.verify import formats as verify_formats
from tools.verify.training import held, material
from tools.verify.training.cases import CASES, ON_DEEPSPEED, Case, learning_rate
from tools.verify.training.results import Outcome, Step, apart, read, record
from tools.verify.training.starts import STARTS, Start, files

# Of one plan in several formats: the order in which bf16 numbers are added differs, and nothing else may.
TOLERANCE = 2e-3
ROUNDED = 2e-2  # of log-probabilities in bf16, whose step at -64 is 0.5: beta times that moves a loss by 1 %
RATE = 1e-3  # logs round a learning rate to four digits
LEAST_FALL = 0.05
LIMIT_S = 900
STATE_BYTES = 12  # of a trained number: itself in fp32, and two moments
PADDING = 256  # DeepSpeed fills each group of tensors up to a multiple of the ranks
KEPT = re.compile(r"keeps the states of (\d+) numbers")  # trainer_on_cpu
WITHOUT_GPU = re.compile(r"^without a GPU: (.*)$", re.MULTILINE)


def wrong(plan: Plan, steps: Sequence[Step], ahead: int = 0) -> Iterator[str]:
    """Where a run is not that of the plan. ahead: steps that its warm-up is before the plan's."""
    training, rl = plan.training, plan.job.rl
    sequences = plan.best.configuration.global_batch if rl is None else rl.batch
    if len(steps) != training.train_iters:
        yield f"{len(steps)} steps, the plan has {training.train_iters}."
        return
    losses = [step.loss for step in steps]
    if not all(map(math.isfinite, losses)):
        yield f"the losses are not finite: {losses}."
    elif losses[0] - losses[-1] < LEAST_FALL and (rl is None or plan.model.adapter is None):
        yield f"the loss does not fall: {losses}."
    if not all(math.isfinite(step.gradient) and step.gradient for step in steps if step.gradient is not None):
        yield f"a gradient is 0 or not finite: {[step.gradient for step in steps]}."
    for number, step in enumerate(steps):
        rate = learning_rate(plan, number, ahead)
        if abs(step.learning_rate - rate) > RATE * training.lr:
            yield f"step {number + 1} has the learning rate {step.learning_rate:.4g}, the plan has {rate:.4g}."
        if step.sequences not in (None, sequences):
            yield f"step {number + 1} takes {step.sequences:g} sequences, the plan has {sequences}."


def unshared(plan: Plan, states: Sequence[int]) -> Iterator[str]:
    """Where ranks keep optimizer states of other numbers than the plan predicts. states: their count on each rank."""
    ranks, planned = plan.best.configuration.world_size, plan.best.predicted.memory["optimizer state"] / STATE_BYTES
    if len(states) != ranks:
        yield f"{len(states)} of {ranks} ranks say what they keep."
    for count in sorted(set(states)):
        if not planned <= count <= planned + PADDING:
            yield f"a rank keeps the states of {count:,} numbers, the plan has {planned:,.0f}."


def launched(start: Start, folder: Path, python: str) -> tuple[int, str]:
    """The status and the log of a start; whatever it has started is ended with it. python: of the format, whose
    programs come first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(Path(python).parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            start.command,
            cwd=folder,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**environment, "PATH": path, "MASTER_PORT": port, **start.environment},
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    return status, log.read_text(errors="replace")


def run(plan: Plan, name: str, folder: Path, made: material.Material | None, python: str) -> Outcome:
    """Write a format, start it, and hear what it says."""
    write(files(plan, name), folder)
    start = STARTS[name](plan, folder, made)
    status, log = launched(start, folder, python)
    steps, states = tuple(start.read(log)), tuple(map(int, KEPT.findall(log)))
    said = (*wrong(plan, steps, start.ahead), *(unshared(plan, states) if start.counted else ()))
    every = held.ranks(log) if start.held else []
    figures = tuple(held.held(plan, every)) if every else ()
    said = (*said, *(held.wrong(plan, figures, every) if start.held else ()))
    if status:
        said = (f"ended with {status}: {log.strip().splitlines()[-1][:200] if log.strip() else ''}", *said)
    changed = tuple(text for line in WITHOUT_GPU.findall(log) for text in line.split(", "))
    world = plan.best.configuration.world_size
    return Outcome(name, world, steps, said, (*start.overrides, *changed), states=states, held=figures)


def judged(item: Outcome, first: Outcome, tolerance: float = TOLERANCE) -> Outcome:
    """With what is wrong where its losses are not those of the first format of its plan."""
    gap = apart(first.steps, item.steps)
    if gap is None or gap <= tolerance:
        return item
    other = f"{first.format}" if first.format != item.format else "one rank"
    return replace(item, said=(*item.said, f"losses are up to {gap:.1e} apart from those of {other}."))


def by_itself(case: Case, name: str, folder: Path, made: material.Material, python: str) -> Outcome:
    """A format with a plan of its own, held against itself on one rank where it can be."""
    item = run(material.named(case.plan(name), name, made), name, folder, made, python)
    if not case.repeatable(name):
        return item
    alone = run(material.named(case.plan(name, 1), name, made), name, folder.with_name(f"{name}-1"), made, python)
    said = (*item.said, *(f"on one rank: {text}" for text in alone.said))
    tolerance = ROUNDED if case.rounds(name) else TOLERANCE
    return judged(replace(item, said=said, alone=alone.steps), alone, tolerance)


def outcomes(case: Case, formats: Sequence[str], root: Path, torch: str) -> list[Outcome]:
    """The formats of a case, each held against the first one, too."""
    plan = case.plan()
    made = material.prepare(plan, root / "material") if case.trains_on_files else None
    found: list[Outcome] = list(read().get(case.name, ())[:1]) if case.formats[0] not in formats else []
    for name in formats:
        began = time.perf_counter()
        python = verify_formats.python_of(verify_formats.read_format(name), torch)
        if name in ON_DEEPSPEED and (why := lacking(plan.best.configuration.precision, python)):
            print(f"{case.name}: {name}: left out: {why}", flush=True)
            continue
        if case.job and made is not None:
            item = by_itself(case, name, root / name, made, python)
        else:
            item = run(plan, name, root / name, made, python)
            item = judged(item, found[0]) if found else item
        found.append(item)
        state = "passed" if item.passed else " ".join(item.said)
        print(f"{case.name}: {name}: {state} ({time.perf_counter() - began:.0f} s)", flush=True)
    return [item for item in found if item.format in formats]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("only", nargs="*", metavar="TEXT", help="cases whose plan or format is or holds this")
    parser.add_argument("--torch", default="torch==2.13.0", help="what is installed where a format needs torch")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="render and run in DIR, and leave it there")
    arguments = parser.parse_args(given)
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, case in enumerate(CASES):
            formats = [
                name
                for name in case.formats
                if not arguments.only or any(text == name or text in case.name for text in arguments.only)
            ]
            if "MEGATRON_PATH" not in os.environ and case.backend == "megatron" and case.formats[0] == "megatron":
                print(f"{case.name}: left out: MEGATRON_PATH names no checkout of Megatron-LM", flush=True)
            elif formats:
                root = (arguments.keep or Path(scratch)).resolve() / str(number)
                results[case.name] = tuple(outcomes(case, formats, root, arguments.torch))
                record(results, {each.name: each.formats for each in CASES})
    return 0 if all(item.passed for items in results.values() for item in items) else 1

"""Does the cases for DeepSpeed: the rendered train.py saves after two steps, and goes on in another layout. What it
loses by that is a loss other than that of the run that was not interrupted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from symconfig.runs.checkpoint.loadable import loadable
from symconfig.runs.checkpoint.read import read
from symconfig.runs.checkpoint.table import Loadable, Step, Verdict
from tests.processor import lacking
from tests.render.deepspeed_support import STEP, Launcher, launch
from tests.runs.checkpoint.cases import Case
from tools.verify.checkpoints.megatron import Done

SAVED, STEPS = 2, 5
TOLERANCE = 2e-3  # bf16 in other orders of sums; moments that start anew change a loss by more
LOADING = "engine.load_checkpoint(args.load, load_module_strict=not args.lora_r)"


def train(
    plan: Plan,
    folder: Path,
    launcher: Launcher,
    *arguments: str,
    steps: tuple[Step, ...] = (),
    model: Path | None = None,
) -> tuple[list[float], str]:
    """Each step's loss, and what was said where it failed. steps: of `loadable`, what they tell the run itself."""
    write(render(plan, "deepspeed"), folder, force=True)
    for step in steps:
        if "--load-universal" in step.words:
            arguments = (*arguments, "--load-universal")
        elif step.words.startswith("engine.load_checkpoint"):
            script = folder / "train.py"
            script.write_text(script.read_text().replace(LOADING, LOADING[:-1] + ", load_module_only=True)"))
    environment = {**launcher.quick, **({"MODEL": str(model)} if model is not None else {})}
    status, said = launch(folder, environment, "--repeat-batch", *arguments)
    return [float(loss) for _, loss, *_ in STEP.findall(said)], said if status else ""


def do(cases: Mapping[str, Case], launcher: Launcher, scratch: Path) -> Iterator[Done]:
    """Do every case but those in a precision that this processor lacks, which are named with the reason."""
    for index, (name, case) in enumerate(cases.items()):
        if why := next(filter(None, (lacking(plan.best.configuration.precision) for plan in case.plans())), ""):
            print(f"{name}: left out: {why}", flush=True)
            continue
        yield _done(name, case, launcher, scratch / str(index))


def _done(name: str, case: Case, launcher: Launcher, folder: Path) -> Done:
    old, new = case.plans()
    said, saved = loadable(old, new), folder / "saved"
    wrong = [f"says {said.verdict}, meant is {case.verdict}"] if said.verdict is not case.verdict else []
    whole, failed = train(
        old, folder / "whole", launcher, f"--train-iters={STEPS}", f"--save={saved}", f"--save-interval={SAVED}"
    )
    if failed:
        return Done(name, said, "", (f"saving: {failed[-600:]}",))
    (saved / "latest").write_text(f"step-{SAVED}")
    if (kind := read(saved).kind) != said.kind:
        wrong.append(f"the folder is read as {kind}, not as {said.kind}")
    on = (f"--train-iters={STEPS}", f"--load={saved}")
    losses, plain = train(new, folder / "plain", launcher, *on)
    if case.refused not in plain or bool(plain) != bool(case.refused):
        wrong.append(f"without help: {plain[-600:] or losses}")
    if said.verdict is not Verdict.NO:
        told, problem = _told(said, new, old, folder, launcher, on)
        # Weights alone: the first loss is the one that the whole run had there.
        count = 1 if said.verdict is Verdict.WEIGHTS else STEPS - SAVED
        if problem or not _close(told[:count], whole[SAVED:][:count]):
            wrong.append(f"as told: {problem or f'{told} for {whole[SAVED:]}'}")
    return Done(name, said, _sentence(plain), tuple(wrong))


def _told(
    said: Loadable, new: Plan, old: Plan, folder: Path, launcher: Launcher, on: tuple[str, ...]
) -> tuple[list[float], str]:
    """As `loadable` says: its commands, then the run."""
    saved, converted = folder / "saved", folder / "converted"
    for step in said.how:
        if step.run == "between":
            words = (
                step.words.replace("TAG", f"step-{SAVED}")
                .replace("CHECKPOINT", str(saved))
                .replace("CONVERTED", str(converted))
                .replace("python ", f"{sys.executable} ", 1)
            )
            ended = subprocess.run(
                words.split(), env={**os.environ, **launcher.environment}, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                return [], ended.stderr[-600:]
    if converted.is_dir():
        shutil.copy(folder / "whole" / "model" / "config.json", converted)
        on = (on[0],)
    found = train(new, folder / "told", launcher, *on, steps=said.how, model=converted if converted.is_dir() else None)
    return found[0], found[1][-600:]


def _close(found: list[float], expected: list[float]) -> bool:
    return len(found) == len(expected) and all(
        abs(mine - theirs) <= TOLERANCE * theirs for mine, theirs in zip(found, expected, strict=True)
    )


def _sentence(said: str) -> str:
    """The last line that names an error."""
    lines = [line.strip() for line in said.splitlines() if "Error" in line or "Exception" in line or "assert " in line]
    return lines[-1] if lines else said[-200:]

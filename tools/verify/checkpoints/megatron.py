"""Does the cases with Megatron-LM's own code on CPU ranks, and says where `loadable` was wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import symconfig.verify
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.runs.checkpoint.loadable import loadable
from symconfig.runs.checkpoint.read import read
from symconfig.runs.checkpoint.table import Loadable, Verdict
from tests.runs.checkpoint.cases import Case

WORKER = Path(__file__).with_name("megatron_worker.py")
RUNNERS = Path(symconfig.verify.__file__).with_name("runners")
FORMATS = {
    "torch": ("--ckpt-format", "torch"),
    "torch_dist:fully_reshardable": ("--dist-ckpt-optim-fully-reshardable",),
}
TIMEOUT_S = 120.0
MOMENTS = {"exp_avg", "exp_avg_sq"}


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a case. plain: what the framework said without anything that `loadable` adds; nothing: it loaded.
    wrong: in what `loadable` was wrong."""

    name: str
    said: Loadable
    plain: str
    wrong: tuple[str, ...]


def arguments(plan: Plan, *more: str) -> dict[str, Any]:
    return {
        "args": [*render.arguments(plan), *more],
        "world_size": plan.best.configuration.world_size,
        "vocabulary": plan.model.vocab_size,
        "may_fail": False,
        "release": plan.best.target.version,
    }


def runs(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Save; load without help; then as `loadable` says, with its conversion where there is one."""
    old, new = case.plans()
    said = loadable(old, new, case.kind)
    saved, converted = str(folder / "saved"), str(folder / "converted")
    asked = [
        {**arguments(old, "--save", saved, "--save-interval", "10", *FORMATS.get(case.kind or "", ())), "does": "save"},
        {**arguments(new, "--load", saved), "does": "load", "may_fail": True},
    ]
    words = {"CHECKPOINT": saved, "CONVERTED": converted, "CONVERTED/torch_dist": f"{converted}/torch_dist"}
    if said.verdict is Verdict.CONVERTED:
        # The release between those that hold the optimizer's state one way only and the other.
        through = replace(old, best=replace(old.best, target=replace(old.best.target, version="core_v0.15.0")))
        between = through if "core_v0.15" in said.how[0].does else old
        asked.append(
            {**arguments(between, *(words.get(word, word) for word in said.options("old"))), "does": "convert"}
        )
    if said.verdict is not Verdict.NO:
        told = [words.get(word, word) for word in said.options("new")]
        asked.append({**arguments(new, "--load", saved, *told), "does": "load", "may_fail": True})
    return asked


def judge(name: str, case: Case, answers: list[dict[str, Any]], kind: str) -> Done:
    """Hold what the framework did against what was said."""
    said = loadable(*case.plans(), case.kind)
    wrong = [f"says {said.verdict}, meant is {case.verdict}"] if said.verdict is not case.verdict else []
    if kind != said.kind:
        wrong.append(f"the folder is read as {kind}, not as {said.kind}")
    saved, plain = [*answers, {}, {}][:2]
    if saved.get("error") is not None:
        return Done(name, said, "", (f"saving: {saved['error']}",))
    refused = plain.get("error") or ""
    if case.refused not in refused or bool(refused) != bool(case.refused):
        wrong.append(f"without help: {refused or 'it loads'}")
    if said.verdict is not Verdict.NO:
        expected = 4 if said.verdict is Verdict.CONVERTED else 3
        last = answers[-1]
        differs = set(last.get("differs", ())) - (MOMENTS if said.verdict is Verdict.WEIGHTS else set())
        if len(answers) < expected or last["error"] is not None or differs:
            wrong.append(f"as told: {last['error'] or 'differs: ' + ', '.join(sorted(differs))}")
        elif (last["scheduler_steps"] == 0) != (said.verdict is Verdict.WEIGHTS):
            wrong.append(f"the schedule goes on at {last['scheduler_steps']}")
    return Done(name, said, refused, tuple(wrong))


def do(cases: Mapping[str, Case], sources: Mapping[str, Path]) -> Iterator[Done]:
    """Each case as it ends. sources: Megatron-LM's code by release; each run of a case is of the release that
    `loadable` names. Runs of one release follow each other in a process that imports it once."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: Path(scratch) / str(index) for index, name in enumerate(cases)}
        for answer in _answers({name: runs(case, places[name]) for name, case in cases.items()}, sources):
            name = answer["id"]
            saved = places[name] / "saved"
            kind = read(saved).kind if saved.is_dir() else ""
            yield judge(name, cases[name], answer["runs"], kind)


def _answers(tasks: Mapping[str, list[dict[str, Any]]], sources: Mapping[str, Path]) -> Iterator[dict[str, Any]]:
    """Cases of one release together, of several one run after the other."""
    releases = {run["release"] for asked in tasks.values() for run in asked}
    if len(releases) == 1:
        yield from _asked([{"id": name, "runs": asked} for name, asked in tasks.items()], sources[releases.pop()])
        return
    for name, asked in tasks.items():
        answers: list[dict[str, Any]] = []
        for run in asked:
            answers += [
                answer
                for task in _asked([{"id": name, "runs": [run]}], sources[run["release"]])
                for answer in task["runs"]
            ]
            if answers[-1]["error"] is not None and not run["may_fail"]:
                break
        yield {"id": name, "runs": answers}


def _asked(tasks: Iterable[dict[str, Any]], source: Path) -> Iterator[dict[str, Any]]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    request = json.dumps({"timeout_s": TIMEOUT_S, "tasks": list(tasks)})
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-E", "-P", "-u", str(WORKER), str(source), str(RUNNERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            process.stdin.write(request)
            process.stdin.close()
            for line in process.stdout:
                if "id" in (answer := json.loads(line)):
                    yield answer
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"the worker ended with status {process.returncode}: {log.read()[-2000:]}")

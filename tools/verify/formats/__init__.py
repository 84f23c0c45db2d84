"""Every format against its real parser: a spread of plans, rendered, read by what a team runs, held against the plan.

`python -m tools verify formats` runs all formats and writes docs/evidence/formats.md; names of formats behind it run
some and renew their part of it.
The plans: a spread of choices (spread.py), of which each format gets those of the tasks that it is for, and every zoo
model, planned for the format (zoo.py).

A format is a folder NAME beside this file. Its accept.py gets the folders of the plans as arguments and answers with
one JSON line for each: {"folder", "accepted", "said": [problems], "values": what the parser understood, in the words of
words.py}; accepting.py helps with that. requirements.txt names what it needs, in exact versions; requirements-build.txt
what a source package among these needs to be built; requirements-no-deps.txt what is installed without dependencies.
Without any, the Python of the tests runs it. NAME is a target, or a launcher, whose plans are rendered for their own
frameworks; format.yaml says so where it is neither: `target: NAME` or `launcher: NAME`. `parser: NAME` in it: another
format's accept.py reads this one, too, with its requirements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.task import PLAIN
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, render, target_of, targets
from symconfig.render.files import write
from tools.pages import EVIDENCE, ROOT
from tools.verify.formats.page import page
from tools.verify.formats.results import Outcome, Result, keep, reasons
from tools.verify.formats.spread import SPREAD
from tools.verify.formats.words import differences
from tools.verify.formats.zoo import named, zoo_plans

FORMATS = Path(__file__).parent
ENVIRONMENTS = ROOT / ".venv-formats"
REQUIREMENTS = ("requirements-build.txt", "requirements.txt", "requirements-no-deps.txt")
_PARSER_LIMIT_S = 1800
_ZOO = "zoo/"  # before a model's name, for there are plans of the spread of the same name

# Plans by name, and why there is none.
Plans = Mapping[str, Plan | InfeasibleError]


@dataclass(frozen=True, slots=True)
class Format:
    """A folder of tools/verify/formats: what is rendered for it, and the program that reads that."""

    name: str
    target: str | None
    launchers: tuple[str, ...]
    parser: str = ""  # the format whose parser reads it, if not its own

    @property
    def folder(self) -> Path:
        return FORMATS / (self.parser or self.name)


def names() -> list[str]:
    return sorted({path.parent.name for name in ("accept.py", "format.yaml") for path in FORMATS.glob(f"*/{name}")})


def read_format(name: str) -> Format:
    """The format of a folder. Exits with a sentence where nothing is rendered for it."""
    said = FORMATS / name / "format.yaml"
    data = yaml.safe_load(said.read_text(encoding="utf-8")) if said.exists() else {}
    target, launcher = data.get("target"), data.get("launcher")
    if not (target or launcher) and name in targets():
        target = name
    elif not (target or launcher) and name in every_launcher():
        launcher = name
    if target is None and launcher is None:
        sys.exit(f"{name} is no target and no launcher; tools/verify/formats/{name}/format.yaml must name one")
    return Format(name, target, (launcher,) if launcher else (), data.get("parser", ""))


def rendered(form: Format, plans: Plans, root: Path) -> tuple[dict[str, Path], dict[str, tuple[str, ...]]]:
    """The folder of every plan that the format can say, and our reasons where it cannot or where there is no plan."""
    folders, refused = {}, {}
    for name, plan in plans.items():
        if isinstance(plan, InfeasibleError):
            refused[name] = reasons(plan)
            continue
        try:
            files = render(plan, form.target or target_of(plan.model, plan.job).name, form.launchers)
        except InfeasibleError as error:
            refused[name] = reasons(error)
            continue
        folders[name] = root / form.name / name
        write(files, folders[name])
    return folders, refused


def python_of(form: Format, torch: str) -> str:
    """The interpreter of the format's environment, made if its requirements are not those that it was made with."""
    files = [form.folder / name for name in REQUIREMENTS if (form.folder / name).exists()]
    if not files:
        return sys.executable
    place = ENVIRONMENTS / form.folder.name
    python, stamp = place / "bin" / "python", place / ".made"
    wanted = hashlib.sha256("\n".join([torch, sys.version, *map(Path.read_text, files)]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if any(line.startswith("torch==") for file in files for line in file.read_text().splitlines()):
        subprocess.run([*pip, torch], check=True)  # by itself first: what asks for torch then finds it
    isolation: list[str] = []
    for file in files:
        extra = ["--no-deps"] if file.name == "requirements-no-deps.txt" else []
        subprocess.run([*pip, *isolation, *extra, "-r", str(file)], check=True)
        if file.name == "requirements-build.txt":
            isolation = ["--no-build-isolation"]
    stamp.write_text(wanted)
    return str(python)


def python_of_made(form: Format) -> str | None:
    """The interpreter of the format's environment, where it is made already."""
    python = ENVIRONMENTS / form.folder.name / "bin" / "python"
    return str(python) if python.exists() else None


def asked(form: Format, python: str, folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """accept.py's answer on every folder; one that it does not come to is answered with how it ended."""
    if not folders:
        return {}
    paths = os.pathsep.join([str(FORMATS), str(form.folder)])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, str(form.folder / "accept.py"), *map(str, folders.values())]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PARSER_LIMIT_S)
        out, ended = done.stdout, f"accept.py ended with {done.returncode}: {done.stderr.strip()[-800:]}"
    except subprocess.TimeoutExpired as error:
        out, ended = bytes(error.stdout or b"").decode(), f"accept.py took more than {_PARSER_LIMIT_S} s"
    answers = {line["folder"]: line for line in map(json.loads, filter(None, out.splitlines()))}
    silent = {"accepted": False, "said": [ended], "values": {}}
    return {name: answers.get(str(folder), silent) for name, folder in folders.items()}


def judge(form: Format, python: str, plans: Plans, root: Path) -> tuple[Outcome, ...]:
    """Render the format for every plan, and hear what its parser says."""
    folders, refused = rendered(form, plans, root)
    answers = asked(form, python, folders)
    outcomes = []
    for name, plan in plans.items():
        if isinstance(plan, InfeasibleError) or name in refused:
            outcomes.append(Outcome(name, refused=refused[name]))
            continue
        answer = answers[name]
        said = answer["said"] or differences(plan, answer["values"])
        if not answer["accepted"] and not said:
            said = ["not accepted"]
        outcomes.append(Outcome(name, said=tuple(said), compared=len(answer["values"])))
    return tuple(outcomes)


def result_of(form: Format, python: str, spread: Plans, zoo: Plans, root: Path) -> Result:
    """Both kinds of plans, in one run of the parser."""
    own = {f"{_ZOO}{name}": plan for name, plan in zoo.items()}
    outcomes = judge(form, python, {**spread, **own}, root)
    files = [form.folder / name for name in REQUIREMENTS[1:] if (form.folder / name).exists()]
    pins = [line.split("#")[0].strip() for file in files for line in file.read_text().splitlines()]
    return Result(
        tuple(pin for pin in pins if pin),
        outcomes[: len(spread)],
        tuple(replace(item, plan=item.plan.removeprefix(_ZOO)) for item in outcomes[len(spread) :]),
    )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(names())} (default: all)")
    parser.add_argument("--torch", default="torch==2.13.0", help="what is installed where a format needs torch")
    parser.add_argument(
        "--plan", action="append", default=[], metavar="TEXT", help="only plans whose name holds this; no record"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="render into DIR, and leave it there")
    arguments = parser.parse_args(given)
    if unknown := set(arguments.formats) - set(names()):
        parser.error(f"no such format: {', '.join(sorted(unknown))}")
    spread = {item.name: item.plan() for item in SPREAD if named(item.name, arguments.plan)}
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.formats or names():
            form, started = read_format(name), time.perf_counter()
            zoo = zoo_plans(form.target, tuple(arguments.plan))
            planned = time.perf_counter() - started
            python = python_of(form, arguments.torch)
            able = targets()[form.target].tasks if form.target else PLAIN
            own = {item: plan for item, plan in spread.items() if plan.task in able}
            result = result_of(form, python, own, zoo, arguments.keep or Path(scratch))
            print(
                f"{name}: {result} ({planned:.0f} s planning the zoo, {time.perf_counter() - started:.0f} s in all)",
                flush=True,
            )
            _print_wrong((*result.outcomes, *result.zoo))
            results[name] = result
            if not arguments.plan:  # what is done is kept where a later format fails
                (EVIDENCE / "formats.md").write_text(page(keep({name: result}, names())), encoding="utf-8")
    return 0 if all(result.passed for result in results.values()) else 1


def _print_wrong(outcomes: Iterable[Outcome]) -> None:
    """What the parser refused, once for all plans of which it says the same."""
    plans: dict[tuple[str, ...], list[str]] = {}
    for item in outcomes:
        if item.said:
            plans.setdefault(item.said, []).append(item.plan)
    for said, names in plans.items():
        print(f"  {', '.join(names)}: {' '.join(said)}", flush=True)

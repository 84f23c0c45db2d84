"""Change the code in one place at a time and see whether a test fails: `make mutants`.

    python -m tools mutants [--kind syntax|numbers] [--sample N] [--seed S] [--rooms ROOM …] [--record FILE]
                            [--resume | --again RECORD]

Of kind syntax, mutations are those of cosmic-ray's operators; of kind numbers, constants, lower bounds and signs
(`numbers.py`). A mutant is run against the test files that run the changed line (found
out once by coverage), quickest first, until one fails; of files that take long, against those of their tests that run
it. No mutant gets more than some minutes of tests. Everything happens in copies of the tree, in forks of a process that
has imported the code: a changed function only gets its new code there.

`equivalent.json` lists survivors that no test can kill, each with its reason.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tools.mutants import numbers
from tools.mutants.changes import Mutant, mutants
from tools.mutants.forks import OWN, in_fork, patched, run_tests
from tools.mutants.lines import Ran, Tests, digest

ROOT = Path(__file__).resolve().parent.parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent.json")
ROOMS = ("graph", "cost", "solve", "frameworks")
# Room by room the folders of tests that say most about it; the others' goldens would only repeat it, and slowly.
TESTS = ("oracle", "graph", "cost", "solve", "frameworks", "existing/launch", "existing/recover", "existing/rules")
SLACK, PLAIN = 20.0, 3600.0  # seconds more before a mutant counts as endless; of the tests on the code as it is


def outcome_of(tree: Path, mutant: Mutant, tests: Sequence[Ran]) -> str:
    """Killed, endless, survived, or not run. tree: of nobody else's meanwhile."""
    if not tests:
        return "not run"
    names, limit = [ran.name for ran in tests], SLACK + 3 * sum(ran.seconds for ran in tests)
    module = sys.modules[mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")]
    base = Path(str(module.__file__)).parents[mutant.path.count("/")]

    def quickly() -> int:
        return run_tests(base, names, afresh=False) if patched(module, mutant) else UNPATCHED

    status = in_fork(quickly, limit)
    if status == UNPATCHED:
        path = tree / mutant.path
        whole = path.read_text(encoding="utf-8")
        path.write_text(mutant.code, encoding="utf-8")
        try:
            status = in_fork(lambda: run_tests(tree, names), limit)
        finally:
            path.write_text(whole, encoding="utf-8")
    if status not in (None, 0, 1, 2, 4):  # 4: a test that is named after what was changed is no longer there
        raise RuntimeError(f"pytest ended with {status} at {mutant}")
    return "endless" if status is None else "killed" if status else "survived"


UNPATCHED = 71  # an exit status that pytest has not


def copies(number: int) -> list[Path]:
    """Of the tree, with compiled files that are checked by what they were compiled from."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    first = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in names:
        if (ROOT / name).is_file():
            (first / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, first / name)
    how = ["--invalidation-mode", "checked-hash", "symconfig"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *how], cwd=first, check=True)
    others = [Path(tempfile.mkdtemp(prefix="mutants-")) for _ in range(number - 1)]
    for tree in others:
        shutil.copytree(first, tree, dirs_exist_ok=True)
    return [first, *others]


def _sample(tree: Path, given: argparse.Namespace) -> list[Mutant]:
    """Kept with the lines that tests run: finding all places takes half a minute."""
    version = digest(tree, sorted((tree / "symconfig").rglob("*.py")))
    out = given.lines / f"sample.{given.kind}.{'.'.join(given.rooms)}.{given.sample}.{given.seed}.{version}.json"
    if out.exists():
        return [Mutant(**each) for each in json.loads(out.read_text(encoding="utf-8"))]
    made = numbers.mutants if given.kind == "numbers" else mutants
    sample = made(tree, given.rooms, given.sample, given.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(mutant) for mutant in sample]), encoding="utf-8")
    return sample


def _import(tree: Path, rooms: Sequence[str], files: Sequence[str]) -> None:
    """The copy's code and tests, for forks to have."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]
    for path in [*(tree / "symconfig").glob("*/**/*.py")]:
        if path.relative_to(tree).parts[1] in rooms:
            importlib.import_module(_name(path.relative_to(tree)))
    for file in files:
        importlib.import_module(_name(Path(file)))
    gc.freeze()


def _name(path: Path) -> str:
    return path.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--kind", choices=("syntax", "numbers"), default="syntax")
    parser.add_argument("--rooms", nargs="+", help=f"default: {' '.join(ROOMS)}; of numbers: {' '.join(numbers.ROOMS)}")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="folders of tests")
    parser.add_argument("--record", type=Path, help="where the numbers and the survivors go, as JSON")
    parser.add_argument("--lines", type=Path, default=ROOT / ".mutants", help="folder of the lines that tests run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on where the last run was stopped")
    parser.add_argument("--again", type=Path, help="a record: what it says is killed is not asked again")
    given = parser.parse_args()
    given.rooms = given.rooms or list(numbers.ROOMS if given.kind == "numbers" else ROOMS)
    for name in ("record", "lines", "again"):  # as the caller's folder has them: the run goes into a copy
        path = getattr(given, name)
        setattr(given, name, path and path.resolve())
    return given


def main() -> int:
    given = arguments()
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {what}", flush=True)

    trees = copies(given.processes + 2)  # the first one stays as it is
    try:
        sample = _sample(trees[0], given)
        tests = Tests(trees, given.tests, given.rooms, given.lines, say)
        _import(trees[0], given.rooms, sorted({ran.file for ran in tests.ran}))
        free = trees[1:]

        done: list[str] = []

        kept = given.lines / "outcomes.json"  # of this run so far
        known: dict[str, str] = json.loads(kept.read_text(encoding="utf-8")) if given.resume and kept.exists() else {}

        if given.again:
            record = json.loads(given.again.read_text(encoding="utf-8"))
            known |= dict.fromkeys(record["killed_names"].split(), "killed")

        def judge(mutant: Mutant) -> str:
            if mutant.name in known:
                return known[mutant.name]
            tree = free.pop()
            try:
                outcome = outcome_of(tree, mutant, asked[mutant.name])
            finally:
                free.append(tree)
            done.append(outcome)
            known[mutant.name] = outcome
            kept.write_text(json.dumps(known), encoding="utf-8")
            if outcome in ("survived", "not run"):
                say(f"{len(done)}: {outcome}: {mutant.path}:{mutant.line}\n    - {mutant.before}\n    + {mutant.after}")
            return outcome

        asked = {mutant.name: tests.of(mutant) for mutant in sample if mutant.name not in known}
        every = list({ran.name: None for found in asked.values() for ran in found})
        say(f"{len(asked)} of {len(sample)} mutants, seed {given.seed}, {len(every)} test files and tests")
        with ThreadPoolExecutor(given.processes + 1) as pool:
            plain = pool.submit(in_fork, lambda: run_tests(trees[0], every, afresh=False) if every else 0, PLAIN)
            outcomes = list(pool.map(judge, sample))
        if plain.result() != 0:
            raise RuntimeError("tests fail on the code as it is")
    finally:
        for tree in trees:
            shutil.rmtree(tree)
    return report(given, sample, outcomes)


def report(given: argparse.Namespace, sample: Sequence[Mutant], outcomes: Sequence[str]) -> int:
    """Print the numbers, and record them where asked. 1 where fewer than nine in ten were killed."""
    known = {(e["path"], e["before"], e["after"]) for e in json.loads(EQUIVALENT.read_text(encoding="utf-8"))}
    judged = [
        "equivalent" if outcome in ("survived", "not run", "endless") and mutant.key in known else outcome
        for mutant, outcome in zip(sample, outcomes, strict=True)
    ]
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in zip(sample, judged, strict=True):
        rooms["/".join(mutant.path.split("/")[1:-1][:2])][outcome] += 1
    whole = sum(rooms.values(), Counter[str]())
    killed, alive = whole["killed"] + whole["endless"], whole["survived"] + whole["not run"]
    for room, outcome_counts in (*sorted(rooms.items()), ("all", whole)):
        print(f"{room:20}", *(f"{name} {outcome_counts[name]}" for name in sorted(whole)), sep="  ")
    share = killed / max(killed + alive, 1)
    print(f"killed {killed} of {killed + alive} that are not equivalent: {100 * share:.1f} %")
    if given.record:
        commit = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        survivors = [
            {
                key: value
                for key, value in asdict(mutant).items()
                if key in ("name", "path", "line", "operator", "before", "after")
            }
            | {"outcome": outcome}
            for mutant, outcome in zip(sample, judged, strict=True)
            if outcome not in ("killed", "endless")
        ]
        entry = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": commit,
            "seed": given.seed,
            "sample": len(sample),
            "rooms": {room: dict(counted) for room, counted in sorted(rooms.items())},
            "killed": killed,
            "survived": alive,
            "equivalent": whole["equivalent"],
            "share_killed": round(share, 4),
            "survivors": survivors,
            "killed_names": " ".join(
                sorted(
                    mutant.name
                    for mutant, outcome in zip(sample, judged, strict=True)
                    if outcome in ("killed", "endless")
                )
            ),
        }
        given.record.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")
    return int(share < 0.9)

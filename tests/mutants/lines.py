"""Which test files run which lines of the code, found out once by coverage."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Mutant
from tests.mutants.forks import in_fork, run_tests

# Seconds of a test file, and of all for one mutant, without importing the code.
LONGEST, BUDGET = 22.0, 40.0


@dataclass(frozen=True)
class Ran:
    """A test file: its seconds, and the lines of each module that it ran."""

    file: str
    seconds: float
    lines: dict[str, frozenset[int]]


def measured(tree: Path, file: str, out: Path) -> int:
    """In this process: a test file's lines and seconds, into a file."""
    import coverage

    watch = coverage.Coverage(data_file=None, include=[f"{tree}/symconfig/*"])
    begun = time.process_time()
    watch.start()
    status = run_tests(tree, [file])
    watch.stop()
    data = watch.get_data()
    lines = {Path(path).relative_to(tree).as_posix(): data.lines(path) for path in data.measured_files()}
    out.write_text(json.dumps({"seconds": time.process_time() - begun, "lines": lines}), encoding="utf-8")
    return status


def imported(tree: Path, modules: Sequence[str], out: Path) -> int:
    """In this process: the lines that importing the modules runs, into a file."""
    import coverage

    os.chdir(tree)
    sys.path.insert(0, str(tree))
    watch = coverage.Coverage(data_file=None, include=[f"{tree}/symconfig/*"])
    watch.start()
    for module in modules:
        importlib.import_module(module)
    watch.stop()
    data = watch.get_data()
    lines = {Path(path).relative_to(tree).as_posix(): data.lines(path) for path in data.measured_files()}
    out.write_text(json.dumps({"seconds": 0.0, "lines": lines}), encoding="utf-8")
    return 0


def _read(file: str, out: Path) -> Ran:
    found = json.loads(out.read_text(encoding="utf-8"))
    return Ran(file, found["seconds"], {path: frozenset(lines) for path, lines in found["lines"].items()})


def digest(tree: Path, files: Sequence[Path]) -> str:
    """Of files by name and content."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(tree)}\n".encode() + file.read_bytes())
    return whole.hexdigest()[:12]


class Tests:
    """Which test files run a line."""

    def __init__(
        self,
        trees: Sequence[Path],
        folders: Sequence[str],
        rooms: Sequence[str],
        scratch: Path,
        say: Callable[[str], None],
    ) -> None:
        """scratch: where what was found out is kept for the next time."""
        self._scratch, self._code = scratch, digest(trees[0], sorted((trees[0] / "symconfig").rglob("*.py")))
        scratch.mkdir(parents=True, exist_ok=True)
        self.ran: list[Ran] = []
        self.left_out: list[str] = []
        first = trees[0]
        given = [first / "tests" / name for name in folders]
        found = {file for path in given for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
        files = sorted(file.relative_to(first).as_posix() for file in found)
        modules = [
            path.relative_to(first).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            for room in rooms
            for path in sorted((first / "symconfig" / room).rglob("*.py"))
        ]
        out = self._scratch / "imported.json"
        in_fork(lambda: imported(first, modules, out), 60)
        self.imported = _read("", out).lines
        free = list(trees)
        with ThreadPoolExecutor(len(trees)) as pool:
            for file, ran in zip(files, pool.map(lambda file: self._one(free, file), files), strict=True):
                if ran is None:
                    self.left_out.append(file)
                else:
                    self.ran.append(ran)
        self.ran.sort(key=lambda ran: ran.seconds)
        self._least = min(ran.seconds for ran in self.ran)
        say(f"{len(self.ran)} test files in {sum(ran.seconds for ran in self.ran):.0f} s; left out: {self.left_out}")

    def _one(self, free: list[Path], file: str) -> Ran | None:
        tree = free.pop()
        version = digest(tree, [tree / file]) + self._code
        out = self._scratch / f"{file.replace('/', '.')}.{version}.json"
        status = 0 if out.exists() else in_fork(lambda: measured(tree, file, out), 2 * LONGEST)
        free.append(tree)
        if status != 0:  # too long, or it fails as it is: not tried again until it changes
            out.write_text(json.dumps({"seconds": 1e9, "lines": {}}), encoding="utf-8")
        ran = _read(file, out)
        return ran if ran.seconds <= LONGEST else None

    def of(self, mutant: Mutant) -> list[Ran]:
        """Those that run the line; for a line that importing runs, those that run a function of its module."""
        there, mine = self.imported.get(mutant.path, frozenset()), set(range(mutant.line, mutant.last_line + 1))
        if mine & there:
            inside = [ran for ran in self.ran if ran.lines.get(mutant.path, frozenset()) - there]
            found = inside or [ran for ran in self.ran if mutant.path in ran.lines]
        else:
            found = [ran for ran in self.ran if ran.lines.get(mutant.path, frozenset()) & mine]
        result, seconds = [], 0.0
        for ran in found:
            seconds += ran.seconds - self._least
            if result and seconds > BUDGET:
                break
            result.append(ran)
        return result

"""Which tests run which lines of the code, found out once by coverage."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.mutants.changes import Mutant
from tools.mutants.forks import in_fork, run_tests

# Seconds of a processor while coverage watches: a file that takes longer is run test by test; all tests of one mutant;
# what a file may take at all.
LONGEST, BUDGET, MOST = 10.0, 160.0, 900.0


@dataclass(frozen=True)
class Ran:
    """A test file, or one test of a long one: its seconds, and the lines of each module that it ran."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class _TestByTest:
    """Says to coverage which test runs, and takes the time of each."""

    def __init__(self, watch: Any) -> None:
        self.watch, self.seconds = watch, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        self.watch.switch_context(self.test)
        begun = time.process_time()
        result = yield
        self.seconds[self.test] = time.process_time() - begun
        self.watch.switch_context("")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """What is made once for several tests is run by all of them."""
        shared = fixturedef.scope != "function"
        if shared:
            self.watch.switch_context("")
        result = yield
        if shared:
            self.watch.switch_context(self.test)
        return result


def measured(tree: Path, file: str, out: Path) -> int:
    """In this process: a test file's lines and seconds, into a file; of a long one those of each of its tests."""
    import coverage

    watch = coverage.Coverage(data_file=None, include=[f"{tree}/symconfig/*"])
    watch.start()
    each = _TestByTest(watch)
    status = run_tests(tree, [file], plugins=[each])
    watch.stop()
    data = watch.get_data()
    ran: dict[str, dict[str, list[int]]] = {test: {} for test in each.seconds}
    whole: dict[str, list[int]] = {}
    for module in data.measured_files():
        path = Path(module).relative_to(tree).as_posix()
        whole[path] = data.lines(module) or []
        for line, tests in data.contexts_by_lineno(module).items():
            for test in each.seconds if "" in tests else tests:
                ran[test].setdefault(path, []).append(line)
    total = sum(each.seconds.values())
    found = [(file, total, whole)] if total <= LONGEST else [(test, each.seconds[test], ran[test]) for test in ran]
    out.write_text(json.dumps(found), encoding="utf-8")
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
    out.write_text(json.dumps([("", 0.0, lines)]), encoding="utf-8")
    return 0


def _read(out: Path) -> list[Ran]:
    found = json.loads(out.read_text(encoding="utf-8"))
    return [Ran(name, seconds, {path: frozenset(of) for path, of in lines.items()}) for name, seconds, lines in found]


def digest(tree: Path, files: Sequence[Path]) -> str:
    """Of files by name and content."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(tree)}\n".encode() + file.read_bytes())
    return whole.hexdigest()[:12]


class Tests:
    """Which tests run a line."""

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
        (there,) = _read(out)
        self.imported = there.lines
        free = list(trees)
        with ThreadPoolExecutor(len(trees)) as pool:
            for file, found in zip(files, pool.map(lambda file: self._one(free, file), files), strict=True):
                self.ran += found
                if not found:
                    self.left_out.append(file)
        self.ran.sort(key=lambda ran: ran.seconds)
        say(f"{len(files)} test files in {sum(ran.seconds for ran in self.ran):.0f} s; left out: {self.left_out}")

    def _one(self, free: list[Path], file: str) -> list[Ran]:
        tree = free.pop()
        version = digest(tree, [tree / file]) + self._code
        out = self._scratch / f"{file.replace('/', '.')}.{version}.json"
        status = 0 if out.exists() else in_fork(lambda: measured(tree, file, out), MOST)
        free.append(tree)
        if status != 0:  # too long, or it fails as it is: not tried again until it changes
            out.write_text("[]", encoding="utf-8")
        return _read(out)

    def of(self, mutant: Mutant) -> list[Ran]:
        """Tests that run the line, quickest first; those that run a function of its module, where importing runs it."""
        there = self.imported.get(mutant.path, frozenset())
        here = [(ran, ran.lines[mutant.path]) for ran in self.ran if mutant.path in ran.lines]
        mine = set(range(mutant.line, mutant.last_line + 1))
        if not mine & there.union(*(lines for _, lines in here)):
            mine = set(range(mutant.statement, mutant.last_line + 1))
        if mine & there:
            found = [ran for ran, lines in here if lines - there] or [ran for ran, _ in here]
        else:
            found = [ran for ran, lines in here if lines & mine]
        result, seconds = [], 0.0
        for ran in found:
            seconds += ran.seconds
            if result and seconds > BUDGET:
                break
            result.append(ran)
        return result

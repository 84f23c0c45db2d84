"""Measure the size and shape of the code: `python -m tools house [--list NAME] [--budget]`.

Lines, logical lines and files by room, tests, proofs (tools/verify) and words of documentation; what one plan calls;
and places where something stands that should stand elsewhere. All but the calls is read from the source.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "symconfig"
# `python -m tools verify`: checks against real programs. They are counted beside the tests, and by no budget.
PROOFS = ROOT / "tools" / "verify"
BUDGET = ROOT / "benchmarks" / "budget.json"
DATA = ("*.json", "*.yaml", "*.csv")
FRAMEWORK_NAMES = frozenset({"megatron", "deepspeed", "fsdp", "bridge", "transformers"})
NAMED_FREELY = frozenset({"frameworks", "render", "formats", "verify"})  # where a framework's name may decide something
# A class that has most of these fields carries a configuration.
DEGREES = frozenset({"tp", "pp", "cp", "ep", "etp", "dp"})
MOST_DEGREES = 4
POINTS, NAMES, SHORT = "classes that carry a point", "comparisons with a framework's name", "files under 40 lines"
FINDINGS = (POINTS, NAMES, SHORT)
SHORT_LINES = 40
# Prints how many functions of the package one plan calls, and in how many files.
CALLS = """
import contextlib, io, sys
called = set()
def note(frame, event, _):
    if event == "call" and "/symconfig/" in frame.f_code.co_filename:
        called.add((frame.f_code.co_filename, frame.f_code.co_qualname))
from symconfig.cli.main import main
sys.setprofile(note)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main("plan --model llama3.1-70b --cluster h100 --gpus 512 --global-batch-size 1024 --seq-length 8192".split())
sys.setprofile(None)
plain = {one for one in called if "<" not in one[1].rsplit(".", 1)[-1]}
print(len(plain), len({file for file, _ in plain}))
"""


def sources() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    return modules


def room(module: str) -> str:
    """Return the folder of a module at the root of the package, or `(root)`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "(root)"


def imports(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules of the package that a file imports, also inside functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "symconfig":
            wholes = ((f"{node.module}.{alias.name}", str(node.module)) for alias in node.names)
            found |= {whole if whole in modules else module for whole, module in wholes}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
    return found


def findings() -> dict[str, list[str]]:
    """Return for each of FINDINGS where it stands, as `file:line: text`."""
    places: dict[str, list[str]] = {name: [] for name in FINDINGS}
    for module, path in sources().items():
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        if len(text.splitlines()) < SHORT_LINES and path.name != "__init__.py":
            places[SHORT].append(str(place))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                fields = {each.target.id for each in node.body
                          if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}  # fmt: skip
                if len(fields & DEGREES) >= MOST_DEGREES:
                    places[POINTS].append(f"{place}:{node.lineno}: {node.name}")
            elif isinstance(node, ast.Compare) and room(module) not in NAMED_FREELY:
                words = {each.value for side in (node.left, *node.comparators) for each in ast.walk(side)
                         if isinstance(each, ast.Constant) and isinstance(each.value, str)}  # fmt: skip
                places[NAMES] += [f"{place}:{node.lineno}: {word}" for word in sorted(words & FRAMEWORK_NAMES)]
    return places


def logical_lines(path: Path) -> int:
    """Return the number of logical lines of a Python file: statements and clauses, however they are broken."""
    with path.open("rb") as file:
        return sum(token.type == tokenize.NEWLINE for token in tokenize.tokenize(file.readline))


def lines(path: Path) -> int:
    """Return the number of lines of a text file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes() -> dict[str, int]:
    """Return what benchmarks/budget.json bounds: logical lines of Python without proofs, and lines of data files."""
    python = [path for name in ("symconfig", "tools", "templates") for path in (ROOT / name).rglob("*.py")]
    python = [path for path in python if PROOFS not in path.parents]
    data = [path for name in ("symconfig", "model_zoo") for kind in DATA for path in (ROOT / name).rglob(kind)]
    return {"logical lines": sum(map(logical_lines, python)), "lines of data": sum(map(lines, data))}


def over_budget() -> list[str]:
    """Return a sentence for each size that exceeds its budget."""
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    return [
        f"{name}: {size:,}, more than the {budget[name]:,} of benchmarks/budget.json. Remove as much as you add."
        for name, size in sizes().items()
        if size > budget[name]
    ]


def words_of_docs() -> int:
    """Return the number of words of README and docs/, without reference and evidence."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    told = [page for page in pages if not {"reference", "evidence"} & set(page.relative_to(ROOT).parts)]
    return sum(len(re.findall(r"\S+", page.read_text(encoding="utf-8"))) for page in told)


def table() -> Iterator[str]:
    """Yield the lines of the report. Runs one plan in a process of its own, to count what it calls."""
    rooms: dict[str, list[Path]] = defaultdict(list)
    for module, path in sources().items():
        rooms[room(module)].append(path)
    rooms["all"] = list(sources().values())
    yield f"{'room':<14}{'files':>8}{'lines':>10}{'logical':>10}"
    for name, paths in rooms.items():
        yield f"{name:<14}{len(paths):>8,}{sum(map(lines, paths)):>10,}{sum(map(logical_lines, paths)):>10,}"
    yield ""
    yield from (f"{name}: {size:,}" for name, size in sizes().items())
    yield from (f"{name}: {len(places)}" for name, places in findings().items())
    functions, files = subprocess.run(
        [sys.executable, "-c", CALLS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    yield f"functions called by one plan of 70B: {functions} in {files} files"
    tests, proofs = (sum(map(lines, folder.rglob("*.py"))) for folder in (ROOT / "tests", PROOFS))
    yield f"lines of tests: {tests:,}, and of proofs in tools/verify: {proofs:,}"
    yield f"words of docs outside reference and evidence: {words_of_docs():,}"
    record = json.loads((ROOT / "benchmarks" / "mutants.json").read_text(encoding="utf-8"))
    yield f"mutants killed: {record['killed']} of {record['killed'] + record['survived']} ({record['date']})"


def main() -> str | None:
    """Print the report or a list; with --budget return the sentences of sizes beyond their budget, None for none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=FINDINGS, help="show where these stand")
    parser.add_argument("--budget", action="store_true", help="exit 1 where the code or its data exceed their budget")
    arguments = parser.parse_args()
    if arguments.budget:
        return "\n".join(over_budget()) or None
    for line in findings()[arguments.list] if arguments.list else table():
        print(line)
    return None


if __name__ == "__main__":
    sys.exit(main())

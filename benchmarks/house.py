"""Measure the shape of the code: `python -m tools house [--json FILE] [--list NAME] [--budget]`.

Lines by room, files, circles of imports, and places where something stands that should stand elsewhere: comparisons
with a framework's or a model family's name, names of operators in the costs, calls with many positional arguments,
classes that name a point of the space. Read from the source alone; nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.syntax import (
    circles,
    compared,
    docstrings,
    functions,
    imports,
    lines,
    literal,
    pieces,
    tables,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "symconfig"
FRAMEWORK_NAMES = frozenset({"megatron", "deepspeed", "fsdp", "bridge", "transformers"})
NAMED_FREELY = frozenset({"frameworks", "render", "verify"})  # rooms where a framework's name may decide something
MODEL_ROOMS = frozenset({"graph", "cost", "solve"})  # rooms where no model's family may
BUDGET = ROOT / "benchmarks" / "budget.json"
DATA = ("*.json", "*.yaml", "*.csv")
MANY_ARGUMENTS = 7
SHORT_FILE = 40
LONG_NAME = 4  # letters of a name that is looked for behind a prefix, too
# The fields by which a class is recognised as a shape of a configuration: it names most of the degrees.
DEGREES = frozenset({"tp", "pp", "cp", "ep", "etp", "dp"})
MOST_DEGREES = 4


@dataclass(slots=True)
class House:
    """The counts. places: where each kind of finding stands, as `file:line: text`."""

    rooms: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    circles: list[list[str]] = field(default_factory=list)


def sources() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    return modules


def room(module: str) -> str:
    """Return the folder at the root of the package, or `(root)`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "(root)"


def families() -> frozenset[str]:
    """Return model types and families, as the zoo and the importers name them."""
    names = {path.stem for path in (PACKAGE / "descriptor" / "architectures").rglob("*.py")} - {"__init__"}
    for path in (ROOT / "model_zoo" / "models").glob("*.yaml"):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        names |= {path.stem, str(data.get("model_type", path.stem))}
    return frozenset(names)


def operators(modules: Mapping[str, Path]) -> frozenset[str]:
    """Return the names that the blocks give: operators, tensors, weights, modules, kinds, dims.

    One of the first two arguments of a call in graph/blocks, or its `name` or `kind`; of a formatted one each piece;
    and a constant of a module there.
    """
    names = set()
    for module, path in modules.items():
        if not module.startswith("symconfig.graph.blocks"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                given = [*node.args[:2], *(word.value for word in node.keywords if word.arg in ("name", "kind"))]
                names |= {word for each in given for word in pieces(each)}
        for statement in tree.body:
            if isinstance(statement, ast.Assign):
                values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
                names |= {word for each in values for word in pieces(each)}
    return frozenset(bare(word) for word in names if any(letter.isalpha() for letter in word))


def bare(name: str) -> str:
    """Return a name without what says which of an operator's tensors it is."""
    return name.removesuffix(".weight").removesuffix(".bias").strip("._")


def named(word: str, names: frozenset[str]) -> bool:
    """Tell whether a literal is such a name, alone or behind a prefix."""
    last = bare(word)
    ends = [last[place:] for place in range(1, len(last)) if last[place - 1] in "._"]
    return bool(last) and (last in names or any(end in names and len(end) >= LONG_NAME for end in ends))


def measure() -> House:
    """Read the whole package."""
    modules, house = sources(), House()
    model_names, operator_names = families(), operators(modules)
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        text = path.read_text(encoding="utf-8")
        tree, place = ast.parse(text), path.relative_to(ROOT)
        here = room(name)
        house.rooms[here] += lines(text, tree)
        house.rooms[here]["files"] += 1
        graph[name] = {other for other in imports(tree, modules) if other != name}
        if len(text.splitlines()) < SHORT_FILE and path.name != "__init__.py":
            house.places["files under 40 lines"].append(str(place))
        house.rooms[here]["functions"] += sum(1 for _ in functions(tree))
        for number, word in tables(tree):
            if word in FRAMEWORK_NAMES and here not in NAMED_FREELY:
                house.places["tables by a framework's name"].append(f"{place}:{number}: {word}")
        for number, word in compared(tree):
            if word in FRAMEWORK_NAMES and here not in NAMED_FREELY:
                house.places["comparisons with a framework's name"].append(f"{place}:{number}: {word}")
        for number, word in compared(tree, looked_up=False):
            if word in model_names and here in MODEL_ROOMS:
                house.places["comparisons with a model's family"].append(f"{place}:{number}: {word}")
        texts = docstrings(tree)
        in_cost = here == "cost"
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                count = sum(not isinstance(each, ast.Starred) for each in node.args)
                if count >= MANY_ARGUMENTS:
                    called = ast.unparse(node.func)
                    house.places["calls with seven positional arguments or more"].append(
                        f"{place}:{node.lineno}: {called} with {count}"
                    )
            elif isinstance(node, ast.ClassDef):
                fields = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)
                          and isinstance(item.target, ast.Name)}  # fmt: skip
                if len(fields & DEGREES) >= MOST_DEGREES:
                    house.places["shapes of a configuration"].append(f"{place}:{node.lineno}: {node.name}")
            elif (
                in_cost
                and id(node) not in texts
                and isinstance(node, ast.expr)
                and (word := literal(node))
                and named(word, operator_names)
            ):
                house.places["names of operators in cost"].append(f"{place}:{node.lineno}: {word}")
    house.circles = circles({name: others & graph.keys() for name, others in graph.items()})
    return house


FINDINGS = (
    "comparisons with a framework's name",
    "tables by a framework's name",
    "comparisons with a model's family",
    "names of operators in cost",
    "shapes of a configuration",
    "calls with seven positional arguments or more",
    "files under 40 lines",
)
KINDS = ("files", "code", "docstring", "comment", "blank")  # the other counts of a room are no lines


def figures(house: House) -> dict[str, object]:
    """Return plain data."""
    total: Counter[str] = sum(house.rooms.values(), Counter())
    return {
        "rooms": {name: dict(sorted(house.rooms[name].items())) for name in sorted(house.rooms)},
        "total": dict(sorted(total.items())),
        "lines": sum(total[kind] for kind in KINDS[1:]),
        **sizes(),
        "files at the root": house.rooms["(root)"]["files"],
        "circles of imports": [len(circle) for circle in house.circles],
        **{name: len(house.places[name]) for name in FINDINGS},
        "mutants killed": mutants_killed(),
    }


def mutants_killed() -> str:
    """Say how many mutants the tests killed when `make mutants` was last run."""
    record = json.loads((ROOT / "benchmarks" / "mutants.json").read_text(encoding="utf-8"))
    killed, alive = record["killed"], record["survived"]
    return f"{killed} of {killed + alive} that are not equivalent, {killed / (killed + alive):.1%} ({record['date']})"


def sizes() -> dict[str, int]:
    """Return what benchmarks/budget.json bounds: logical lines of Python, and lines of data files."""
    python = [path for name in ("symconfig", "tools", "templates") for path in (ROOT / name).rglob("*.py")]
    data = [path for name in ("symconfig", "model_zoo") for kind in DATA for path in (ROOT / name).rglob(kind)]
    return {
        "logical lines": sum(map(logical_lines, python)),
        "lines of data": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in data),
    }


def logical_lines(path: Path) -> int:
    """Return the number of logical lines of a Python file: statements and clauses, however they are broken."""
    with path.open("rb") as file:
        return sum(token.type == tokenize.NEWLINE for token in tokenize.tokenize(file.readline))


def over_budget() -> list[str]:
    """Return a sentence for each size that exceeds its budget."""
    budget = json.loads(BUDGET.read_text(encoding="utf-8"))
    return [
        f"{name}: {size:,}, more than the {budget[name]:,} of benchmarks/budget.json. Remove as much as you add."
        for name, size in sizes().items()
        if size > budget[name]
    ]


def table(counted: Mapping[str, object]) -> str:
    """Write the figures as text."""
    rooms = counted["rooms"]
    assert isinstance(rooms, dict)
    shown = [f"{'room':<12}" + "".join(f"{kind:>11}" for kind in KINDS)]
    for name, counts in (*rooms.items(), ("all", counted["total"])):
        shown.append(f"{name:<12}" + "".join(f"{counts.get(kind, 0):>11,}" for kind in KINDS))
    shown.append("")
    shown += [f"{name}: {value}" for name, value in counted.items() if name not in ("rooms", "total")]
    return "\n".join(shown)


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--list", choices=(*FINDINGS, "circles"), help="show where these stand")
    parser.add_argument("--budget", action="store_true", help="exit 1 where the code or its data exceed their budget")
    arguments = parser.parse_args()
    if arguments.budget:
        return "\n".join(over_budget()) or None
    house = measure()
    if arguments.list == "circles":
        print("\n".join(", ".join(circle) for circle in house.circles))
    elif arguments.list:
        print("\n".join(house.places[arguments.list]))
    else:
        counted = figures(house)
        print(table(counted))
        if arguments.json:
            arguments.json.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())

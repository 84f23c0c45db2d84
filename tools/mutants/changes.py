"""What can be changed in the code, by cosmic-ray's operators, and a sample of it."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Of arithmetic only what may be mistaken for one another; other operators fail at once on floating-point numbers.
ALIKE = (("Add", "Sub", "Mul", "Div"), ("FloorDiv", "Div", "Mod"), ("Pow", "Mul"), ("BitOr", "BitAnd", "Sub"))
# Removing a cache changes no answer; removing a dataclass's decorator breaks everything; what is equal is mostly one
# object, and ruff refuses the rest.
LEFT_OUT = (
    "core/RemoveDecorator",
    "core/ReplaceComparisonOperator_Eq_Is",
    "core/ReplaceComparisonOperator_NotEq_IsNot",
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
)
# Keywords that only say what must not happen, how much a cache holds, or what tests and pages are handed.
GUARDS = ("frozen", "slots", "kw_only", "strict", "maxsize", "compare", "repr", "example")


@dataclass(frozen=True)
class Mutant:
    """One change. before, after: its line. name: short, and the same as long as its line stays as it is.

    statement: the first line of the statement that holds it, of which alone Python may say that it ran.
    """

    name: str
    path: str
    statement: int
    line: int
    last_line: int
    operator: str
    before: str
    after: str
    code: str = field(repr=False, compare=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path, self.before, self.after


def mutants(root: Path, rooms: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Sample places of the code, and one of the changes at each.

    Every place has a rank of its own, which follows from its line alone, and the lowest are taken: where code changes,
    the rest of the sample stays, but for the few that new places push out.
    """
    places: dict[str, list[tuple[str, Path, tuple[int, int], _Change]]] = {}
    for path in sorted(file for room in rooms for file in (root / "symconfig" / room).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        lines = list(_named(path))
        for (line, column), change in _changes(path):
            text, nth = lines[line - 1]
            place = f"{name}\n{text.strip()}\n{nth}\n{column - len(text) + len(text.lstrip())}"
            there = places.setdefault(place, [])
            same = sum(other.operator == change.operator for *_, other in there)
            there.append((f"{place}\n{change.operator}\n{same}", path, (line, column), change))
    result: list[Mutant] = []
    for place in sorted(places, key=lambda place: _rank(seed, place)):
        name, path, at, change = min(places[place], key=lambda one: _rank(seed, one[0]))
        made = _mutant(root, path, at, change, name)
        if made is not None:
            result.append(made)
        if len(result) == number:
            break
    return result


def _rank(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\n{name}".encode()).hexdigest()


def _named(path: Path) -> Iterator[tuple[str, int]]:
    """Each line, and how many like it stand above it."""
    above: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        yield line, above[line.strip()]
        above[line.strip()] += 1


@dataclass(frozen=True)
class _Change:
    """made: the operator of cosmic-ray. occurrence: which of its places in the file."""

    operator: str
    made: Any
    occurrence: int
    last_line: int


def _changes(path: Path) -> Iterator[tuple[tuple[int, int], _Change]]:
    """Where something can be changed, line and column, and how."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    nodes, ignored = list(ast_nodes(get_ast_from_path(path))), _ignored(path.read_text(encoding="utf-8"))
    known: dict[str, list[tuple[tuple[int, int], int]]] = {}
    for name in sorted(plugins.operator_names()):
        kind = plugins.get_operator(name)
        if name in LEFT_OUT or kind.arguments() or not _alike(name):
            continue
        operator = kind()
        replaced = name.rpartition("_")[0] or name  # ReplaceBinaryOperator_Add_Sub and its kind have the same places
        if replaced not in known:
            known[replaced] = [
                (tuple(start), end[0]) for node in nodes for start, end in operator.mutation_positions(node)
            ]
        for occurrence, (start, last) in enumerate(known[replaced]):
            if not any(first <= start < end for first, end in ignored):
                yield start, _Change(name, operator, occurrence, last)


def _alike(operator: str) -> bool:
    _, found, names = operator.partition("ReplaceBinaryOperator_")
    before, _, after = names.partition("_")
    return not found or any(before in group and after in group for group in ALIKE)


def _ignored(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Annotations, which nothing evaluates; what is imported for them alone; guards, which no right program meets."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            found.append(node.returns)
        elif isinstance(node, ast.keyword) and node.arg in GUARDS:
            found.append(node)
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            found += node.body
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in found]  # type: ignore[attr-defined]


def _mutant(root: Path, path: Path, place: tuple[int, int], change: _Change, name: str) -> Mutant | None:
    from cosmic_ray.mutating import mutate_code

    before = path.read_text(encoding="utf-8")
    after = mutate_code(before, change.made, change.occurrence)
    if after is None or after == before or _same_program(before, after):
        return None
    lines, changed = before.splitlines(), after.splitlines()
    at = next((n for n, (a, b) in enumerate(zip(lines, changed, strict=False)) if a != b), place[0] - 1)
    return Mutant(
        name=hashlib.sha256(name.encode()).hexdigest()[:8],
        path=path.relative_to(root).as_posix(),
        statement=_statement(before, at + 1),
        line=at + 1,
        last_line=max(change.last_line, at + 1),
        operator=change.operator,
        before=lines[at].strip(),
        after=changed[at].strip(),
        code=after,
    )


def _statement(source: str, line: int) -> int:
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    return max(node.lineno for node in statements if node.lineno <= line <= (node.end_lineno or line))


def _same_program(before: str, after: str) -> bool:
    """Whether it does not even parse, or says the same."""
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except SyntaxError:
        return True

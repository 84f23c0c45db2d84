"""Changes of constants, lower bounds and signs: what a fitted model and a search with bounds can be wrong in."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.mutants.changes import Mutant

CONSTANT, BOUND = 1.2, 1.02  # factors: of a constant; of a lower bound of seconds or bytes
TOLERANCE = 1e-7  # constants below it say when two numbers are equal
RETURNS_BOUND = re.compile(r"\bReturn (a|the) lower bound")
TURNED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Add: "+", ast.Sub: "-"}
OPPOSITE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "+": "-", "-": "+"}
ROOMS = ("cost", "solve")


def mutants(root: Path, rooms: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Return a sample of the changes of constants, lower bounds and signs in some rooms, as many of each kind.

    A change's rank follows from its line alone: where code changes, the rest of the sample stays.
    """
    ranked: dict[str, list[tuple[str, Mutant]]] = {}
    for path in sorted(file for room in rooms for file in (root / "symconfig" / room).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for mutant in _of_file(name, path.read_text(encoding="utf-8")):
            rank = hashlib.sha256(f"{seed}\n{mutant.name}".encode()).hexdigest()
            ranked.setdefault(mutant.operator, []).append((rank, mutant))
    each = -(-number // max(len(ranked), 1))
    first = [mutant for kind in sorted(ranked) for _, mutant in sorted(ranked[kind], key=lambda one: one[0])[:each]]
    return first[:number]


def _of_file(path: str, source: str) -> Iterator[Mutant]:
    """Yield all changes of a file, each named by its line, the place in it and how many equal lines stand above."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw, above = source.encode(), Counter[str]()
    nth = []
    for line in lines:
        nth.append(above[line.strip()])
        above[line.strip()] += 1
    for operator, statement, node, text in _changes(ast.parse(source), source):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        code = (raw[:begin] + text.encode() + raw[end:]).decode()
        line = lines[node.lineno - 1]
        place = f"{path}\n{line.strip()}\n{nth[node.lineno - 1]}\n{node.col_offset}\n{operator}"
        yield Mutant(
            name=hashlib.sha256(place.encode()).hexdigest()[:8],
            path=path,
            statement=statement,
            line=node.lineno,
            last_line=node.end_lineno or node.lineno,
            operator=operator,
            before=line.strip(),
            after=code.splitlines()[node.lineno - 1].strip(),
            code=code,
        )


def _changes(tree: ast.Module, source: str) -> Iterator[tuple[str, int, ast.expr, str]]:
    """Yield the kind of each change, the first line of its statement, the expression, and what stands in its place."""
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt):
            continue
        is_code = isinstance(statement, ast.FunctionDef)
        if is_code and RETURNS_BOUND.search(ast.get_docstring(statement) or ""):
            for inner in ast.walk(statement):
                if isinstance(inner, ast.Return) and isinstance(inner.value, ast.BinOp | ast.Call | ast.Name):
                    yield "bound", inner.lineno, inner.value, f"({_text(source, inner.value)}) * {BOUND}"
        for node in _expressions(statement):
            if isinstance(node, ast.Constant) and type(node.value) is float and node.value > TOLERANCE:
                yield "constant", statement.lineno, node, f"{node.value * CONSTANT!r}"
            elif isinstance(node, ast.BinOp) and type(node.op) in TURNED:
                yield "sign", statement.lineno, node, _turned(source, node.left, type(node.op), node.right)
            elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in TURNED:
                turned = _turned(source, node.left, type(node.ops[0]), node.comparators[0])
                yield "sign", statement.lineno, node, turned


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of the statements in it and without annotations."""
    for name, value in ast.iter_fields(statement):
        if name in ("annotation", "returns", "args", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield from (node for node in ast.walk(child) if isinstance(node, ast.expr))


def _turned(source: str, left: ast.expr, operator: type[ast.AST], right: ast.expr) -> str:
    return f"({_text(source, left)}) {OPPOSITE[TURNED[operator]]} ({_text(source, right)})"


def _text(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)

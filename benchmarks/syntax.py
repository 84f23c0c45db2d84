"""What can be read from the source of a module: lines, imports, the words that it compares, the names that it binds."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path


def lines(text: str, tree: ast.Module) -> Counter[str]:
    """Count lines of code, docstrings, comments and blanks."""
    kinds = ["blank" if not line.strip() else "code" for line in text.splitlines()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                    kinds[number] = "docstring"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    return Counter(kinds)


def imports(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "symconfig":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    waiting: set[str] = set()
    components: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        waiting.add(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in waiting:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component: list[str] = []
            while name not in component:
                component.append(stack.pop())
                waiting.discard(component[-1])
            if len(component) > 1:
                components.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return components


def literal(node: ast.expr) -> str | None:
    """Return the text of a string in the source, None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def docstrings(tree: ast.Module) -> frozenset[int]:
    """Return the identities of the strings that stand alone, as docstrings do."""
    return frozenset(id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr))


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the module's names for texts: `JSON = "deepspeed"`."""
    values = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if targets and isinstance(value, ast.Constant) and isinstance(value.value, str):
            values |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return values


def compared(tree: ast.Module, looked_up: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the words that `==`, `!=`, `is`, `in`, a `match` case, a look-up or the beginning of a text decides by.

    A name of the module for a word counts as the word, and so does a member of an enum (`Framework.MEGATRON`). Words of
    `Literal[...]` are a type. looked_up: count look-ups and members.
    """
    named = constants(tree)
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) != "Literal":
            operands = [node.slice] if looked_up else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            operands = node.args[:1] if node.func.attr in ("startswith", "endswith") else []
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        for operand in operands:
            inner = operand.elts if isinstance(operand, ast.Tuple | ast.Set | ast.List) else (operand,)
            for each in inner:
                word = literal(each)
                if isinstance(each, ast.Name):
                    word = named.get(each.id)
                elif (
                    looked_up
                    and isinstance(each, ast.Attribute)
                    and each.attr.isupper()
                    and isinstance(node, ast.Compare)
                ):
                    word = each.attr.lower()
                if word is not None and hasattr(each, "lineno"):
                    yield each.lineno, word


def tables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the literal keys of dicts."""
    for node in ast.walk(tree):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if key is not None and (word := literal(key)) is not None:
                yield key.lineno, word


def pieces(node: ast.expr) -> Iterator[str]:
    """Yield the literal text of a string, or of each part of a formatted one."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    yield from (word for part in parts if (word := literal(part)) is not None)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions that have a docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            yield node

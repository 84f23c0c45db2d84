"""Docstrings begin with a verb, and names say what they hold."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from benchmarks import house, syntax

SHARE = 0.95
ROOMS = sorted({house.room(name) for name in house.sources()})


@cache
def parsed() -> dict[str, tuple[str, ast.Module]]:
    """Parse every file of the package, by its path there, with its room: seconds that no collection of tests needs."""
    return {
        path.relative_to(house.PACKAGE).as_posix(): (house.room(name), ast.parse(path.read_text(encoding="utf-8")))
        for name, path in house.sources().items()
    }


def trees(room: str) -> dict[str, ast.Module]:
    return {path: tree for path, (where, tree) in parsed().items() if where == room}


@pytest.mark.parametrize("room", ROOMS)
def test_a_functions_docstring_begins_with_a_verb(room: str) -> None:
    functions = [(path, one) for path, tree in trees(room).items() for one in syntax.functions(tree)]
    wordless = [
        f"{path}:{one.lineno}: {one.name}" for path, one in functions if syntax.first_word(one) not in house.VERBS
    ]
    assert functions
    assert len(wordless) <= (1 - SHARE) * len(functions), wordless


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_says_what_it_holds(room: str) -> None:
    bound = [(path, *each) for path, tree in trees(room).items() for each in syntax.bindings(tree)]
    assert bound
    assert [each for each in bound if house.empty(each[2], each[0])] == []


@pytest.mark.parametrize("path", house.KEPT)
def test_a_name_that_stays_is_there(path: str) -> None:
    names = {name for _, name in syntax.bindings(parsed()[path][1])}
    assert names >= house.KEPT[path]


def test_every_way_of_binding_a_name_counts() -> None:
    text = """
import a as said
class Told:
    found: int = 0
    def asked(self, near, *again): pass
def f(beside, /, **detail):
    for sides in beside: pass
    with beside as habits: pass
    try: pass
    except ValueError as settle: pass
    [0 for _found in beside if (_said := 1)]
    match beside:
        case {"a": asked_, **told}: pass
        case [near_, *again_]: pass
    return lambda asked: asked
"""
    names = [name for _, name in syntax.bindings(ast.parse(text))]
    assert sum(house.empty(name, "api/x.py") for name in names) == 18
    assert "Told.found" in names
    assert house.empty("Plan.beside", "api/x.py")
    assert not house.empty("Plan.beside", "plans/plan.py")


@pytest.mark.parametrize(
    ("docstring", "word"), [("Return x.", "Return"), ("Megatron's way", "Megatron's"), ("x[B]", "x")]
)
def test_the_first_word_of_a_docstring(docstring: str, word: str) -> None:
    (function,) = syntax.functions(ast.parse(f'def f():\n    """{docstring}"""'))
    assert syntax.first_word(function) == word

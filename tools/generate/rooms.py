"""Write the rooms of the package, each above all that it imports, into docs/contributing.md.

A room is a folder or a file at the root of the package; the first paragraph of its docstring says what it is.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from benchmarks import house
from tools.pages import table

START = "__main__"  # starts the command line, and is no room


def room(module: str) -> str:
    """Return the room of a module; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def read() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (rooms from the top down, files at the root that import no folder and that any room may import)."""
    modules = house.sources()
    imported: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        imported[room(name)] |= {room(other) for other in house.imports(path, modules)} - {room(name), ""}
    folders = {name for name in imported if (house.PACKAGE / name).is_dir()}
    shared = {name for name, others in imported.items() if name not in folders and not others & folders}
    rooms = {name: others - shared for name, others in imported.items() if name not in {*shared, "", START}}
    depths: dict[str, int] = {}
    while len(depths) < len(rooms):
        depths |= {name: 1 + max((depths[other] for other in others), default=0)
                   for name, others in rooms.items() if name not in depths and others <= depths.keys()}  # fmt: skip
    order = sorted(rooms, key=lambda name: (-depths[name], name))
    return tuple(order), tuple(sorted(shared - {""}))


def does(name: str) -> str:
    """Return the first paragraph of a room's docstring."""
    folder = house.PACKAGE / name / "__init__.py"
    path = folder if folder.exists() else house.PACKAGE / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def rooms() -> dict[str, str]:
    """Return the table of rooms, by its place on the page."""
    order, shared = read()
    rows = [*((f"`{name}`", does(name)) for name in order), (", ".join(f"`{name}`" for name in shared), "for all")]
    return {"rooms": table(("room", "is"), rows)}

"""Draw the rooms of the package and what they import, into docs/rooms.svg and docs/contributing.md.

A room is a folder or a file at the root of the package, and says in its docstring what it is. It stands above all that
it imports. An arrow leads to a room that is imported and that no other imported room leads to.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from benchmarks import house, syntax
from tools.pages import DOCS, table

PICTURE = DOCS / "rooms.svg"
START = "__main__"  # starts the command line, and is no room
# Pixels: of a row, of a box, before the box, of an arc for each row that it passes, of all.
ROW, BOX, LEFT, ARC, WIDTH = 30, 120, 90, 14, 840


@dataclass(frozen=True, slots=True)
class Rooms:
    """imports: the rooms that each room imports, from the top down. shared: files at the root that any may import."""

    imports: Mapping[str, frozenset[str]]
    shared: tuple[str, ...]

    def arrows(self) -> Iterator[tuple[str, str]]:
        """Yield each import that no way over another imported room stands for."""
        below: dict[str, frozenset[str]] = {}
        for name, others in reversed(self.imports.items()):
            below[name] = others.union(*(below[other] for other in others))
        for name, others in self.imports.items():
            yield from ((name, other) for other in sorted(others) if not any(other in below[each] for each in others))


def room(module: str) -> str:
    """Return the room of a module; that of the package itself is empty."""
    return module.partition(".")[2].partition(".")[0]


def read() -> Rooms:
    """Read every import of the package."""
    modules = house.sources()
    imported: dict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        others = syntax.imports(ast.parse(path.read_text(encoding="utf-8")), modules)
        imported[room(name)] |= {room(other) for other in others} - {room(name), ""}
    folders = {name for name in imported if (house.PACKAGE / name).is_dir()}
    shared = {name for name, others in imported.items() if name not in folders and not others & folders}
    rooms = {name: frozenset(others - shared) for name, others in imported.items() if name not in {*shared, "", START}}
    depths: dict[str, int] = {}
    while len(depths) < len(rooms):
        depths |= {name: 1 + max((depths[other] for other in others), default=0)
                   for name, others in rooms.items() if name not in depths and others <= depths.keys()}  # fmt: skip
    order = sorted(rooms, key=lambda name: (-depths[name], name))
    return Rooms({name: rooms[name] for name in order}, tuple(sorted(shared - {""})))


def does(name: str) -> str:
    """Return what a room says of itself: the first line of its docstring."""
    folder = house.PACKAGE / name / "__init__.py"
    path = folder if folder.exists() else house.PACKAGE / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def inner(name: str) -> list[str]:
    """Return the folders of a room."""
    return sorted(path.parent.name for path in (house.PACKAGE / name).glob("*/__init__.py"))


def svg(rooms: Rooms) -> str:
    """Return the picture."""
    names = list(rooms.imports)
    middle = {name: ROW * (index + 0.5) for index, name in enumerate(names)}
    size = f'width="{WIDTH}" height="{ROW * len(names)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="14">',
        "<title>The rooms of symconfig, each above all that it imports</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto">',
        '<path d="M0 0 6 3 0 6Z" fill="#456"/></marker>',
    ]
    for name in names:
        top = middle[name] - ROW / 2 + 4
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{BOX}" height="{ROW - 8}" rx="4" fill="#dde7f0"/>')
        parts.append(f'<text x="{LEFT + BOX / 2}" y="{middle[name] + 5}" text-anchor="middle">{name}</text>')
        inside = escape(", ".join(inner(name)))
        parts.append(f'<text x="{LEFT + BOX + 12}" y="{middle[name] + 5}" fill="#567">{inside}</text>')
    for name, other in rooms.arrows():
        first, last = middle[name], middle[other]
        if last - first == ROW:
            way = f"M{LEFT + BOX / 2} {first + ROW / 2 - 4} V{last - ROW / 2 + 4}"
        else:
            out = LEFT - ARC * (last - first) / ROW
            way = f"M{LEFT} {first} C{out} {first} {out} {last} {LEFT} {last}"
        parts.append(f'<path d="{way}" fill="none" stroke="#456" stroke-width="1.3" marker-end="url(#tip)"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def as_table(rooms: Rooms) -> str:
    """Return what each room is, in Markdown."""
    rows = [
        *((f"`{name}`", does(name)) for name in rooms.imports),
        (", ".join(f"`{name}`" for name in rooms.shared), "for all"),
    ]
    return table(("room", "is"), rows)


def rooms() -> dict[str, str]:
    """Draw the picture, and return the map."""
    read_now = read()
    PICTURE.write_text(svg(read_now), encoding="utf-8")
    return parts(read_now)


def parts(rooms: Rooms) -> dict[str, str]:
    """Return the map of today."""
    alone = "![The rooms from the top down, with an arrow to each that a room imports](rooms.svg)\n\n"
    return {"rooms": alone + as_table(rooms)}

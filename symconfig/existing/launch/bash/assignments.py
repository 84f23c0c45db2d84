"""`X=1`, `A+=(2)`, `declare` and `unset`."""

from __future__ import annotations

from collections.abc import Sequence

from tree_sitter import Node

from symconfig.existing.launch.bash import lexer
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import TRUE, Truth
from symconfig.existing.launch.bash.expand import Expander
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.nested import cover
from symconfig.existing.launch.bash.nodes import value_end, word_ranges
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import Array, Field, Part, Parts, Value, hole, text_of
from symconfig.existing.launch.bash.variables import declare
from symconfig.existing.launch.text import Place


def run_assignments(shell: Interpreter, source: Source, node: Node) -> Truth:
    return run_all(shell, source, [child for child in node.children if child.type == "variable_assignment"])


def run_assignment(shell: Interpreter, source: Source, node: Node) -> Truth:
    return run_all(shell, source, [node])


def run_all(shell: Interpreter, source: Source, nodes: Sequence[Node]) -> Truth:
    """Run assignments by themselves; they end as the last substitution in them."""
    shell.substituted = TRUE
    for node in nodes:
        assign(shell, source, node)
    return shell.substituted


def assign(shell: Interpreter, source: Source, node: Node, keyed: bool = False) -> str:
    """Run `X=1`, `X+=1`, `A=(1 2)`, `A[0]=1`, and return the variable's name. keyed: of `declare -A`."""
    left = node.child_by_field_name("name")
    if left is None:
        return ""
    written = source.data[left.start_byte : left.end_byte].decode("utf-8", "replace")
    name, _, subscript = written.partition("[")
    at = source.data.find(b"=", left.end_byte, node.end_byte + 1) + 1
    added = source.data[at - 2 : at - 1] == b"+"
    place = source.place(node.start_byte, max(node.end_byte, at))
    expander = shell.expander(source)
    if added and shell.state.open(name):
        shell.state.variables[name] = (hole(shell.state.missing(name), place, name, loose=True),)
    old = shell.state.variables.get(name)
    if source.data[at : at + 1] == b"(":
        close = lexer.closing(source.data, at, len(source.data))
        items = expander.items(at + 1, close)
        old = shell.state.variables.get(name)  # the items may have set it, `A+=(${A:=1})`
        value: Value = _array(
            expander, items, old if added else None, keyed or (isinstance(old, Array) and old.keyed), place
        )
    else:
        parts = expander.value(at, value_end(source.data, node)) or (Part("", written=place),)
        first = parts[0]
        unset = name not in shell.state.variables and not shell.state.open(name)
        own = first.unknown and first.variables == (name,) and unset
        parts = parts[1:] if own and len(parts) > 1 and parts[1].text[:1].isspace() else parts
        # The value may have set it, `A+=${A:=1}`.
        old = shell.state.read(name) if added else shell.state.variables.get(name)
        value = parts
        if subscript or isinstance(old, Array):
            key = expander.value(left.start_byte + len(name) + 1, left.end_byte - 1) if subscript else ()
            expander.assign(
                f"{name}[{text_of(key) or 0}]", (*(_item_of(shell, name, text_of(key)) if added else ()), *parts)
            )
            return name
        if added:
            value = (*(old if isinstance(old, tuple) else ()), *parts)
    shell.state.variables[name] = shell.budget.kept(value)
    return name


def _item_of(shell: Interpreter, name: str, key: str) -> Parts:
    old = shell.state.variables.get(name)
    if isinstance(old, Array):
        item = old.items.get(int(key) if key.isdigit() and not old.keyed else key or 0)
        return item.parts if item else ()
    return old or ()


def _array(expander: Expander, added: list[tuple[str | None, Field]], old: Value, keyed: bool, place: Place) -> Array:
    items: dict[int | str, Field] = {}
    if isinstance(old, Array):
        items.update(old.items)
    elif old:
        items[0] = Field(old, place)
    following = max((key for key in items if isinstance(key, int)), default=-1) + 1
    for subscript, item in added:
        key: int | str = following
        if subscript is not None:
            key = subscript
            if not keyed:
                try:
                    key = expander.number(subscript, place)
                except Dark:
                    key = subscript
        items[key] = item
        following = key + 1 if isinstance(key, int) else following
    return Array(items, keyed)


def run_declaration(shell: Interpreter, source: Source, node: Node) -> Truth:
    keyword = node.children[0].type
    flags = ""
    for child in node.children[1:]:
        if child.type == "variable_assignment":
            left = child.child_by_field_name("name")
            name = source.data[left.start_byte : left.end_byte].decode() if left is not None else ""
            declare(shell, keyword, flags, name.partition("[")[0], None)
            name = assign(shell, source, child, keyed="A" in flags)
            declare(shell, keyword if keyword == "export" else "", flags.replace("A", ""), name, None, after=True)
            continue
        if not child.is_named or child.type == "comment":
            continue
        for item in shell.expander(source).fields(*word_ranges(source.data, [child])[0]):
            if item.text.startswith("-") and not item.unknown:
                flags += item.text[1:]
            elif item.several or (item.unknown and not item.text.partition("=")[0].isidentifier()):
                cover(shell, item.place, keyword, keyword, f"sets variables that are not known: it {item.unknown}")
            elif not item.unknown or "=" in item.text:
                name, equals, _ = item.text.partition("=")
                declare(shell, keyword, flags, name, item.cut(len(name) + 1).parts if equals else None, after=True)
    return TRUE


def run_unset(shell: Interpreter, source: Source, node: Node) -> Truth:
    for start, end in word_ranges(source.data, [child for child in node.children[1:] if child.is_named]):
        for item in shell.expander(source).fields(start, end):
            name, _, subscript = item.text.partition("[")
            value = shell.state.variables.get(name)
            if subscript and isinstance(value, Array):
                key = subscript.rstrip("]")
                kept = {k: v for k, v in value.items.items() if str(k) != key}
                shell.state.variables[name] = Array(kept, value.keyed)
            elif not name.startswith("-"):
                shell.state.variables[name] = None
                shell.state.exported.discard(name)
    return TRUE

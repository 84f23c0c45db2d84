"""What Megatron-LM's parser makes of the options of a plan: every destination with its value, defaults and all."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from symconfig.frameworks.megatron.flags import Flag, FlagTable
from symconfig.render.megatron_args import Group


def namespace(table: FlagTable, groups: Iterable[Group]) -> dict[str, Any]:
    """Return the values by destination, as argparse leaves them: before validate_args fills anything in.

    Values are those that JSON has: an enumeration is the name of its member, a pattern of layers the text of it.
    """
    # Of several options of a destination, argparse takes the default of the one that is spelled like it.
    order = sorted(table.flags.values(), key=lambda flag: flag.name == "--" + flag.dest.replace("_", "-"))
    arguments = {flag.dest: _default(flag) for flag in order}
    for group in groups:
        for first, *values in group.options:
            name, joined, value = first.partition("=")
            flag = table.flags[name]
            arguments[flag.dest] = _given(flag, [value] if joined else values)
    return arguments


def _default(flag: Flag) -> Any:
    """Return a default as the table has it printed."""
    value = _literal(flag.default)
    return list(value) if isinstance(value, tuple | list) else value


@cache
def _literal(text: str) -> Any:
    """Read a literal of Python; a text that is none is the name of an enumeration's member, or itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.removeprefix("AttnBackend.")


def _given(flag: Flag, values: Sequence[str]) -> Any:
    if flag.kind == "optional":
        return not flag.name.startswith("--no-")
    if flag.kind != "store":
        return flag.kind == "true"
    typed = [_typed(flag, value) for value in values]
    return typed[0] if flag.nargs in (None, "?") else typed


def _typed(flag: Flag, value: str) -> Any:
    if flag.type == "int":
        return int(value)
    if flag.type == "float":
        return float(value)
    if flag.type == "tuple_type":
        return [int(part) for part in value.strip("()").split(",")]
    return value

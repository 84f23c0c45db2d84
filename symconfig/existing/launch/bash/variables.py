"""Commands of the shell that set its variables, and the script's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import FALSE, TRUE, Truth
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.source import CodeSource
from symconfig.existing.launch.bash.values import Array, Field, Part, Parts, fields, hole, text_of, unknown_of
from symconfig.existing.launch.text import Place

Words: TypeAlias = Sequence[Field]
Own: TypeAlias = Callable[[Interpreter, Words, Place], Truth]  # a command of the shell's own


def declare(shell: Interpreter, keyword: str, flags: str, name: str, value: Parts | None, after: bool = False) -> None:
    """Run `declare`, `local`, `export`, `readonly`. after: the value is assigned already, or none is given."""
    state = shell.state
    frame = shell.locals[-1] if shell.locals and "g" not in flags else None
    if keyword in ("local", "declare", "typeset") and frame is not None and name not in frame:
        frame[name] = name in state.variables, state.variables.get(name)
        if keyword == "local" and after:
            state.variables[name] = None
    if value is not None:
        state.variables[name] = value
    elif after and ("A" in flags or "a" in flags) and not isinstance(state.variables.get(name), Array):
        state.variables[name] = Array({}, "A" in flags)
    elif after and keyword != "export" and not flags and name not in state.variables:
        state.variables[name] = None
    if (keyword == "export" and "n" not in flags) or "x" in flags:
        state.exported.add(name)


def _export(shell: Interpreter, words: Words, place: Place) -> Truth:
    flags = ""
    for word in words:
        if word.text.startswith("-"):
            flags += word.text[1:]
            continue
        name, equals, _ = word.text.partition("=")
        declare(shell, "export", flags, name, word.cut(len(name) + 1).parts if equals else None, after=True)
    return TRUE


def _read(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Run `read`, of a string that the script holds: the first line, split; with `-d ''` all of it."""
    names: list[str] = []
    flags, delimiter = "", "\n"
    rest = iter(words)
    for word in rest:
        if word.text.startswith("-") and not names:
            flags += word.text[1:]
            if word.text[-1] in "dptnu":
                argument = next(rest, None)
                delimiter = (argument.text or "\0") if argument is not None and word.text[-1] == "d" else delimiter
        elif not word.text.startswith("-"):
            names.append(word.text)
    text = shell.stdin
    if text is not None and unknown_of(text) and len(names) == 1 and "a" not in flags:
        shell.state.variables[names[0]] = shell.budget.kept(_first(text, delimiter))
        return Truth(None, "depends on what is read while the script runs", status=True)
    if text is None or unknown_of(text):
        for name in names or ["REPLY"]:
            shell.state.variables[name] = (hole("is read while the script runs", place),)
        return Truth(None, "depends on what is read while the script runs", status=True)
    whole = text_of(text)
    end = whole.find(delimiter)
    line = Field(text, place).cut(0, len(whole) if end < 0 else end).parts
    ifs = " \t\n" if "IFS" not in shell.state.variables else shell.state.text("IFS") or ""
    pieces = fields([replace(part, loose=True) for part in line], ifs)
    if "a" in flags:
        items: dict[int | str, Field] = {index: Field(parts, place) for index, parts in enumerate(pieces)}
        shell.state.variables[names[0] if names else "REPLY"] = Array(items)
    elif len(names) <= 1:
        shell.state.variables[names[0] if names else "REPLY"] = shell.budget.kept(line)
    else:
        for index, name in enumerate(names):
            parts = pieces[index] if index < len(pieces) else ()
            if index == len(names) - 1 and len(pieces) > len(names):
                parts = (hole("is the rest of a line that is read", place),)
            shell.state.variables[name] = parts
    shell.stdin = None
    return TRUE


def _first(parts: Parts, delimiter: str) -> Parts:
    """Return a value up to the first delimiter that is known, without blanks around it. Holes on the way stay."""
    made: list[Part] = []
    for part in parts:
        end = -1 if part.unknown else part.text.find(delimiter)
        made.append(part if end < 0 else part.cut(0, end))
        if end >= 0:
            break
    if made and not made[0].unknown:
        made[0] = made[0].cut(len(made[0].text) - len(made[0].text.lstrip()), len(made[0].text))
    if made and not made[-1].unknown:
        made[-1] = made[-1].cut(0, len(made[-1].text.rstrip()))
    return tuple(made)


def _mapfile(shell: Interpreter, words: Words, place: Place) -> Truth:
    name = words[-1].text if words and not words[-1].text.startswith("-") else "MAPFILE"
    shell.state.variables[name] = Array({0: Field((hole("is read while the script runs", place, loose=True),), place)})
    return TRUE


def _let(shell: Interpreter, words: Words, place: Place) -> Truth:
    expander = shell.expander(CodeSource((), place))
    value = 0
    for word in words:
        try:
            if word.unknown:
                raise Dark(word.unknown)
            value = expander.number(word.text, place)
        except Dark as dark:
            target = re.match(r"\s*([A-Za-z_]\w*)", word.text)
            if target:
                shell.state.variables[target.group(1)] = (hole(str(dark), place),)
            return Truth(None, str(dark))
    return Truth(value != 0)


def _set(shell: Interpreter, words: Words, place: Place) -> Truth:
    rest = list(words)
    while rest and rest[0].text.startswith(("-", "+")) and rest[0].text != "--":
        rest = rest[2:] if rest[0].text.endswith("o") else rest[1:]  # set -euo pipefail
    if rest:
        shell.state.arguments = tuple(rest[rest[0].text == "--" :])
    return TRUE


def _shift(shell: Interpreter, words: Words, place: Place) -> Truth:
    count = int(words[0].text) if words and words[0].text.isdigit() else 1
    if count > len(shell.state.arguments):
        return FALSE
    shell.state.arguments = shell.state.arguments[count:]
    return TRUE


def _getopts(shell: Interpreter, words: Words, place: Place) -> Truth:
    if not shell.state.arguments:
        return FALSE
    for name in ("OPTARG", "OPTIND", words[1].text if len(words) > 1 else "OPTARG"):
        shell.state.variables[name] = (hole("depends on the script's arguments", place),)
    return Truth(None, "depends on the script's arguments")


VARIABLES: dict[str, Own] = {
    "export": _export,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "let": _let,
    "set": _set,
    "shift": _shift,
    "getopts": _getopts,
}

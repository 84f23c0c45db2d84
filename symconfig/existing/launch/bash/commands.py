"""Simple commands: the shell's own, which change its state, and the few others whose output is known beforehand."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import replace

from symconfig.existing.launch.bash import nested
from symconfig.existing.launch.bash.ansi import unescaped
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import EXPECTED, FALSE, STARTED, TRUE, Truth, tested
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.log import Command, Leave
from symconfig.existing.launch.bash.shell import environment
from symconfig.existing.launch.bash.source import CodeSource
from symconfig.existing.launch.bash.values import Field, Part, Parts, hole, plain, text_of, unknown_of
from symconfig.existing.launch.bash.variables import VARIABLES, Own, Words
from symconfig.existing.launch.text import Place

# Code that asks whether accelerators are Ascend's: no GPU is, that a run can be planned for.
_OTHERS = re.compile(r"\s*import torch_npu\s*")


def run_words(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Run one command after its expansions; return its status. Raises Leave, Exhausted."""
    first = words[0]
    if first.unknown:
        return _program(shell, words, place)
    name = first.text
    if name in shell.state.functions:
        return shell.call(name, words[1:], place)
    if name in ("builtin", "command") and len(words) > 1 and not words[1].text.startswith("-"):
        return run_words(shell, words[1:], place)
    own = _OWN.get(name)
    return own(shell, words[1:], place) if own else _program(shell, words, place)


def _program(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Record something outside of the shell; it is never run."""
    shell.budget.spend(8)  # it is looked through for launchers, programs and options
    if len(words) == 3 and words[1].text == "-c" and _OTHERS.fullmatch(words[2].text):
        return FALSE
    if nested.shell_code(shell, words, place):
        return STARTED
    script = next((word.text for word in words[1:3] if word.text.endswith(".py")), None)
    name = " ".join(filter(None, (words[0].text or "a program", script)))
    if shell.output is not None:
        shell.output.append(hole(f"depends on the output of {name}", place))
    if shell.captured:
        shell.log.aside.append(tuple(words))
    else:
        shell.log.commands.append(
            Command(
                (*shell.launcher, *words),
                len(shell.launcher),
                dict(environment(shell.state)),
                dict(shell.state.files),
                place,
                shell.maybe[0] if shell.maybe else None,
            )
        )
    return STARTED


# ---- flow


def _leave(kind: str) -> Own:
    def run(shell: Interpreter, words: Words, place: Place) -> Truth:
        # An exit without a status is the end of a message about wrong use as often as a success.
        given = words[0].text if words else ""
        if kind == "return" and (not words or words[0].unknown):
            raise Leave(kind, None)
        raise Leave(kind, given not in ("", "0") if kind == "return" else given != "0")

    return run


def _exec(shell: Interpreter, words: Words, place: Place) -> Truth:
    while words and words[0].text in ("-a", "-c", "-l"):
        words = words[2:] if words[0].text == "-a" else words[1:]
    if not words:
        return TRUE
    run_words(shell, words, place)
    raise Leave("exit")


def _eval(shell: Interpreter, words: Words, place: Place) -> Truth:
    return nested.run_code(shell, words, place)


# ---- folders and output


def _cd(shell: Interpreter, words: Words, place: Place) -> Truth:
    named = [word for word in words if not word.text.startswith("-") or word.unknown]
    if not named or named[-1].unknown:
        why = named[-1].unknown if named else "depends on the home folder"
        shell.state.folder = (hole(why or "", place),)
        return EXPECTED
    base = shell.state.folder
    target = named[-1].text
    if target.startswith("/"):
        shell.state.folder = plain(posixpath.normpath(target), place=place)
    elif base is not None and not unknown_of(base):
        shell.state.folder = plain(posixpath.normpath(posixpath.join(text_of(base), target)), place=place)
    return EXPECTED


def _print(shell: Interpreter, parts: Parts) -> Truth:
    if shell.output is not None:
        shell.output += parts
    return TRUE


def _unprinted(shell: Interpreter, why: str, place: Place) -> Truth:
    """Return the status of a program whose output is not known."""
    _print(shell, (hole(why, place),))
    return replace(STARTED, why=why)


def _pwd(shell: Interpreter, words: Words, place: Place) -> Truth:
    return _print(shell, shell.state.folder or (hole("depends on the current folder", place),))


def _echo(shell: Interpreter, words: Words, place: Place) -> Truth:
    flags = ""
    while words and re.fullmatch(r"-[neE]+", words[0].text):
        flags += words[0].text[1:]
        words = words[1:]
    parts: list[Part] = []
    for index, word in enumerate(words):
        parts += [*((Part(" "),) if index else ()), *(replace(part, loose=False) for part in word.parts)]
    if "e" in flags and any("\\" in part.text for part in parts):
        parts = [
            part if "\\" not in part.text else replace(part, text=unescaped(part.text), place=None) for part in parts
        ]
    return _print(shell, (*parts, *(() if "n" in flags else (Part("\n"),))))


def _printf(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Run formats of `%s`, `%d` and `%q`-free text; anything else is not known."""
    if len(words) > 2 and words[0].text == "-v":
        inside = replace(shell, output=[])
        _printf(inside, words[2:], place)
        shell.state.variables[words[1].text] = shell.budget.kept(tuple(inside.output or ()))
        return TRUE
    if not words or words[0].unknown or re.search(r"%(?![sd%])", words[0].text):
        return _print(shell, (hole("depends on the output of printf", place),))
    made: list[Part] = []
    pieces = re.split(r"(%[sd%])", unescaped(words[0].text))
    values = list(words[1:])
    while True:
        for piece in pieces:
            if piece == "%%":
                made.append(Part("%"))
            elif piece in ("%s", "%d"):
                value = values.pop(0) if values else None
                made += value.parts if value is not None else (Part("0" if piece == "%d" else ""),)
            else:
                made.append(Part(piece))
        if not values or len(pieces) == 1:
            break
        shell.budget.spend()
    return _print(shell, tuple(replace(part, loose=False) for part in made))


def _path(change: Callable[[Field], Parts]) -> Own:
    def run(shell: Interpreter, words: Words, place: Place) -> Truth:
        named = [word for word in words if not word.text.startswith("-") or word.unknown]
        if not named or named[0].unknown:
            return _unprinted(shell, (named[0].unknown if named else "") or "depends on a path", place)
        return _print(shell, (*(replace(part, loose=False) for part in change(named[0])), Part("\n")))

    return run


def _dirname(word: Field) -> Parts:
    text = word.text.rstrip("/") or "/"
    head = text.rpartition("/")[0] if "/" in text else ""
    if not head:
        return plain("/" if text.startswith("/") else ".")
    return word.cut(0, len(head)).parts


def _basename(word: Field) -> Parts:
    text = word.text.rstrip("/")
    return word.cut(text.rfind("/") + 1, len(text)).parts


def _cat(shell: Interpreter, words: Words, place: Place) -> Truth:
    if words and words[0].text != "-":
        names = [word.text for word in words]
        if all(name in shell.state.files for name in names):
            return _print(shell, tuple(part for name in names for part in shell.state.files[name]))
        return _unprinted(shell, f"depends on the contents of {names[0] or 'a file'}", place)
    if shell.stdin is None:
        return _unprinted(shell, "depends on what is read while the script runs", place)
    return _print(shell, shell.stdin)


def _tee(shell: Interpreter, words: Words, place: Place) -> Truth:
    names = [word.text for word in words if not word.text.startswith("-")]
    if shell.stdin and not unknown_of(shell.stdin):
        for name in names:
            shell.state.files[name] = shell.stdin
    return _print(shell, shell.stdin or ())


def _seq(shell: Interpreter, words: Words, place: Place) -> Truth:
    try:
        numbers = [int(word.text) for word in words if not word.unknown]
        first, step, last = {1: (1, 1, *numbers), 2: (numbers[0], 1, numbers[-1])}.get(len(numbers)) or tuple(numbers)
        values = range(first, last + (1 if step > 0 else -1), step)
        if len(words) != len(numbers) or len(values) > 10_000:
            raise ValueError
    except (ValueError, IndexError, TypeError):
        return _unprinted(shell, "depends on the output of seq", place)
    return _print(shell, plain("\n".join(map(str, values)) + "\n"))


def _calculated(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Run `expr`, and `bc` of what is piped into it, on whole numbers; as of expr, it ends in an error where it
    is 0.
    """
    parts: Parts = (
        (shell.stdin or ()) if not words else tuple(part for word in words for part in (*word.parts, Part(" ")))
    )
    why = unknown_of(parts)
    text = text_of(parts).strip()
    if why or not re.fullmatch(r"[-\d\s+*/%()]+", text):
        return _unprinted(shell, why or "depends on the output of a calculation", place)
    try:
        value = shell.expander(CodeSource((), place)).number(text, place)
    except Dark as dark:
        return _unprinted(shell, str(dark), place)
    _print(shell, plain(f"{value}\n", place=place))
    return Truth(value != 0)


def _which(shell: Interpreter, words: Words, place: Place) -> Truth:
    """Run `which`, `type`, `command -v`: a path of which only the end is known."""
    why = "depends on the programs that are there"
    names = [word for word in words if not word.text.startswith("-")]
    _print(shell, (hole(why, place), *((Part("/"), *names[-1].parts) if names else ()), Part("\n")))
    return replace(STARTED, why=why)


def _bracket(shell: Interpreter, words: Words, place: Place) -> Truth:
    return tested(shell.expander(CodeSource((), place), deciding=True), [word.parts for word in words])


def _bc(shell: Interpreter, words: Words, place: Place) -> Truth:
    _calculated(shell, (), place)
    return STARTED


def _always(status: Truth) -> Own:
    """Run a command that sets nothing which a training command is given."""
    return lambda shell, words, place: status


def _prepares(name: str) -> Own:
    """Run a program that makes folders and files ready: what it is given is kept, as it is of all programs."""

    def run(shell: Interpreter, words: Words, place: Place) -> Truth:
        shell.log.aside.append((Field((Part(name),), place), *words))
        return EXPECTED

    return run


_OWN: dict[str, Own] = {
    **dict.fromkeys((":", "true", "trap", "sleep", "disown", "sync", "clear"), _always(TRUE)),
    **dict.fromkeys(
        ("ulimit", "umask", "wait", "alias", "unalias", "module", "conda", "popd", "jobs", "enable", "bind"),
        _always(EXPECTED),
    ),
    **{name: _prepares(name) for name in ("mkdir", "touch", "chmod", "cp", "mv", "rm", "ln")},
    **dict.fromkeys(("shopt", "hash", "kill", "pkill"), _always(STARTED)),
    "false": _always(FALSE),
    **VARIABLES,
    "exit": _leave("exit"),
    "return": _leave("return"),
    "break": _leave("break"),
    "continue": _leave("continue"),
    "exec": _exec,
    "eval": _eval,
    "source": nested.source,
    ".": nested.source,
    "cd": _cd,
    "pushd": _cd,
    "pwd": _pwd,
    "echo": _echo,
    "printf": _printf,
    "dirname": _path(_dirname),
    "basename": _path(_basename),
    "realpath": _path(lambda word: word.parts),
    "readlink": _path(lambda word: word.parts),
    "cat": _cat,
    "tee": _tee,
    "seq": _seq,
    "expr": _calculated,
    "bc": _bc,
    "command": _which,
    "type": _which,
    "which": _which,
    "test": _bracket,
}

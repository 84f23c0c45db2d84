"""Simple commands: the shell's own, which change its state, and the few others whose output is known beforehand."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import EXPECTED, FALSE, STARTED, TRUE, Truth, tested
from symconfig.existing.launch.bash.expand import with_escapes
from symconfig.existing.launch.bash.shell import Shell, Words, as_line, run_code, shell_code, source_file
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Array, Command, Leave, plain, split_words, unknown_part
from symconfig.existing.launch.reading import Piece, Pieces, Word, text_of, unknown_of
from symconfig.existing.launch.text import Place

Own: TypeAlias = Callable[[Shell, Words, Place], Truth]  # a command of the shell's own
_READ, _FORMAT = "is read while the script runs", "depends on the output of printf"
# Code that asks whether accelerators are Ascend's: no GPU is, that a run can be planned for.
_OTHERS = re.compile(r"\s*import torch_npu\s*")


def run_words(shell: Shell, words: Words, place: Place) -> Truth:
    """Run one command whose words, at least one, are expanded; return its status.

    The script's functions take precedence, then the commands known here, also after `builtin` or `command`; others go
    to `_program`, which records them or interprets the shell code that they start. Raises Leave, Exhausted, and
    InputError from files that are sourced.
    """
    name = "" if words[0].unknown else words[0].text
    if name in shell.state.functions:
        return shell.call(name, words[1:], place)
    if name in ("builtin", "command") and len(words) > 1 and not words[1].text.startswith("-"):
        return run_words(shell, words[1:], place)
    return _OWN.get(name, _program)(shell, words if name not in _OWN else words[1:], place)


def _program(shell: Shell, words: Words, place: Place) -> Truth:
    """Record an external program in `log.commands` without running it, and print an unknown output.

    The status is unknown, but False for `python -c "import torch_npu"`. Code of `bash -c` and scripts that it starts
    are interpreted instead. In a command substitution the words are recorded in `log.aside`.
    """
    shell.budget.spend(8)  # it is looked through for launchers, programs and options
    if len(words) == 3 and words[1].text == "-c" and _OTHERS.fullmatch(words[2].text):
        return FALSE
    if shell_code(shell, words, place):
        return STARTED
    script = next((word.text for word in words[1:3] if word.text.endswith(".py")), None)
    name = " ".join(filter(None, (words[0].text or "a program", script)))
    _print(shell, (unknown_part(f"depends on the output of {name}", place),))
    if shell.captured:
        shell.log.aside.append(tuple(words))
        return STARTED
    started, files = (*shell.launcher, *words), dict(shell.state.files)
    environment = shell.state.environment()
    shell.log.commands.append(Command(started, len(shell.launcher), environment, files, place, shell.maybe))
    return STARTED


# ---- variables and arguments


def _read(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `read`: set the variables (default REPLY) from the known input, which is used up, and return TRUE.

    That is its first line, with `-d` all; `-a` sets an array of its words. A variable for which several words are left
    is unknown. Unknown input makes status and variables unknown, but a single variable keeps partly known input.
    """
    names, flags, rest, text = list[str](), "", iter(words), shell.stdin
    for word in rest:
        if word.text.startswith("-"):
            flags += word.text[1:]
            value = next(rest, None) if word.text[-1] in "dptnu" else None
            text = None if word.text[-1] == "d" and value is not None and value.text else text  # another line end
        else:
            names.append(word.text)
    names, variables = names or ["REPLY"], shell.state.variables
    if text is None or (unknown_of(text) and (len(names) > 1 or "a" in flags)):
        variables |= dict.fromkeys(names, (unknown_part(_READ, place),))
    else:
        end = len(text_of(text)) if "d" in flags else text_of(text).find("\n")
        line = Word(text, place).cut(0, None if end < 0 else end).pieces
        fields = split_words([replace(part, loose=True) for part in line], shell.state.ifs)
        if "a" in flags:
            variables[names[0]] = Array({index: Word(parts, place) for index, parts in enumerate(fields)})
        elif len(names) == 1:
            variables[names[0]] = shell.budget.kept(line)
        else:
            if len(fields) > len(names):
                fields[len(names) - 1 :] = [(unknown_part(_READ, place),)]
            variables |= {name: fields[at] if at < len(fields) else () for at, name in enumerate(names)}
    if text is None or unknown_of(text):
        return Truth(None, "depends on what is read while the script runs", status=True)
    shell.stdin = None
    return TRUE


def _sets(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `mapfile`, `let`, `getopts` or `printf -v`: MAPFILE, the named variables and the status become unknown."""
    hidden = Array({0: Word((unknown_part(_READ, place, loose=True),), place)})
    names = (match[0] for word in words if (match := re.match(r"[A-Za-z_]\w*", word.text)))
    shell.state.variables |= dict.fromkeys(("MAPFILE", *names), hidden)
    return STARTED


def _set(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `set`: skip options (`-o` with its name); words that remain, or follow `--`, replace the arguments."""
    rest = list(words)
    while rest and rest[0].text.startswith(("-", "+")) and rest[0].text != "--":
        rest = rest[2:] if rest[0].text.endswith("o") else rest[1:]  # set -euo pipefail
    if rest:
        shell.state.arguments = tuple(rest[rest[0].text == "--" :])
    return TRUE


def _shift(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `shift`: remove the first N arguments (1 if N is absent or no number); return FALSE if there are fewer."""
    count = int(words[0].text) if words and words[0].text.isdigit() else 1
    if count > len(shell.state.arguments):
        return FALSE
    shell.state.arguments = shell.state.arguments[count:]
    return TRUE


# ---- flow


def _leave(kind: str) -> Own:
    """Return the command `exit`, `return`, `break` or `continue`, which always raises Leave.

    `bad` of `exit` is False only for the status 0; of `return` None if the status is absent or unknown.
    """

    def run(shell: Shell, words: Words, place: Place) -> Truth:
        # An exit without a status is the end of a message about wrong use as often as a success.
        given = words[0].text if words else ""
        if kind == "return" and (not words or words[0].unknown):
            raise Leave(kind, None)
        raise Leave(kind, given not in ("", "0") if kind == "return" else given != "0")

    return run


def _exec(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `exec`: run the command, then raise Leave; return TRUE if there is no command."""
    if not words:
        return TRUE
    run_words(shell, words, place)
    raise Leave("exit")


# ---- folders and output


def _paths(words: Words) -> list[Word]:
    """Return the words that are no options; unknown ones are none."""
    return [word for word in words if not word.text.startswith("-") or word.unknown]


def _cd(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `cd` or `pushd`: set `state.folder`, to an unknown one if the path is unknown or absent.

    A relative path changes nothing if the current folder is unknown. The command is presumed to succeed.
    """
    named, base = _paths(words), shell.state.folder
    if not named or named[-1].unknown:
        why = named[-1].unknown if named else "depends on the home folder"
        shell.state.folder = (unknown_part(why or "", place),)
    elif named[-1].text.startswith("/") or (base is not None and not unknown_of(base)):
        path = posixpath.normpath(posixpath.join(text_of(base or ()), named[-1].text))
        shell.state.folder = plain(path, place=place)
    return EXPECTED


def _print(shell: Shell, parts: Pieces) -> Truth:
    """Append the parts, as not to be split, to the shell's output if it collects any; return TRUE."""
    if shell.output is not None:
        shell.output += (replace(part, loose=False) for part in parts)
    return TRUE


def _unprinted(shell: Shell, why: str, place: Place) -> Truth:
    """Print an unknown value with the reason `why`; return an unknown status."""
    _print(shell, (unknown_part(why, place),))
    return replace(STARTED, why=why)


def _echo(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `echo`: print the words joined by blanks, with a newline unless `-n`; with `-e` escapes are replaced."""
    flags = ""
    while words and re.fullmatch(r"-[neE]+", words[0].text):
        flags += words[0].text[1:]
        words = words[1:]
    parts = with_escapes(as_line(words)) if "e" in flags else as_line(words)
    return _print(shell, (*parts, *(() if "n" in flags else (Piece("\n"),))))


def _printf(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `printf` with a format of `%s` and text, repeated for all arguments; other formats print an unknown value."""
    if words and words[0].text == "-v":
        return _sets(shell, words[1:2], place)
    form = with_escapes(words[0].pieces) if words else ()
    if not words or unknown_of(form) or re.search(r"%[^s]", text_of(form)):
        return _unprinted(shell, _FORMAT, place)
    pieces, values = text_of(form).split("%s"), list(words[1:])
    rounds = max(1, -(-len(values) // max(1, len(pieces) - 1))) if len(pieces) > 1 else 1
    for _ in range(rounds):
        for index, piece in enumerate(pieces):
            _print(shell, (*(values.pop(0).pieces if index and values else ()), Piece(piece)))
    return TRUE


def _path(change: Callable[[Word], Pieces]) -> Own:
    """Return a command that prints `change` of its first path, or an unknown value if there is no known one."""

    def run(shell: Shell, words: Words, place: Place) -> Truth:
        named = _paths(words)
        if not named or named[0].unknown:
            return _unprinted(shell, (named[0].unknown if named else "") or "depends on a path", place)
        return _print(shell, (*change(named[0]), Piece("\n")))

    return run


def _dirname(word: Word) -> Pieces:
    head = word.text.rstrip("/").rpartition("/")[0]
    return word.cut(0, len(head)).pieces if head else plain("/" if word.text.startswith("/") else ".")


def _basename(word: Word) -> Pieces:
    text = word.text.rstrip("/")
    return word.cut(text.rfind("/") + 1, len(text)).pieces


def _cat(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `cat`: print the known standard input, or files that the script wrote; an unknown value for any other."""
    names = [word.text for word in words if word.text != "-"]
    if not names and shell.stdin is not None:
        return _print(shell, shell.stdin)
    if names and all(name in shell.state.files for name in names):
        return _print(shell, tuple(part for name in names for part in shell.state.files[name]))
    what = f"the contents of {names[0] or 'a file'}" if names else "what is read while the script runs"
    return _unprinted(shell, f"depends on {what}", place)


def _seq(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `seq` on up to three integers of at most six digits; print an unknown value for anything else."""
    texts = [word.text for word in words]
    if not 1 <= len(texts) <= 3 or not all(re.fullmatch(r"-?\d{1,6}", text) for text in texts) or "0" in texts[1:-1]:
        return _unprinted(shell, "depends on the output of seq", place)
    first, step, last = (int(text) for text in (*texts[:-1], *("1", "1")[len(texts) - 1 :], texts[-1]))
    values = range(first, last + (1 if step > 0 else -1), step)
    shell.budget.spend(len(values) / 8)
    return _print(shell, plain("\n".join(map(str, values)) + "\n"))


def _expr(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `expr`: print the result of integer arithmetic, or an unknown value; return FALSE if the result is 0."""
    parts = as_line(words)
    why, text = unknown_of(parts), text_of(parts)
    if why or not re.fullmatch(r"[-\d\s+*/%()]+", text):
        return _unprinted(shell, why or "depends on the output of a calculation", place)
    try:
        value = shell.expander(Source((), place)).number(text, place)
    except Dark as dark:
        return _unprinted(shell, str(dark), place)
    _print(shell, plain(f"{value}\n", place=place))
    return Truth(value != 0)


def _which(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `which`, `type` or `command -v`: print an unknown folder, `/` and the name; the status is unknown."""
    why = "depends on the programs that are there"
    names = [word for word in words if not word.text.startswith("-")]
    _print(shell, (unknown_part(why, place), *((Piece("/"), *names[-1].pieces) if names else ()), Piece("\n")))
    return replace(STARTED, why=why)


def _always(status: Truth) -> Own:
    """Return a command that does nothing and ends with this status."""
    return lambda shell, words, place: status


def _prepares(name: str) -> Own:
    """Return a command that changes files or folders: it only records its words in `log.aside`; presumed to succeed."""

    def run(shell: Shell, words: Words, place: Place) -> Truth:
        shell.log.aside.append((Word((Piece(name),), place), *words))
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
    **{kind: _leave(kind) for kind in ("exit", "return", "break", "continue")},
    **dict.fromkeys(("mapfile", "readarray", "let", "getopts"), _sets),
    **dict.fromkeys(("source", "."), source_file),
    **dict.fromkeys(("cd", "pushd"), _cd),
    **dict.fromkeys(("realpath", "readlink"), _path(lambda word: word.pieces)),
    **dict.fromkeys(("command", "type", "which"), _which),
    "false": _always(FALSE),
    "read": _read,
    "set": _set,
    "shift": _shift,
    "exec": _exec,
    "eval": run_code,
    "pwd": lambda shell, words, place: _print(
        shell, shell.state.folder or (unknown_part("depends on the current folder", place),)
    ),
    "echo": _echo,
    "printf": _printf,
    "dirname": _path(_dirname),
    "basename": _path(_basename),
    "cat": _cat,
    "tee": lambda shell, words, place: _print(shell, shell.stdin or ()),
    "seq": _seq,
    "expr": _expr,
    "test": lambda shell, words, place: tested(
        shell.expander(Source((), place), deciding=True), [word.pieces for word in words]
    ),
}

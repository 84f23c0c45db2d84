"""Code in other places: sourced files, `eval`, `bash -c`, and scripts that a script starts."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.bash.conditions import EXPECTED, TRUE, Truth, ended
from symconfig.existing.launch.bash.shell import Shell
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Leave, plain
from symconfig.existing.launch.reading import Hides, Piece, Pieces, Word, text_of, unknown_of
from symconfig.existing.launch.text import ROOT, Place, open_text, readable
from symconfig.resources import may_read

_SHELLS = ("bash", "sh", "zsh", "dash")
# What is sourced to have programs at hand, and sets nothing that a training command is given.
_ACTIVATION = re.compile(
    r"(^|/)(activate|conda\.sh|mamba\.sh|\.?bashrc|\.?(bash_)?profile|\.zshrc"
    r"|modules?(\.sh)?|init/(bash|sh))$|^/(usr|opt)/.*/(set_?env|setvars)\.sh$|/etc/profile"
)
# Options with a value of what runs code on another machine: the manuals of OpenSSH and pdsh.
_REMOTE = {"ssh": "BbcDEeFIiJLlmOopQRSWw", "pdsh": "wxglftuR"}
_DEPTH = 20  # of files that source each other


def source(shell: Shell, words: Sequence[Word], place: Place) -> Truth:
    """Run `source FILE ARGUMENTS` in this shell and return its status (of `return` in it, too).

    A file that cannot be read is presumed to succeed and logged, as it may set variables; one of the machine (activate,
    conda.sh) is logged as without effect. Raises InputError if files source each other in a circle or are no text,
    Leave for anything but `return`.
    """
    if not words:
        return TRUE
    shown, path = f"source {shell.log.written(words[0].place) or words[0].text}", None
    hides, why = Hides.VARIABLES, f"is read only where it runs: its name {words[0].unknown}"
    if _ACTIVATION.search(words[0].text):
        hides, why = Hides.NOTHING, "is a file of the machine that it runs on"
    elif not words[0].unknown:
        path, why = _file(shell, words[0].text)
    if path is None:
        shell.log.add(place, shown, why, hides)
        return EXPECTED
    saved = shell.state.arguments
    if len(words) > 1:
        shell.state.arguments = tuple(words[1:])
    try:
        return _run_file(shell, path)
    except Leave as leave:
        if leave.kind != "return":
            raise
        return ended(leave)
    finally:
        if len(words) > 1:
            shell.state.arguments = saved


def _file(shell: Shell, written: str) -> tuple[Path | None, str]:
    """Return (path, "") of a file that a script names, in the current folder or the script's; else (None, why not)."""
    root, base = shell.log.folder, shell.state.folder
    if root is None:
        return None, "names a file, and where it lies is not known"
    inside = str(root) if base is None or unknown_of(base) else text_of(base)
    mine = [Path(written)] if written.startswith(f"{root}/") else []  # spelled from the script's own folder
    paths = (
        path for path in [*mine, Path(inside) / written, root / written] if may_read(path) and os.path.lexists(path)
    )
    if (path := next(paths, None)) is None:
        return None, "names a file that is not there"
    if not path.resolve().is_relative_to(readable(root)):
        return None, f"names a file outside of {readable(root)}, which {ROOT} DIR would let be read"
    return path, ""


def _run_file(shell: Shell, path: Path) -> Truth:
    """Run a file's statements in this shell's state and return their status; the file is added to `log.texts`.

    Raises InputError if it is being sourced already, 20 files source each other, or it cannot be read; and Leave.
    """
    real = str(path.resolve())
    if real in shell.sourcing or len(shell.sourcing) >= _DEPTH:
        chain = [Path(name).name for name in (*shell.sourcing, real)]
        what = "is sourced by itself" if real in shell.sourcing else f"is the file number {_DEPTH} in a row"
        raise InputError(
            what, file=str(path), got=" -> ".join(chain), need="files that end", hint="take out one of these lines"
        )
    text = open_text(path, root=shell.log.folder or path.parent)
    if text not in shell.log.texts:
        shell.log.texts.append(text)
    outer, shell.sourcing = shell.sourcing, (*shell.sourcing, real)
    try:
        return shell.program(Source.of_file(text))
    finally:
        shell.sourcing = outer


def as_line(words: Sequence[Word]) -> Pieces:
    """Return the words as one text, separated by blanks."""
    return tuple(part for index, word in enumerate(words) for part in (*([Piece(" ")] if index else []), *word.pieces))


def run_code(shell: Shell, words: Sequence[Word], place: Place) -> Truth:
    """Run `eval`: run the words as code in this shell's state; unknown code is logged, as it may set any variable."""
    parts = as_line(words)
    first = next((part for part in parts if part.unknown or part.text.strip()), None)
    if first is not None and first.unknown:
        why = f"runs code that is not known, which may set any variable: it {first.unknown}"
        shell.log.add(place, shell.log.written(place) or "eval", why, Hides.VARIABLES)
    return shell.program(Source(parts, place))


def shell_code(shell: Shell, words: Sequence[Word], place: Place) -> bool:
    """Run the code or script that a command passes to another shell, on a copy of the state; return whether it does.

    Forms: `--wrap` or standard input; words behind the host of ssh and pdsh; FILE.sh; `bash -c CODE` or `bash FILE.sh`
    behind a launcher. A word ending in .py ends the search.
    """
    name = posixpath.basename(words[0].text)
    if name in (*_SHELLS, "sbatch"):
        wrapped = next((index for index, word in enumerate(words) if word.text.startswith("--wrap")), None)
        if wrapped is not None:
            field = words[wrapped].cut(len("--wrap=")) if "=" in words[wrapped].text else words[-1]
            return _code(shell, (), field.pieces, (), place)
        if shell.stdin is not None and all(word.text.startswith("-") for word in words[1:]):
            return _code(shell, (), shell.stdin, (), place)
    if name in _REMOTE:  # the words behind the host are code of a shell there, which has none of this one's variables
        at = 1
        while at < len(words) and words[at].text.startswith("-"):
            at += 2 if words[at].text[1:] in _REMOTE[name] else 1
        at += name == "ssh"  # the host; pdsh has them as an option
        code = (*as_line(words[at:]), Piece(" "))
        return at < len(words) and _code(shell, words[:at], code, (), place, here=False)
    for index, word in enumerate(words):
        if word.text.endswith(".py"):
            return False
        script = word.text.endswith(".sh") and (index == 0 or not words[index - 1].text.startswith("-"))
        if word.unknown or not (script or posixpath.basename(word.text) in _SHELLS):
            continue
        if script:
            return _script(shell, words, index, place)
        at = index + 1
        while at < len(words) and words[at].text.startswith("-") and not words[at].unknown:
            if re.fullmatch(r"-[a-z]*c", words[at].text) and at + 1 < len(words):
                return _code(shell, words[:index], words[at + 1].pieces, words[at + 3 :], place)
            at += 1
        if at < len(words) and not words[at].unknown and words[at].text.endswith(".sh"):
            return _script(shell, words, at, place)
    return False


def _inside(shell: Shell, launcher: Sequence[Word], words: Sequence[Word]) -> Shell:
    """Return a child process: with exported variables and files, no functions, and `words` as its arguments."""
    mine = shell.state
    exported = {name: mine.variables[name] for name in mine.exported if name in mine.variables}
    state = replace(mine.copy(), variables=exported, functions={}, arguments=tuple(words))
    return replace(shell, state=state, launcher=(*shell.launcher, *launcher), pending=[], locals=[])


def _code(
    shell: Shell, launcher: Sequence[Word], code: Pieces, words: Sequence[Word], place: Place, here: bool = True
) -> bool:
    """Run code in a child shell with `words` as arguments and return True; `exit` ends it.

    Elsewhere than `here` it has no variables, and its files are not kept. launcher: words before the shell.
    """
    inside = _inside(shell, launcher, words)
    if not here:
        inside.captured, inside.state.variables, inside.state.exported = False, {}, set()
    with suppress(Leave):
        inside.program(Source(code, place))
    if here:
        shell.state.files = inside.state.files
    return True


def _script(shell: Shell, words: Sequence[Word], at: int, place: Place) -> bool:
    """Run the script `words[at]` in a child shell, with the words behind it as arguments, and return True.

    False if it is not in the script's folder, or may not be read (which is logged). Words in front become the launcher.
    """
    written, root = words[at].text, shell.log.folder
    if root is None or not (may_read(root / written) and os.path.lexists(root / written)):
        return False
    path, why = _file(shell, written)
    if path is None:
        shell.log.add(place, f"bash {written}", why)
        return False
    called = bool(at) and posixpath.basename(words[at - 1].text) in _SHELLS
    inside = _inside(shell, words[: at - called], words[at + 1 :])
    inside.state.variables["0"] = plain(str(path))
    with suppress(Leave):
        _run_file(inside, path)
    return True

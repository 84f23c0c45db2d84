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
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.log import Leave, shortened
from symconfig.existing.launch.bash.shell import Cover, visible
from symconfig.existing.launch.bash.source import CodeSource, FileSource
from symconfig.existing.launch.bash.values import Field, Part, Parts, plain, text_of, unknown_of
from symconfig.existing.launch.files import ROOT, leads_out, open_text, readable
from symconfig.existing.launch.reading import Hides
from symconfig.existing.launch.text import Place
from symconfig.resources import may_read

_SHELLS = ("bash", "sh", "zsh", "dash")
# What is sourced to have programs at hand, and sets nothing that a training command is given.
_ACTIVATION = re.compile(
    r"(^|/)(activate|conda\.sh|mamba\.sh|\.?bashrc|\.?(bash_)?profile|\.zshrc"
    r"|modules?(\.sh)?|init/(bash|sh))$|^/(usr|opt)/.*/(set_?env|setvars)\.sh$|/etc/profile"
)
# Options with a value of what runs code on another machine: the manuals of OpenSSH and pdsh.
_REMOTE = {
    "ssh": frozenset(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw"),
    "pdsh": frozenset(f"-{letter}" for letter in "wxglftuR"),
}
_DEPTH = 20  # of files that source each other


def source(shell: Interpreter, words: Sequence[Field], place: Place) -> Truth:
    """Run `source FILE ARGUMENTS`. Raises InputError for files that source each other in a circle, or cannot be
    text.
    """
    if not words:
        return TRUE
    written, shown = words[0].text, f"source {shell.log.written(words[0].place) or words[0].text}"
    if _ACTIVATION.search(written):
        shell.log.add(place, shown, "is a file of the machine that it runs on", Hides.NOTHING)
        return EXPECTED
    if words[0].unknown:
        believed = _believed(shell, words[0])
        if believed is None:
            why = f"is read only where it runs: its name {words[0].unknown}"
            cover(shell, place, shown, shown.partition(" ")[2], why)
            return EXPECTED
        written = believed
    path, why = _file(shell, written)
    if path is None:
        cover(shell, place, shown, shown.partition(" ")[2], why)
        return EXPECTED
    saved = shell.state.arguments
    if len(words) > 1:
        shell.state.arguments = tuple(words[1:])
    try:
        return run_file(shell, path)
    except Leave as leave:
        if leave.kind != "return":
            raise
        return ended(leave)
    finally:
        if len(words) > 1:
            shell.state.arguments = saved


def cover(shell: Interpreter, place: Place, shown: str, name: str, why: str) -> None:
    """Note code that is not read, which may set any variable; unless a person says that it does not.

    shown: the statement, "source env.sh". name: what may set it, "env.sh".
    """
    if shell.log.harmless(f"{shown} {why}"):
        shell.log.add(place, shown, why, Hides.NOTHING, assumed=True)
        return
    if place not in {each.place for each in shell.log.covers}:  # a loop comes by it again
        shell.log.add(place, shown, why, Hides.VARIABLES)
    main = shell.log.texts[0].file
    where = f"line {place.line}" if place.file == main else f"{place.file}:{place.line}"
    made = Cover(place, name.strip("\"'"), where)
    shell.log.covers.append(made)
    shell.state.cover(made)


def _believed(shell: Interpreter, word: Field) -> str | None:
    """Return the name of a file that is there, if code that is not read leaves the variables in it as they were: a
    folder that the script has found for itself.
    """
    text = ""
    for part in word.parts:
        before = (cover.before.get(part.variables[-1]) for cover in shell.state.covers if part.variables)
        name = part.text if not part.unknown else next((each for each in before if each is not None), None)
        if name is None:
            return None
        text += name
    return text if _file(shell, text)[0] is not None else None


def _file(shell: Interpreter, written: str) -> tuple[Path | None, str]:
    """Return the file, where it may be read from here; otherwise why not."""
    root = shell.log.folder
    if root is None:
        return None, "names a file, and where it lies is not known"
    base = shell.state.folder
    inside = str(root) if base is None or unknown_of(base) else text_of(base)
    mine = written.startswith(f"{root}/")  # spelled from the script's own folder, as pwd says it
    paths = [Path(written)] if mine else []
    for path in [*paths, Path(inside) / written, root / written]:
        if may_read(path) and os.path.lexists(path):
            if not path.resolve().is_relative_to(readable(root)) and not leads_out(path, readable(root)):
                break
            return path, ""
    else:
        return None, "names a file that is not there"
    return None, f"names a file outside of {readable(root)}, which {ROOT} DIR would let be read"


def run_file(shell: Interpreter, path: Path) -> Truth:
    """Run a file's statements, in this shell's state; return their status. Raises InputError, Leave."""
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
    shell.budget.enter()
    try:
        return shell.program(FileSource(text))
    finally:
        shell.budget.leave()
        shell.sourcing = outer


def run_code(shell: Interpreter, words: Sequence[Field], place: Place) -> Truth:
    """Run `eval`: words joined by blanks, as code in this shell's state; return its status."""
    parts: list[Part] = []
    for index, word in enumerate(words):
        parts += [*((Part(" "),) if index else ()), *word.parts]
    first = next((part for part in parts if part.unknown or part.text.strip()), None)
    if first is not None and first.unknown:
        shown = shortened(shell.log.written(place) or "eval")
        cover(
            shell, place, shown, "eval", f"runs code that is not known, which may set any variable: it {first.unknown}"
        )
    shell.budget.enter()
    try:
        return shell.program(CodeSource(tuple(parts), place))
    finally:
        shell.budget.leave()


def shell_code(shell: Interpreter, words: Sequence[Field], place: Place) -> bool:
    """Tell whether this is `bash -c CODE`, `srun ... bash -c CODE`, `bash FILE` or `sbatch <<EOF`. Its code runs in a
    shell of its own.
    """
    if posixpath.basename(words[0].text) in (*_SHELLS, "sbatch"):
        wrapped = next((index for index, word in enumerate(words) if word.text.startswith("--wrap")), None)
        if wrapped is not None:
            field = words[wrapped].cut(len("--wrap=")) if "=" in words[wrapped].text else words[-1]
            _code(shell, [*words[:wrapped], field], 0, wrapped, place)
            return True
        if shell.stdin is not None and all(word.text.startswith("-") for word in words[1:]):
            _code(shell, [words[0], Field(shell.stdin, place)], 0, 1, place)
            return True
    if _remote(shell, words, place):
        return True
    for index, word in enumerate(words):
        if word.unknown or word.text.endswith(".py"):
            if word.text.endswith(".py"):
                return False
            continue
        if posixpath.basename(word.text) not in _SHELLS:
            if word.text.endswith(".sh") and (index == 0 or not words[index - 1].text.startswith("-")):
                return _script(shell, words, index, place)
            continue
        at = index + 1
        while at < len(words) and words[at].text.startswith("-") and not words[at].unknown:
            if re.fullmatch(r"-[a-z]*c", words[at].text) and at + 1 < len(words):
                _code(shell, words, index, at + 1, place)
                return True
            at += 1
        if at < len(words) and not words[at].unknown and words[at].text.endswith(".sh"):
            return _script(shell, words, at, place)
    return False


def _remote(shell: Interpreter, words: Sequence[Field], place: Place) -> bool:
    """Tell whether this is `ssh HOST CODE`: the words behind the host are code of a shell there, which has none of this
    one's variables.
    """
    name = posixpath.basename(words[0].text)
    if name not in _REMOTE:
        return False
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in _REMOTE[name] else 1
    at += name == "ssh"  # the host; pdsh has them as an option
    if at >= len(words):
        return False
    code = tuple(part for word in words[at:] for part in (*word.parts, Part(" ")))
    inside = replace(_inside(shell, words, at), captured=False)
    inside.state.variables, inside.state.exported = {}, set()
    _run(inside, code, place)
    return True


def _inside(shell: Interpreter, words: Sequence[Field], index: int) -> Interpreter:
    return replace(shell, state=visible(shell.state), launcher=(*shell.launcher, *words[:index]), pending=[], locals=[])


def _run(inside: Interpreter, code: Parts, place: Place) -> None:
    """Run code in a shell of its own, which may leave it."""
    inside.budget.enter()
    try:
        inside.program(CodeSource(code, place))
    except Leave:
        pass
    finally:
        inside.budget.leave()


def _code(shell: Interpreter, words: Sequence[Field], index: int, at: int, place: Place) -> None:
    inside = _inside(shell, words, index)
    inside.state.arguments = tuple(words[at + 2 :])
    _run(inside, words[at].parts, place)
    shell.state.files = inside.state.files


def _script(shell: Interpreter, words: Sequence[Field], at: int, place: Place) -> bool:
    """Run a script beside this one that is started; False where it is not there: then it is a program like others."""
    written = words[at].text
    root = shell.log.folder
    if root is None or not (may_read(root / written) and os.path.lexists(root / written)):
        return False
    path, why = _file(shell, written)
    if path is None:
        shell.log.add(place, f"bash {written}", why)
        return False
    shells = at - 1 if at and posixpath.basename(words[at - 1].text) in _SHELLS else at
    inside = _inside(shell, words, shells)
    inside.state.arguments = tuple(words[at + 1 :])
    inside.state.variables["0"] = plain(str(path))
    with suppress(Leave):
        run_file(inside, path)
    return True

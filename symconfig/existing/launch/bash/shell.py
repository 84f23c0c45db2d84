"""The interpreter's frame: programs, substitutions, functions, code in other places (sourced files, `eval`, other
shells), and what is left open where nobody knows which way a script goes. Nothing is executed."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import TypeAlias

from tree_sitter import Node

from symconfig.errors import InputError
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import EXPECTED, TRUE, Truth, ended
from symconfig.existing.launch.bash.parameters import Expander
from symconfig.existing.launch.bash.source import Source, errors_of, parse, place_at, text_at
from symconfig.existing.launch.bash.state import Budget, Exhausted, Leave, Log, State, Value, merged_states, plain
from symconfig.existing.launch.reading import Hides, Piece, Pieces, Word, text_of, unknown_of
from symconfig.existing.launch.text import ROOT_OPTION, Place, open_text, readable
from symconfig.existing.launch.world import SHELLS
from symconfig.resources import may_read

Words: TypeAlias = Sequence[Word]
_ERRORS = 10  # of syntax that are logged of one source
_LEFT = "depends on where a loop or a function is left"
# What is sourced to have programs at hand, and sets nothing that a training command is given.
_ACTIVATION = re.compile(
    r"(^|/)(activate|conda\.sh|mamba\.sh|\.?bashrc|\.?(bash_)?profile|\.zshrc"
    r"|modules?(\.sh)?|init/(bash|sh))$|^/(usr|opt)/.*/(set_?env|setvars)\.sh$|/etc/profile"
)
# Options with a value of what runs code on another machine: the manuals of OpenSSH and pdsh.
_REMOTE = {"ssh": "BbcDEeFIiJLlmOopQRSWw", "pdsh": "wxglftuR"}
_DEPTH = 20  # of files that source each other


@dataclass
class Shell:
    """Base of the interpreter: state, control flow and subshells; executes nothing.

    Args:
        output: collects what is printed; None if nothing does.
        stdin: standard input as far as it is known; None if not.
        launcher: words in front of a nested shell.
        maybe: the outermost unknown condition under which this code runs; None if it runs in any case.
        captured: whether the code is in a command substitution.
        sourcing: paths of the files that are being sourced, outermost first.
        pending: states in which a loop or function may have been left.
        locals: for each function call the values to restore.
        substituted: status of the last command substitution.
    """

    state: State
    budget: Budget
    log: Log
    output: list[Piece] | None = None
    stdin: Pieces | None = None
    launcher: tuple[Word, ...] = ()
    maybe: str | None = None
    captured: bool = False
    sourcing: tuple[str, ...] = ()
    pending: list[tuple[Leave, State]] = field(default_factory=list)
    locals: list[dict[str, tuple[bool, Value]]] = field(default_factory=list)
    substituted: Truth = TRUE

    # ---- programs

    def program(self, source: Source) -> Truth:
        """Run all statements of a source and return the last status; up to ten syntax errors are logged."""
        root = parse(source)
        if root.has_error:
            for node in islice(errors_of(root, source.data), _ERRORS):
                self.log.add(place_at(source, node), text_at(source, node), "is not understood as bash")
        return self.statements(source, root.named_children)

    def expander(self, source: Source, deciding: bool = False) -> Expander:
        return Expander(source, self.state, self.budget, self.capture, deciding and not self.state.arguments)

    def capture(self, source: Source, place: Place) -> Pieces:
        """Return the output of a command substitution without trailing newlines; `substituted` becomes its status."""
        parts: list[Piece] = []
        self.substituted = self.subshell(methodcaller("program", source), output=parts, captured=True)
        while parts and not parts[-1].unknown and not parts[-1].text.rstrip("\n"):
            parts.pop()
        if parts and not parts[-1].unknown:
            parts[-1] = parts[-1].cut(0, len(parts[-1].text.rstrip("\n")))
        return tuple(parts)

    def statements(self, source: Source, nodes: Iterable[Node]) -> Truth:
        """Run statements in order; return the status of the last, TRUE without any. Raises as `execute`."""
        status = TRUE
        for node in nodes:
            status = self.execute(source, node)
        return status

    def execute(self, source: Source, node: Node) -> Truth:
        """Run one statement by the method named `_` and its node's type, else its children; return its status.

        Comments, single words and tokens are TRUE. Raises Leave, and Exhausted with the innermost node's place.
        """
        self.budget.spend()
        try:
            run: Callable[[Source, Node], Truth] | None = getattr(self, f"_{node.type}", None)
            if run is not None:
                return run(source, node)
            known = not node.is_named or node.type in ("comment", "heredoc_body", "word", "number")
            return TRUE if known else self.statements(source, node.named_children)
        except Exhausted as error:
            error.place = error.place or place_at(source, node)
            raise

    def subshell(self, run: Callable[[Shell], Truth], **fields: object) -> Truth:
        """Run `run` on a copy of the shell with these `fields`; return its status. Only written files are kept."""
        inside: Shell = replace(self, **{"state": self.state.copy(), "pending": [], **fields})  # type: ignore[arg-type]
        try:
            return run(inside)
        except Leave as leave:
            return ended(leave)
        finally:
            self.state.files = inside.state.files

    # ---- what is not decided

    def undecided(
        self, branches: Sequence[Callable[[], object]], why: str, place: Place, *, likely: bool = False
    ) -> None:
        """Run each branch on a copy of the state, and merge states and outputs; values that differ become unknown.

        Branches that raise Leave are left out, and those of break, continue and return kept in `pending`; it is raised
        if all do. why: the reason of unknown values, and of `maybe` while a branch runs; not for the first if it is
        `likely`.
        """
        outcomes, left = [], None
        for branch in branches:
            state, output, maybe = self.state, self.output, self.maybe
            self.state, self.output = state.copy(), None if output is None else []
            self.maybe = maybe if likely and branch is branches[0] else maybe or why
            try:
                branch()
                outcomes.append((self.state, tuple(self.output or ())))
            except Leave as leave:
                left = left or leave
                if leave.kind != "exit":
                    self.pending.append((leave, self.state))
            finally:
                self.state, self.output, self.maybe = state, output, maybe
        if not outcomes:
            raise left or Leave("exit")
        self.state, printed = merged_states(self.budget, outcomes, why, place)
        if self.output is not None:
            self.output += printed

    def resume(self, kind: str, place: Place) -> None:
        """Merge the states that left by `kind` ("break", "continue", "return") into the state, and drop them."""
        states = [(state, ()) for leave, state in self.pending if leave.kind == kind]
        self.pending = [(leave, state) for leave, state in self.pending if leave.kind != kind]
        if states:
            self.state, _ = merged_states(self.budget, [(self.state, ()), *states], _LEFT, place)

    def guarded(self, branch: Callable[[], Truth], check: Place | None = None) -> Truth:
        """Run a branch and return its status; if it exits with an error, restore the state and return TRUE.

        Such a branch is taken for a check that does not fail; `check`, its condition's place, then goes to `log.stops`,
        unless an unknown condition decides whether it is made.
        """
        before = self.state.copy()
        try:
            return branch()
        except Leave as leave:
            if leave.kind != "exit" or not leave.bad:
                raise
            self.state = before
            if check is not None and not self.maybe:
                self.log.stops.append(check)
            return TRUE

    def call(self, name: str, arguments: Words, place: Place) -> Truth:
        """Run a function of the script and return its status; afterwards restore the arguments and its local variables.

        The status is unknown if the function may also return with another one. Raises Leave, but not of `return`.
        """
        source, body = self.state.functions[name]
        saved, outer = self.state.arguments, self.pending
        self.state.arguments, self.pending = tuple(arguments), []
        self.locals.append({})
        try:
            status = self.execute(source, body)
        except Leave as leave:
            if leave.kind != "return":
                raise
            status = ended(leave)
        finally:
            others = [ended(leave).value for leave, _ in self.pending if leave.kind == "return"]
            self.resume("return", place)
            self.pending += outer
            self.state.arguments = saved
            self.state.restore(self.locals.pop())
        if any(value is not status.value for value in others):
            return Truth(None, "depends on where a function is left", status=status.status)
        return status

    def arithmetic(self, source: Source, start: int, end: int) -> Truth:
        """Return whether the expression at bytes [start, end) is not 0; its assignments change the state."""
        try:
            return Truth(self.expander(source, deciding=True).arithmetic(start, end) != 0)
        except Dark as dark:
            return Truth(None, str(dark))


# ---- code in other places


def source_file(shell: Shell, words: Words, place: Place) -> Truth:
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
    shell.state.arguments = tuple(words[1:]) or saved
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
        return None, f"names a file outside of {readable(root)}, which {ROOT_OPTION} DIR would let be read"
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


def as_line(words: Words) -> Pieces:
    """Return the words as one text, separated by blanks."""
    return tuple(part for index, word in enumerate(words) for part in (*([Piece(" ")] if index else []), *word.pieces))


def run_code(shell: Shell, words: Words, place: Place) -> Truth:
    """Run `eval`: run the words as code in this shell's state; unknown code is logged, as it may set any variable."""
    parts = as_line(words)
    first = next((part for part in parts if part.unknown or part.text.strip()), None)
    if first is not None and first.unknown:
        why = f"runs code that is not known, which may set any variable: it {first.unknown}"
        shell.log.add(place, shell.log.written(place) or "eval", why, Hides.VARIABLES)
    return shell.program(Source(parts, place))


def shell_code(shell: Shell, words: Words, place: Place) -> bool:
    """Run the code or script that a command passes to another shell, on a copy of the state; return whether it does.

    Forms: `--wrap` or standard input; words behind the host of ssh and pdsh; FILE.sh; `bash -c CODE` or `bash FILE.sh`
    behind a launcher. A word ending in .py ends the search.
    """

    def run(launcher: Words, code: Pieces, arguments: Words = (), here: bool = True) -> bool:
        return _child(shell, launcher, arguments, methodcaller("program", Source(code, place)), here=here)

    name = posixpath.basename(words[0].text)
    if name in (*SHELLS, "sbatch"):
        wrapped = next((index for index, word in enumerate(words) if word.text.startswith("--wrap")), None)
        if wrapped is not None:
            field = words[wrapped].cut(len("--wrap=")) if "=" in words[wrapped].text else words[-1]
            return run((), field.pieces)
        if shell.stdin is not None and all(word.text.startswith("-") for word in words[1:]):
            return run((), shell.stdin)
    if name in _REMOTE:  # the words behind the host are code of a shell there, which has none of this one's variables
        at = 1
        while at < len(words) and words[at].text.startswith("-"):
            at += 2 if words[at].text[1:] in _REMOTE[name] else 1
        at += name == "ssh"  # the host; pdsh has them as an option
        return at < len(words) and run(words[:at], (*as_line(words[at:]), Piece(" ")), here=False)
    for index, word in enumerate(words):
        if word.text.endswith(".py"):
            return False
        script = word.text.endswith(".sh") and (index == 0 or not words[index - 1].text.startswith("-"))
        if word.unknown or not (script or posixpath.basename(word.text) in SHELLS):
            continue
        if script:
            return _script(shell, words, index, place)
        at = index + 1
        while at < len(words) and words[at].text.startswith("-") and not words[at].unknown:
            if re.fullmatch(r"-[a-z]*c", words[at].text) and at + 1 < len(words):
                return run(words[:index], words[at + 1].pieces, words[at + 3 :])
            at += 1
        if at < len(words) and not words[at].unknown and words[at].text.endswith(".sh"):
            return _script(shell, words, at, place)
    return False


def _child(
    shell: Shell, launcher: Words, arguments: Words, run: Callable[[Shell], Truth], *, here: bool = True
) -> bool:
    """Run `run` in a child shell and return True; `exit` ends only the child.

    It has the exported variables, the files, no functions, and `arguments`. Elsewhere than `here` it has no variables,
    and its files are not kept. launcher: words in front of the child's.
    """
    mine, files = shell.state, shell.state.files
    exported = mine.exported if here else set[str]()  # some may have no value yet
    given = {name: mine.variables[name] for name in exported if name in mine.variables}
    state = replace(mine.copy(), variables=given, exported=set(exported), functions={}, arguments=tuple(arguments))
    words = (*shell.launcher, *launcher)
    shell.subshell(run, state=state, launcher=words, locals=[], captured=shell.captured and here)
    if not here:
        mine.files = files
    return True


def _script(shell: Shell, words: Words, at: int, place: Place) -> bool:
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

    def run(inside: Shell) -> Truth:
        inside.state.variables["0"] = plain(str(path))
        return _run_file(inside, path)

    called = bool(at) and posixpath.basename(words[at - 1].text) in SHELLS
    return _child(shell, words[: at - called], words[at + 1 :], run)

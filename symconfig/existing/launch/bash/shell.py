"""The interpreter's frame: programs, substitutions, functions, and what is left open where nobody knows which way a
script goes. Nothing is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import methodcaller
from typing import TypeAlias

from tree_sitter import Node

from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import TRUE, Truth, ended
from symconfig.existing.launch.bash.parameters import Expander
from symconfig.existing.launch.bash.source import Source, errors_of, parse, place_at, text_at
from symconfig.existing.launch.bash.state import Budget, Exhausted, Leave, Log, State, Value, merged_states
from symconfig.existing.launch.reading import Piece, Pieces, Word
from symconfig.existing.launch.text import Place

Words: TypeAlias = Sequence[Word]
_ERRORS = 10  # of syntax that are logged of one source
_LEFT = "depends on where a loop or a function is left"


@dataclass
class Shell:
    """Base of the interpreter: state, control flow and subshells; executes nothing.

    Args:
        output: collects what is printed; None if nothing does.
        stdin: standard input as far as it is known; None if not.
        launcher: words in front of a nested shell.
        maybe: conditions that are not known and decide whether this code runs.
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
    maybe: list[str] = field(default_factory=list)
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
        if all do. why: the reason of unknown values, added to `maybe` while a branch runs; not for the first if it is
        `likely`.
        """
        outcomes, left = [], None
        for branch in branches:
            state, output, reasons = self.state, self.output, self.maybe
            self.state, self.output = state.copy(), None if output is None else []
            self.maybe = reasons if likely and branch is branches[0] else [*reasons, why]
            try:
                branch()
                outcomes.append((self.state, tuple(self.output or ())))
            except Leave as leave:
                left = left or leave
                if leave.kind != "exit":
                    self.pending.append((leave, self.state))
            finally:
                self.state, self.output, self.maybe = state, output, reasons
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
            for variable, (known, value) in self.locals.pop().items():
                if known:
                    self.state.variables[variable] = value
                else:
                    self.state.variables.pop(variable, None)
        if any(value is not status.value for value in others):
            return Truth(None, "depends on where a function is left", status=status.status)
        return status

    def arithmetic(self, source: Source, start: int, end: int) -> Truth:
        try:
            return Truth(self.expander(source, deciding=True).arithmetic(start, end) != 0)
        except Dark as dark:
            return Truth(None, str(dark))

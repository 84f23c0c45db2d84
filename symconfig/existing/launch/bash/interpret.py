"""The interpreter: which statements run, in which order, and what is left open where nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tree_sitter import Node

from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.conditions import TRUE, Truth, ended
from symconfig.existing.launch.bash.expand import Expander
from symconfig.existing.launch.bash.log import Leave, Log
from symconfig.existing.launch.bash.nodes import errors_of, statements_of
from symconfig.existing.launch.bash.shell import Budget, Exhausted, Outcome, State, merged, one_of
from symconfig.existing.launch.bash.source import Source, parse
from symconfig.existing.launch.bash.values import Field, Part, Parts, Value
from symconfig.existing.launch.reading import Hides
from symconfig.existing.launch.text import Place

Handler: TypeAlias = "Callable[[Interpreter, Source, Node], Truth]"


@dataclass
class Interpreter:
    """Runs statements on a state, without running anything.

    handlers: what runs each kind of statement (`statements.HANDLERS`), given here because those run statements, too.
    output: what a substitution or a redirection collects; None: nobody. stdin: what a command reads, as far as known.
    launcher: words before a nested shell, which start what it starts. maybe: reasons why this may not run at all.
    pending: states in which a loop or a function may have been left. substituted: the status of the last substitution.
    """

    state: State
    budget: Budget
    log: Log
    handlers: Mapping[str, Handler]
    output: list[Part] | None = None
    stdin: Parts | None = None
    launcher: tuple[Field, ...] = ()
    maybe: list[str] = field(default_factory=list)
    captured: bool = False
    sourcing: tuple[str, ...] = ()
    pending: list[tuple[Leave, State]] = field(default_factory=list)
    locals: list[dict[str, tuple[bool, Value]]] = field(default_factory=list)
    substituted: Truth = TRUE

    # ---- programs

    def program(self, source: Source) -> Truth:
        """Run all of a source; return its status. Raises Leave, Exhausted."""
        root = parse(source)
        if root.has_error:
            for node in errors_of(root, source.data):
                self.unread(source, node, "is not understood as bash")
        return self.statements(source, statements_of(root))

    def unread(self, source: Source, node: Node, why: str, hides: Hides = Hides.OPTIONS) -> None:
        what = source.data[node.start_byte : node.end_byte].decode("utf-8", "replace")
        self.log.add(source.place(node.start_byte, node.end_byte), what, why, hides)

    def expander(self, source: Source, deciding: bool = False) -> Expander:
        return Expander(source, self.state, self.budget, self.capture, deciding and not self.state.arguments)

    def capture(self, source: Source, place: Place) -> Parts:
        """Return what the code prints, without line ends at its end."""
        inside = replace(self, state=self.state.copy(), output=[], captured=True, pending=[], maybe=list(self.maybe))
        self.budget.enter()
        try:
            self.substituted = inside.program(source)
        except Leave as leave:
            self.substituted = ended(leave)
        finally:
            self.budget.leave()
        parts = list(inside.output or ())
        while parts and not parts[-1].unknown and not parts[-1].text.rstrip("\n"):
            parts.pop()
        if parts and not parts[-1].unknown:
            parts[-1] = parts[-1].cut(0, len(parts[-1].text.rstrip("\n")))
        return tuple(parts)

    def statements(self, source: Source, nodes: Sequence[Node]) -> Truth:
        status = TRUE
        for node in nodes:
            status = self.execute(source, node)
        return status

    def execute(self, source: Source, node: Node) -> Truth:
        """Run one statement; return its status. Raises Leave, Exhausted."""
        self.budget.spend()
        self.budget.enter()
        try:
            handler = self.handlers.get(node.type)
            return self._unknown(source, node) if handler is None else handler(self, source, node)
        except Exhausted as error:
            error.place = error.place or source.place(node.start_byte, node.end_byte)
            raise
        finally:
            self.budget.leave()

    def _unknown(self, source: Source, node: Node) -> Truth:
        if node.is_named and node.type not in ("comment", "heredoc_body", "word", "number"):
            return self.statements(source, statements_of(node))
        return TRUE

    # ---- what is not decided

    def undecided(self, branches: Sequence[Callable[[], object]], why: str, place: Place) -> None:
        """Run branches of which any may run: what they disagree about is not known afterwards."""
        before = Outcome(self.state, maybe=why)
        ends = [self.tried(branch, before) for branch in branches]
        outcomes = [end for end in ends if isinstance(end, Outcome)]
        if not outcomes:
            raise next(end for end in ends if isinstance(end, Leave))
        self.goes_on(one_of(self.budget, outcomes, why, place))

    def tried(self, branch: Callable[[], object], before: Outcome) -> Outcome | Leave:
        """Return how a branch ends that may run after `before`; this shell stays as it is."""
        state, output = self.state, self.output
        self.state, self.output = before.state.copy(), None if output is None else list(before.output)
        if before.maybe:
            self.maybe.append(before.maybe)
        try:
            branch()
            return replace(before, state=self.state, output=tuple(self.output or ()))
        except Leave as leave:
            if leave.kind != "exit":
                self.pending.append((leave, self.state))
            return leave
        finally:
            if before.maybe:
                self.maybe.pop()
            self.state, self.output = state, output

    def goes_on(self, outcome: Outcome) -> None:
        self.state = outcome.state
        if self.output is not None:
            self.output += outcome.output

    def resume(self, kinds: tuple[str, ...], place: Place) -> None:
        """Go on after a loop or a function with the states that may have left it."""
        states = [state for leave, state in self.pending if leave.kind in kinds]
        self.pending = [(leave, state) for leave, state in self.pending if leave.kind not in kinds]
        if states:
            why = "depends on where a loop or a function is left"
            self.state = merged(self.budget, [self.state, *states], why, place)

    def guarded(self, branch: Callable[[], Truth], check: Place | None = None) -> Truth:
        """Run a branch. One that ends in an error is a check: the script is read as it runs when its checks pass.

        check: its condition, which holds.
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

    # ---- arithmetic and functions

    def arithmetic(self, source: Source, start: int, end: int) -> Truth:
        try:
            return Truth(self.expander(source, deciding=True).arithmetic(start, end) != 0)
        except Dark as dark:
            return Truth(None, str(dark))

    def call(self, name: str, arguments: Sequence[Field], place: Place) -> Truth:
        """Run a function of the script."""
        function = self.state.functions[name]
        saved = self.state.arguments
        outer, self.pending = self.pending, []
        self.state.arguments = tuple(arguments)
        self.locals.append({})
        self.budget.enter()
        try:
            status = self.execute(function.source, function.body)
        except Leave as leave:
            if leave.kind != "return":
                raise
            status = ended(leave)
        finally:
            self.budget.leave()
            others = [ended(leave).value for leave, _ in self.pending if leave.kind == "return"]
            if any(value is not status.value for value in others):
                status = Truth(None, "depends on where a function is left", status=status.status)
            self.resume(("return",), place)
            self.pending += outer
            self.state.arguments = saved
            for variable, (known, value) in self.locals.pop().items():
                if known:
                    self.state.variables[variable] = value
                else:
                    self.state.variables.pop(variable, None)
        return status

"""Statements: which of them run, in which order, and what is left open where nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from symconfig.existing.launch.bash import assignments, branches, lexer, lists, loops, redirects
from symconfig.existing.launch.bash.arithmetic import Dark
from symconfig.existing.launch.bash.commands import run_words
from symconfig.existing.launch.bash.conditions import TRUE, Truth, double_tested, ended, tested
from symconfig.existing.launch.bash.expand import Expander
from symconfig.existing.launch.bash.log import Leave, Log
from symconfig.existing.launch.bash.nodes import errors_of, lines_of, statements_of, value_end, word_ranges
from symconfig.existing.launch.bash.shell import Budget, Function, Outcome, State, merged, one_of
from symconfig.existing.launch.bash.source import Source, parse
from symconfig.existing.launch.bash.values import Field, Part, Parts, Value
from symconfig.existing.launch.text import Place


@dataclass
class Interpreter:
    """Runs statements on a state, without running anything.

    output: what a substitution or a redirection collects; None: nobody. stdin: what a command reads, as far as known.
    launcher: words before a nested shell, which start what it starts. maybe: reasons why this may not run at all.
    pending: states in which a loop or a function may have been left. substituted: the status of the last substitution.
    """

    state: State
    budget: Budget
    log: Log
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
        """All of a source; its status. Raises Leave, Exhausted."""
        root = parse(source)
        if root.has_error:
            for node in errors_of(root):
                self.unread(source, node, "is not understood as bash")
        return self.statements(source, statements_of(root))

    def unread(self, source: Source, node: Node, why: str, matters: bool = True) -> None:
        what = source.data[node.start_byte : node.end_byte].decode("utf-8", "replace")
        self.log.add(source.place(node.start_byte, node.end_byte), what, why, matters)

    def expander(self, source: Source, deciding: bool = False) -> Expander:
        return Expander(source, self.state, self.budget, self.capture, deciding and not self.state.arguments)

    def capture(self, source: Source, place: Place) -> Parts:
        """What the code prints, without line ends at its end."""
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
        """One statement; its status. Raises Leave, Exhausted."""
        self.budget.spend()
        self.budget.enter()
        try:
            return _HANDLERS.get(node.type, Interpreter._unknown)(self, source, node)
        finally:
            self.budget.leave()

    def _unknown(self, source: Source, node: Node) -> Truth:
        if node.is_named and node.type not in ("comment", "heredoc_body", "word", "number"):
            return self.statements(source, statements_of(node))
        return TRUE

    # ---- what is not decided

    def undecided(self, branches: Sequence[Callable[[], object]], why: str, place: Place) -> None:
        """Any of the branches may run: what they disagree about is not known afterwards."""
        before = Outcome(self.state, maybe=why)
        ends = [self.tried(branch, before) for branch in branches]
        outcomes = [end for end in ends if isinstance(end, Outcome)]
        if not outcomes:
            raise next(end for end in ends if isinstance(end, Leave))
        self.goes_on(one_of(outcomes, why, place))

    def tried(self, branch: Callable[[], object], before: Outcome) -> Outcome | Leave:
        """How a branch ends that may run after `before`; this shell stays as it is."""
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

    def _resume(self, kinds: tuple[str, ...], place: Place) -> None:
        """After a loop or a function: the states that may have left it go on here."""
        states = [state for leave, state in self.pending if leave.kind in kinds]
        self.pending = [(leave, state) for leave, state in self.pending if leave.kind not in kinds]
        if states:
            self.state = merged([self.state, *states], "depends on where a loop or a function is left", place)

    def guarded(self, branch: Callable[[], Truth], check: Place | None = None) -> Truth:
        """A branch that ends in an error is a check: the script is read as it runs when its checks pass.

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

    # ---- lists and conditions

    def _negated(self, source: Source, node: Node) -> Truth:
        return self.execute(source, node.children[-1]).negated()

    def _pipeline(self, source: Source, node: Node) -> Truth:
        stages = [child for child in node.children if child.is_named]
        stdin, status = self.stdin, TRUE
        for index, stage in enumerate(stages):
            last = index == len(stages) - 1
            inside = replace(self, state=self.state.copy(), output=self.output if last else [], stdin=stdin, pending=[])
            try:
                status = inside.execute(source, stage)
            except Leave as leave:
                status = ended(leave)
            stdin = tuple(inside.output or ())
            self.state.files = inside.state.files
        return Truth(None, status.why or "depends on a program", status=True)

    def _subshell(self, source: Source, node: Node) -> Truth:
        inside = replace(self, state=self.state.copy(), pending=[])
        try:
            status = inside.statements(source, statements_of(node))
        except Leave as leave:
            status = ended(leave)
        self.state.files = inside.state.files
        return status

    def _compound(self, source: Source, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return self.arithmetic(source, node.children[0].end_byte, node.children[-1].start_byte)
        return self.statements(source, statements_of(node))

    def arithmetic(self, source: Source, start: int, end: int) -> Truth:
        try:
            return Truth(self.expander(source, deciding=True).arithmetic(start, end) != 0)
        except Dark as dark:
            return Truth(None, str(dark))

    def _test(self, source: Source, node: Node) -> Truth:
        first, last = node.children[0], node.children[-1]
        start, end = first.end_byte, last.start_byte
        if first.type == "((":
            return self.arithmetic(source, start, end)
        expander = self.expander(source, deciding=True)
        if first.type == "[[":
            return double_tested(expander, start, end)
        return tested(
            expander,
            [
                item.parts
                for first_byte, last_byte in lexer.words(source.data, start, end)
                for item in expander.fields(first_byte, last_byte)
            ],
        )

    # ---- functions and commands

    def _function(self, source: Source, node: Node) -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.state.functions[source.data[name.start_byte : name.end_byte].decode("utf-8", "replace")] = Function(
                source, body
            )
        return TRUE

    def call(self, name: str, arguments: Sequence[Field], place: Place) -> Truth:
        """A function of the script."""
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
            self._resume(("return",), place)
            self.pending += outer
            self.state.arguments = saved
            for variable, (known, value) in self.locals.pop().items():
                if known:
                    self.state.variables[variable] = value
                else:
                    self.state.variables.pop(variable, None)
        return status

    def _command(self, source: Source, node: Node, behind: Sequence[Node] = ()) -> Truth:
        """behind: words that stand after a redirection."""
        status = TRUE
        for children in lines_of(source.data, node.children):
            assigned = [child for child in children if child.type == "variable_assignment"]
            # The parser may end a value too early, `A=$B-$2`: what it takes for the command is the value's end.
            start = max((value_end(source.data, child) for child in assigned), default=0)
            named = [
                child
                for child in children
                if (child.is_named or child.type in ("==", "=~"))
                and child.type not in ("variable_assignment", "comment")
                and not child.type.endswith("_redirect")
                and child.start_byte >= start
            ]
            strings = [child for child in children if child.type.endswith("_redirect")]

            def run(extra: Sequence[Node], assigned: list[Node] = assigned, named: list[Node] = named) -> Truth:
                return self.words(source, node, assigned, [*named, *extra, *behind])

            status = redirects.redirected(self, source, strings, run) if strings else run(())
        return status

    def words(self, source: Source, node: Node, assigned: Sequence[Node], named: Sequence[Node]) -> Truth:
        """A simple command: its words are expanded, then it is run."""
        expander = self.expander(source)
        found: list[Field] = []
        for start, end in word_ranges(source.data, named):
            found += expander.fields(start, end)
            self.budget.spend(len(found) // 64)
        if not found:
            return assignments.run_all(self, source, assigned)
        before, exported = dict(self.state.variables), set(self.state.exported)
        names = [assignments.assign(self, source, child) for child in assigned]
        self.state.exported |= set(names)
        status = run_words(self, found, source.place(node.start_byte, node.end_byte))
        for name in names:  # they hold for this command only
            if name in before:
                self.state.variables[name] = before[name]
            else:
                self.state.variables.pop(name, None)
            if name not in exported:
                self.state.exported.discard(name)
        return status

    def _redirected(self, source: Source, node: Node) -> Truth:
        body = node.child_by_field_name("body")

        def run(extra: Sequence[Node]) -> Truth:
            if body is None:
                return TRUE
            return self._command(source, body, extra) if body.type == "command" else self.execute(source, body)

        return redirects.redirected(self, source, node.children_by_field_name("redirect"), run)


_HANDLERS: dict[str, Callable[[Interpreter, Source, Node], Truth]] = {
    "list": lists.run_list,
    "negated_command": Interpreter._negated,
    "pipeline": Interpreter._pipeline,
    "subshell": Interpreter._subshell,
    "compound_statement": Interpreter._compound,
    "test_command": Interpreter._test,
    "if_statement": branches.run_if,
    "case_statement": branches.run_case,
    "for_statement": loops.run_for,
    "c_style_for_statement": loops.run_c_for,
    "while_statement": loops.run_while,
    "function_definition": Interpreter._function,
    "variable_assignment": assignments.run_assignment,
    "variable_assignments": assignments.run_assignments,
    "declaration_command": assignments.run_declaration,
    "unset_command": assignments.run_unset,
    "command": Interpreter._command,
    "redirected_statement": Interpreter._redirected,
}

"""Statements: which of them run, in which order, and what is left open where nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from symconfig.launch.bash import lexer, redirects
from symconfig.launch.bash.arithmetic import Dark
from symconfig.launch.bash.commands import declare, run_words
from symconfig.launch.bash.conditions import TRUE, Truth, double_tested, tested
from symconfig.launch.bash.expand import Expander
from symconfig.launch.bash.log import Leave, Log, shortened
from symconfig.launch.bash.patterns import matches, pattern
from symconfig.launch.bash.shell import Budget, Function, State, bounded, merged
from symconfig.launch.bash.source import Source, parse
from symconfig.launch.bash.values import Array, Field, Part, Parts, Value, hole, text_of, unknown_of
from symconfig.launch.text import Place

_ENDS = b" \t\n;&|()<>"  # of a word without quotes
ROUNDS = 2_000  # of one loop


@dataclass
class Interpreter:
    """Runs statements on a state, without running anything.

    output: what a substitution or a redirection collects; None: nobody. stdin: what a command reads, as far as known.
    launcher: words before a nested shell, which start what it starts. maybe: reasons why this may not run at all.
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
    pending: list[tuple[str, State]] = field(default_factory=list)
    locals: list[dict[str, tuple[bool, Value]]] = field(default_factory=list)

    # ---- programs

    def program(self, source: Source) -> None:
        """All of a source. Raises Leave, Exhausted."""
        root = parse(source)
        if root.has_error:
            for node in _errors(root):
                self.unread(source, node, "is not understood as bash")
        self.statements(source, _statements(root))

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
            inside.program(source)
        except Leave:
            pass
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
            return self.statements(source, _statements(node))
        return TRUE

    # ---- what is not decided

    def undecided(self, branches: Sequence[Callable[[], object]], why: str, place: Place) -> None:
        """Any of the branches may run: what they disagree about is not known afterwards."""
        base, results = self.state, []
        left: Leave | None = None
        for branch in branches:
            self.state = base.copy()
            self.maybe.append(why)
            try:
                branch()
                results.append(self.state)
            except Leave as leave:
                left = left or leave
                if leave.kind != "exit":
                    self.pending.append((leave.kind, self.state))
            finally:
                self.maybe.pop()
        if not results:
            self.state = base
            raise left or Leave("exit")
        self.state = results[0] if len(results) == 1 else merged(results, why, place)

    def _resume(self, kinds: tuple[str, ...], place: Place) -> None:
        """After a loop or a function: the states that may have left it go on here."""
        states = [state for kind, state in self.pending if kind in kinds]
        self.pending = [(kind, state) for kind, state in self.pending if kind not in kinds]
        if states:
            self.state = merged([self.state, *states], "depends on where a loop or a function is left", place)

    def guarded(self, branch: Callable[[], Truth]) -> Truth:
        """A branch that ends in an error is a check: the script is read as it runs when its checks pass."""
        before = self.state.copy()
        try:
            return branch()
        except Leave as leave:
            if leave.kind != "exit" or not leave.bad:
                raise
            self.state = before
            return TRUE

    # ---- lists and conditions

    def _list(self, source: Source, node: Node) -> Truth:
        left, right = node.children[0], node.children[-1]
        stop = any(child.type == "||" for child in node.children)
        status = self.execute(source, left)
        if status.status and status.value is None:
            status = TRUE  # a program is taken to succeed
        if status.value is stop:
            return status
        if status.value is not None:
            return self.guarded(lambda: self.execute(source, right))
        place = source.place(left.start_byte, left.end_byte)
        condition = source.data[left.start_byte : left.end_byte].decode("utf-8", "replace")
        self.undecided([lambda: self.execute(source, right), lambda: None], _open(condition, status), place)
        return Truth(None, status.why)

    def _negated(self, source: Source, node: Node) -> Truth:
        return self.execute(source, node.children[-1]).negated()

    def _pipeline(self, source: Source, node: Node) -> Truth:
        stages = [child for child in node.children if child.is_named]
        stdin, status = self.stdin, TRUE
        for index, stage in enumerate(stages):
            last = index == len(stages) - 1
            inside = replace(self, state=self.state.copy(), output=self.output if last else [], stdin=stdin,
                             pending=[])
            try:
                status = inside.execute(source, stage)
            except Leave:
                status = TRUE
            stdin = tuple(inside.output or ())
            self.state.files = inside.state.files
        return Truth(None, status.why or "depends on a program", status=True)

    def _subshell(self, source: Source, node: Node) -> Truth:
        inside = replace(self, state=self.state.copy(), pending=[])
        try:
            status = inside.statements(source, _statements(node))
        except Leave as leave:
            status = Truth(not leave.bad)
        self.state.files = inside.state.files
        return status

    def _compound(self, source: Source, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return self.arithmetic(source, node.children[0].end_byte, node.children[-1].start_byte)
        return self.statements(source, _statements(node))

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
        return tested(expander, [item.parts for first_byte, last_byte in lexer.words(source.data, start, end)
                                 for item in expander.fields(first_byte, last_byte)])

    # ---- if, case

    def _if(self, source: Source, node: Node) -> Truth:
        return self._clauses(source, list(_clauses(node)), 0)

    def _clauses(self, source: Source, clauses: list[tuple[list[Node], list[Node]]], index: int) -> Truth:
        for at in range(index, len(clauses)):
            conditions, body = clauses[at]
            if not conditions:
                return self.guarded(lambda body=body: self.statements(source, body))  # type: ignore[misc]
            truth = self.statements(source, conditions)
            if truth.value is True and not truth.status:
                before = dict(self.state.variables)
                status = self.guarded(lambda body=body: self.statements(source, body))  # type: ignore[misc]
                self._presume(truth.presumed, before)
                return status
            if truth.value is None or truth.status:
                start, end = conditions[0].start_byte, conditions[-1].end_byte
                written = source.data[start:end].decode("utf-8", "replace")
                self.undecided([lambda body=body: self.statements(source, body),  # type: ignore[misc]
                                lambda at=at: self._clauses(source, clauses, at + 1)],  # type: ignore[misc]
                               _open(written, truth), source.place(start, end))
                return Truth(None, truth.why)
        return TRUE

    def _presume(self, names: tuple[str, ...], before: dict[str, Value]) -> None:
        """`if [ -z "$X" ]; then X=8; fi` is `X=${X:-8}`."""
        for name in names:
            value = self.state.variables.get(name)
            if name not in before and isinstance(value, tuple):
                self.state.variables[name] = tuple(
                    part if part.overridden_by else replace(part, overridden_by=name) for part in value)

    def _case(self, source: Source, node: Node) -> Truth:
        value = node.child_by_field_name("value")
        items = [child for child in node.children if child.type == "case_item"]
        if value is None:
            return TRUE
        expander = self.expander(source, deciding=True)
        word = expander.value(value.start_byte, value.end_byte)
        why = unknown_of(word)
        place = source.place(value.start_byte, value.end_byte)
        for index, item in enumerate(items):
            matched = None if why else self._matches(source, item, text_of(word))
            if matched is None:
                written = f"case {source.data[value.start_byte:value.end_byte].decode('utf-8', 'replace')}"
                rest = [lambda item=item: self._item(source, items, items.index(item))
                        for item in items[index:]]
                covered = any(self._matches(source, item, "\0") for item in items[index:])
                self.undecided(rest if covered else [*rest, lambda: None],
                               _open(written, Truth(None, why or "")), place)
                return Truth(None, why or "")
            if matched:
                return self.guarded(lambda index=index: self._item(source, items, index))  # type: ignore[misc]
        return TRUE

    def _matches(self, source: Source, item: Node, text: str) -> bool | None:
        expander = self.expander(source, deciding=True)
        for start, end in word_ranges(source.data, item.children_by_field_name("value")):
            parts = expander.value(start, end)
            items = pattern(parts)
            if unknown_of(parts) or items is None:
                return None
            if matches(items, text):
                return True
        return False

    def _item(self, source: Source, items: list[Node], index: int) -> Truth:
        """A branch of `case`, and those that it falls through to."""
        status = TRUE
        for item in items[index:]:
            close = next((at for at, child in enumerate(item.children) if child.type == ")"), 0)
            status = self.statements(source, [child for child in item.children[close + 1 :] if child.is_named])
            if not any(child.type == ";&" for child in item.children):
                break
        return status

    # ---- loops

    def _for(self, source: Source, node: Node) -> Truth:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return TRUE
        name = source.data[variable.start_byte : variable.end_byte].decode("utf-8", "replace")
        place = source.place(variable.start_byte, variable.end_byte)
        if any(child.type == "in" for child in node.children):
            expander = self.expander(source)
            values = [item for start, end in word_ranges(source.data, node.children_by_field_name("value"))
                      for item in expander.fields(start, end)]
        else:
            values = list(self.state.arguments)
        dark = next((item for item in values if item.several), None)
        if dark is not None or node.children[0].type == "select":
            why = (dark.unknown if dark else None) or "depends on what a person chooses"
            self.state.variables[name] = (hole(why, place),)
            return self._open_loop(source, node, body, why)
        rounds = iter(values)

        def advance() -> bool:
            item = next(rounds, None)
            if item is not None:
                self.expander(source).assign(name, tuple(replace(part, loose=False) for part in item.parts))
            return item is not None

        return self._loop(source, node, body, lambda: Truth(advance()))

    def _c_for(self, source: Source, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        opening = next((child for child in node.children if child.type == "(("), None)
        end = next((child for child in node.children if child.type == "))"), None)
        if body is None or opening is None or end is None:
            return TRUE
        marks = [child.start_byte for child in node.children if child.type == ";" and child.end_byte <= end.start_byte]
        if len(marks) != 2:
            self.unread(source, node, "is a loop that is not understood")
            return TRUE
        self.arithmetic(source, opening.end_byte, marks[0])
        first = [True]

        def condition() -> Truth:
            if not first[0]:
                self.arithmetic(source, marks[1] + 1, end.start_byte)
            first[0] = False
            written = source.data[marks[0] + 1 : marks[1]].strip()
            return self.arithmetic(source, marks[0] + 1, marks[1]) if written else TRUE

        return self._loop(source, node, body, condition)

    def _while(self, source: Source, node: Node) -> Truth:
        body = node.child_by_field_name("body")
        conditions = node.children_by_field_name("condition")
        if body is None:
            return TRUE
        until = node.children[0].type == "until"

        def condition() -> Truth:
            truth = self.statements(source, [child for child in conditions if child.is_named])
            if truth.status:
                truth = Truth(None, truth.why or "depends on a program")
            return truth.negated() if until else truth

        return self._loop(source, node, body, condition)

    def _loop(self, source: Source, node: Node, body: Node, condition: Callable[[], Truth]) -> Truth:
        place = source.place(node.start_byte, body.start_byte)
        outer, self.pending = self.pending, []
        before = self.state.copy()
        try:
            for _ in range(ROUNDS):
                truth = condition()
                if truth.value is None:
                    return self._open_loop(source, node, body, truth.why)
                if not truth.value or not self._round(source, body, place):
                    return TRUE
        finally:
            self._resume(("break",), place)
            self.pending += outer
        why = f"is set in a loop of more than {ROUNDS:,} rounds"
        self.unread(source, node.children[0], f"starts a loop of more than {ROUNDS:,} rounds", matters=False)
        self.state = merged([before, self.state], why, place)
        return TRUE

    def _round(self, source: Source, body: Node, place: Place) -> bool:
        """Whether the loop goes on."""
        try:
            self.statements(source, _statements(body))
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            return leave.kind == "continue"
        finally:
            self._resume(("continue",), place)
        return True

    def _open_loop(self, source: Source, node: Node, body: Node, why: str) -> Truth:
        """A loop of which nobody knows how often it runs: what it sets is not known."""
        place = source.place(node.start_byte, body.start_byte)
        reason = f"is set in a loop whose rounds are not known: {why}"
        for _ in range(2):  # the second round sees what the first one left open
            self.undecided([lambda: self._round(source, body, place), lambda: None], reason, place)
        self._resume(("break",), place)
        return Truth(None, reason)

    # ---- assignments and commands

    def _function(self, source: Source, node: Node) -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.state.functions[source.data[name.start_byte : name.end_byte].decode("utf-8", "replace")] = Function(
                source, body)
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
            status = Truth(not leave.bad)
        finally:
            self.budget.leave()
            self._resume(("return",), place)
            self.pending += outer
            self.state.arguments = saved
            for variable, (known, value) in self.locals.pop().items():
                if known:
                    self.state.variables[variable] = value
                else:
                    self.state.variables.pop(variable, None)
        return status

    def _assignments(self, source: Source, node: Node) -> Truth:
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(source, child)
        return TRUE

    def _assignment(self, source: Source, node: Node) -> Truth:
        self.assign(source, node)
        return TRUE

    def assign(self, source: Source, node: Node, keyed: bool = False) -> str:
        """`X=1`, `X+=1`, `A=(1 2)`, `A[0]=1`; the variable's name. keyed: of `declare -A`."""
        left = node.child_by_field_name("name")
        if left is None:
            return ""
        written = source.data[left.start_byte : left.end_byte].decode("utf-8", "replace")
        name, _, subscript = written.partition("[")
        at = source.data.find(b"=", left.end_byte, node.end_byte + 1) + 1
        added = source.data[at - 2 : at - 1] == b"+"
        place = source.place(node.start_byte, max(node.end_byte, at))
        expander = self.expander(source)
        old = self.state.variables.get(name)
        if source.data[at : at + 1] == b"(":
            close = lexer.closing(source.data, at, len(source.data))
            value: Value = self._array(expander, at + 1, close, old if added else None,
                                keyed or (isinstance(old, Array) and old.keyed), name, place)
        else:
            parts = expander.value(at, value_end(source.data, node)) or (Part("", written=place),)
            parts = self._started(name, parts)
            old = self.state.variables.get(name)  # the value may have set it, `A+=${A:=1}`
            value = parts
            if subscript or isinstance(old, Array):
                key = expander.value(left.start_byte + len(name) + 1, left.end_byte - 1) if subscript else ()
                expander.assign(f"{name}[{text_of(key) or 0}]", (*(self._item_of(name, text_of(key)) if added else ()),
                                                                 *parts))
                return name
            if added:
                value = (*(old if isinstance(old, tuple) else ()), *parts)
        self.budget.spend(len(value.items) // 4 if isinstance(value, Array) else len(value or ()))
        self.state.variables[name] = bounded(value, place)
        return name

    def _started(self, name: str, parts: Parts) -> Parts:
        """`X="$X --more"` of a variable that nothing sets begins with nothing."""
        first = parts[0]
        own = first.unknown and first.variables == (name,) and name not in self.state.variables
        return parts[1:] if own and len(parts) > 1 and parts[1].text[:1].isspace() else parts

    def _item_of(self, name: str, key: str) -> Parts:
        old = self.state.variables.get(name)
        if isinstance(old, Array):
            found = old.items.get(int(key) if key.isdigit() and not old.keyed else key or 0)
            return found.parts if found else ()
        return old or ()

    def _array(self, expander: Expander, start: int, end: int, old: Value, keyed: bool, name: str,
               place: Place) -> Array:
        items: dict[int | str, Field] = {}
        if isinstance(old, Array):
            items.update(old.items)
        elif old:
            items[0] = Field(old, place)
        following = max((key for key in items if isinstance(key, int)), default=-1) + 1
        for subscript, item in expander.items(start, end):
            key: int | str = following
            if subscript is not None:
                key = subscript
                if not keyed:
                    try:
                        key = expander.number(subscript, place)
                    except Dark:
                        key = subscript
            items[key] = item
            following = key + 1 if isinstance(key, int) else following
        return Array(items, keyed)

    def _declaration(self, source: Source, node: Node) -> Truth:
        keyword = node.children[0].type
        flags = ""
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                left = child.child_by_field_name("name")
                name = source.data[left.start_byte : left.end_byte].decode() if left is not None else ""
                declare(self, keyword, flags, name.partition("[")[0], None)
                name = self.assign(source, child, keyed="A" in flags)
                declare(self, keyword if keyword == "export" else "", flags.replace("A", ""), name, None, after=True)
                continue
            if not child.is_named or child.type == "comment":
                continue
            for item in self.expander(source).fields(*word_ranges(source.data, [child])[0]):
                if item.text.startswith("-") and not item.unknown:
                    flags += item.text[1:]
                elif not item.unknown:
                    name, equals, _ = item.text.partition("=")
                    declare(self, keyword, flags, name, item.cut(len(name) + 1).parts if equals else None, after=True)
        return TRUE

    def _unset(self, source: Source, node: Node) -> Truth:
        for start, end in word_ranges(source.data, [child for child in node.children[1:] if child.is_named]):
            for item in self.expander(source).fields(start, end):
                name, _, subscript = item.text.partition("[")
                value = self.state.variables.get(name)
                if subscript and isinstance(value, Array):
                    key = subscript.rstrip("]")
                    kept = {k: v for k, v in value.items.items() if str(k) != key}
                    self.state.variables[name] = Array(kept, value.keyed)
                elif not name.startswith("-"):
                    self.state.variables[name] = None
                    self.state.exported.discard(name)
        return TRUE

    def _command(self, source: Source, node: Node, behind: Sequence[Node] = ()) -> Truth:
        """behind: words that stand after a redirection."""
        status = TRUE
        for children in _lines(source.data, node.children):
            assignments = [child for child in children if child.type == "variable_assignment"]
            # The parser may end a value too early, `A=$B-$2`: what it takes for the command is the value's end.
            start = max((value_end(source.data, child) for child in assignments), default=0)
            named = [child for child in children if (child.is_named or child.type in ("==", "=~"))
                     and child.type not in ("variable_assignment", "comment") and not child.type.endswith("_redirect")
                     and child.start_byte >= start]
            strings = [child for child in children if child.type.endswith("_redirect")]

            def run(extra: Sequence[Node], assignments: list[Node] = assignments, named: list[Node] = named) -> Truth:
                return self.words(source, node, assignments, [*named, *extra, *behind])

            status = redirects.redirected(self, source, strings, run) if strings else run(())
        return status

    def words(self, source: Source, node: Node, assignments: Sequence[Node], named: Sequence[Node]) -> Truth:
        """A simple command: its words are expanded, then it is run."""
        expander = self.expander(source)
        found: list[Field] = []
        for start, end in word_ranges(source.data, named):
            found += expander.fields(start, end)
            self.budget.spend(len(found) // 64)
        if not found:
            for child in assignments:
                self.assign(source, child)
            return TRUE
        before, exported = dict(self.state.variables), set(self.state.exported)
        names = [self.assign(source, child) for child in assignments]
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


def word_ranges(data: bytes, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """The bytes of words. The parser may break a word, join two, or end one before a character that is escaped."""
    found: list[tuple[int, int]] = []
    for node in nodes:
        start, end = node.start_byte, max(node.end_byte, lexer.word_end(data, node.start_byte, len(data), _ENDS))
        if start == node.end_byte:
            continue
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found += lexer.words(data, start, end) or [(start, end)]
    return found


def value_end(data: bytes, node: Node) -> int:
    """Where the value of an assignment ends."""
    left = node.child_by_field_name("name")
    at = data.find(b"=", left.end_byte if left is not None else node.start_byte, node.end_byte + 1) + 1
    if data[at : at + 1] == b"(":
        return lexer.closing(data, at, len(data)) + 1
    return max(lexer.word_end(data, at, len(data), _ENDS), node.end_byte)


def _lines(data: bytes, nodes: Sequence[Node]) -> list[list[Node]]:
    """The parser may take the line after some assignments for a part of their command: that is one of its own."""
    found: list[list[Node]] = [[]]
    for node in nodes:
        gap = data[found[-1][-1].end_byte : node.start_byte] if found[-1] else b""
        if b"\n" in gap.replace(b"\\\n", b""):
            found.append([])
        found[-1].append(node)
    return found


def _statements(node: Node) -> list[Node]:
    return [child for child in node.children if child.is_named]


def _clauses(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """Conditions and body of `if`, each `elif`, and `else` without conditions."""
    conditions: list[Node] = []
    body: list[Node] = []
    into = body if node.type == "else_clause" else conditions
    rest: list[Node] = []
    for child in node.children:
        if child.type == "then":
            into = body
        elif child.type in ("elif_clause", "else_clause"):
            rest.append(child)
        elif child.is_named:
            into.append(child)
    yield conditions, body
    for clause in rest:
        yield from _clauses(clause)


def _errors(root: Node) -> Iterator[Node]:
    """The outermost pieces that the parser could not place, at most ten."""
    stack, count = [root], 0
    while stack and count < 10:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            count += 1
            yield node
        elif node.has_error:
            stack += reversed(node.children)


def _open(written: str, truth: Truth) -> str:
    why = f", which {truth.why}" if truth.why else ""
    return f"is set under a condition that is not known: {shortened(written)}{why}"


_HANDLERS: dict[str, Callable[[Interpreter, Source, Node], Truth]] = {
    "list": Interpreter._list, "negated_command": Interpreter._negated, "pipeline": Interpreter._pipeline,
    "subshell": Interpreter._subshell, "compound_statement": Interpreter._compound,
    "test_command": Interpreter._test, "if_statement": Interpreter._if, "case_statement": Interpreter._case,
    "for_statement": Interpreter._for, "c_style_for_statement": Interpreter._c_for,
    "while_statement": Interpreter._while, "function_definition": Interpreter._function,
    "variable_assignment": Interpreter._assignment, "variable_assignments": Interpreter._assignments,
    "declaration_command": Interpreter._declaration, "unset_command": Interpreter._unset,
    "command": Interpreter._command, "redirected_statement": Interpreter._redirected,
}

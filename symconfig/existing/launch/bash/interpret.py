"""Which statements run, in which order: each kind of statement of the syntax tree has a method of its name.

What depends on a condition that is not known runs on a copy of the state, and the copies are merged: what they disagree
about is not known afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from operator import methodcaller

from tree_sitter import Node

from symconfig.existing.launch.bash import source as code
from symconfig.existing.launch.bash.conditions import FALSE, TRUE, Truth, double_tested, tested
from symconfig.existing.launch.bash.expand import pattern
from symconfig.existing.launch.bash.simple import Simple
from symconfig.existing.launch.bash.source import Source, place_at, text_at, word_ranges
from symconfig.existing.launch.bash.state import Leave, shortened, unknown_part
from symconfig.existing.launch.reading import text_of, unknown_of
from symconfig.existing.launch.text import Place

ROUNDS = 2_000  # of one loop that are followed
_MANY = Truth(None, f"there are more than {ROUNDS:,}")
_CLAUSES = ("elif_clause", "else_clause")


class Interpreter(Simple):
    """Interpreter of statements on an abstract state; executes nothing."""

    # ---- lists, branches

    def _list(self, source: Source, node: Node) -> Truth:
        """Run `a && b` and `a || b`, also chained, from left to right; return the status of the last command run."""
        links: list[tuple[bool, Node]] = []  # a command, and the result of the one before with which it is passed over
        while node.type == "list":
            links.insert(0, (any(child.type == "||" for child in node.children), node.children[-1]))
            node = node.children[0]
        return self._rest_of_list(source, node, links, self.execute(source, node))

    def _rest_of_list(self, source: Source, node: Node, links: list[tuple[bool, Node]], status: Truth) -> Truth:
        """Run the rest of a list, `links` (result that skips it, command), after a command with this status.

        If it is not known, or a program's in a list with `||`, the rest runs on copies of the state for both outcomes,
        which are merged. Return the last status.
        """
        for index, (stop, right) in enumerate(links):
            place, provided = place_at(source, node), any(stop for stop, _ in links)
            if status.value is None or (status.status and provided):
                ends: list[bool | None] = []

                def rest(end: Truth, node: Node = node, index: int = index, ends: list[bool | None] = ends) -> None:
                    ends.append(self._rest_of_list(source, node, links[index:], end).value)

                # Programs are started to succeed: what stands behind one with && is what the script does.
                why = undecided_reason(text_at(source, node), status)
                self.undecided([partial(rest, TRUE), partial(rest, FALSE)], why, place, likely=status.status)
                return Truth(ends[0] if len({*ends}) == 1 else None, status.why, status=status.status)
            if status.value is not stop:
                status = self.guarded(partial(self.execute, source, right), place)
                node = right
        return status

    def _negated_command(self, source: Source, node: Node) -> Truth:
        return self.execute(source, node.children[-1]).negated()

    def _if_statement(self, source: Source, node: Node) -> Truth:
        return self._clauses(source, [node, *(child for child in node.children if child.type in _CLAUSES)])

    def _clauses(self, source: Source, clauses: list[Node]) -> Truth:
        """Run the first clause whose condition is true of `if`, `elif` and `else`; return its status, TRUE if none is.

        If a condition is unknown or a program's status, this clause and the rest run on copies of the state, which are
        merged; the status is unknown. A clause that exits with an error is undone (`guarded`).
        """
        if not clauses:
            return TRUE
        node, *rest = clauses
        at = next((index for index, child in enumerate(node.children) if child.type == "then"), 0)
        parts = node.children[:at], node.children[at:]
        conditions, body = (
            [child for child in part if child.is_named and child.type not in _CLAUSES] for part in parts
        )
        run = partial(self.statements, source, body)
        if not conditions:
            return self.guarded(run)
        truth, start, end = self.statements(source, conditions), conditions[0].start_byte, conditions[-1].end_byte
        place = source.place(start, end)
        if truth.value is None or truth.status:
            why = undecided_reason(source.data[start:end].decode("utf-8", "replace"), truth)
            self.undecided([run, partial(self._clauses, source, rest)], why, place)
            return Truth(None, truth.why)
        if not truth.value:
            return self._clauses(source, rest)
        return self.guarded(run, place)

    def _case_statement(self, source: Source, node: Node) -> Truth:
        """Run the first branch of `case` that matches and return its status, TRUE if none does.

        If the word, or a pattern before a match, is unknown, all branches from there on run on copies of the state, and
        also none unless one has a pattern such as `*`; the copies are merged and the status is unknown.
        """
        value = node.child_by_field_name("value")
        if value is None:
            return TRUE
        items = [child for child in node.children if child.type == "case_item"]
        word = self.expander(source, deciding=True).value(value.start_byte, value.end_byte)
        place = place_at(source, value)
        why = unknown_of(word) or ""
        for index, item in enumerate(items):
            matched = None if why else self._matches(source, item, text_of(word))
            if matched:
                return self.guarded(partial(self._case_item, source, item))
            if matched is None:
                rest: list[Callable[[], object]] = [partial(self._case_item, source, each) for each in items[index:]]
                covered = any(self._matches(source, each, "\0") for each in items[index:])
                reason = undecided_reason(f"case {text_at(source, value)}", Truth(None, why))
                self.undecided(rest if covered else [*rest, lambda: None], reason, place)
                return Truth(None, why)
        return TRUE

    def _matches(self, source: Source, item: Node, text: str) -> bool | None:
        """Return whether the text matches one of the branch's patterns; None if an unknown one precedes a match."""
        expander = self.expander(source, deciding=True)
        for start, end in word_ranges(source.data, item.children_by_field_name("value")):
            self.budget.spend(0.05 + len(text) / 64)
            if (glob := pattern(expander.value(start, end))) is None:
                return None
            if glob.match(text):
                return True
        return False

    def _case_item(self, source: Source, item: Node) -> Truth:
        close = next((at for at, child in enumerate(item.children) if child.type == ")"), 0)
        return self.statements(source, [child for child in item.children[close + 1 :] if child.is_named])

    # ---- loops, for a bounded number of rounds

    def _for_statement(self, source: Source, node: Node) -> Truth:
        """Run the body of `for` for each word, or each of the script's arguments without `in`; return TRUE.

        If a word is unknown and unquoted, the variable becomes unknown and the body runs as a loop with an unknown
        number of rounds, whose status is unknown. `select` is not read.
        """
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None or node.children[0].type == "select":
            self.log.add(place_at(source, node), text_at(source, node), "is not read")
            return TRUE
        name, place, expander = text_at(source, variable), place_at(source, variable), self.expander(source)
        values = list(self.state.arguments)
        if any(child.type == "in" for child in node.children):
            ranges = word_ranges(source.data, node.children_by_field_name("value"))
            values = [item for start, end in ranges for item in expander.fields(start, end)]
        if (dark := next((item.unknown for item in values if item.several), None)) is not None:
            self.state.variables[name] = (unknown_part(dark, place),)
            return self._unbounded_loop(source, node, body, dark)
        rounds = iter(values)

        def advance() -> Truth:
            if (item := next(rounds, None)) is not None:
                self.expander(source).assign(name, tuple(replace(part, loose=False) for part in item.pieces))
            return Truth(item is not None)

        return self._loop(source, node, body, advance)

    def _c_style_for_statement(self, source: Source, node: Node) -> Truth:
        """Run `for ((a;b;c))` and return the status of `_loop`; an empty `b` is true."""
        body, rounds = node.child_by_field_name("body"), count()
        marks = [(child.start_byte, child.end_byte) for child in node.children if child.type in ("((", ";", "))")][:4]
        if body is None or len(marks) < 4:  # an error of syntax, which is logged
            return TRUE
        first, test, step = ((left[1], right[0]) for left, right in pairwise(marks))

        def condition() -> Truth:
            self.arithmetic(source, *(step if next(rounds) else first))
            return self.arithmetic(source, *test) if source.data[slice(*test)].strip() else TRUE

        return self._loop(source, node, body, condition)

    def _while_statement(self, source: Source, node: Node) -> Truth:
        """Run `while` or `until` and return the status of `_loop`; a program's status is unknown."""
        body, until = node.child_by_field_name("body"), node.children[0].type == "until"
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        if body is None:
            return TRUE

        def condition() -> Truth:
            truth = self.statements(source, conditions)
            return Truth(None if truth.status or truth.value is None else truth.value is not until, truth.why)

        return self._loop(source, node, body, condition)

    def _loop(self, source: Source, node: Node, body: Node, condition: Callable[[], Truth]) -> Truth:
        """Run the body while `condition` is true and return TRUE; `_unbounded_loop` once it is unknown.

        States in which the loop may have been left are merged. After 2000 rounds their number counts as unknown.
        """
        place, outer, truth = source.place(node.start_byte, body.start_byte), self.pending, _MANY
        self.pending = []
        try:
            for _ in range(ROUNDS):
                truth = condition()
                if truth.value is None:
                    break
                if not truth.value or not self._round(source, body, place):
                    return TRUE
            return self._unbounded_loop(source, node, body, truth.why or _MANY.why)
        finally:
            self.resume("break", place)
            self.pending += outer

    def _round(self, source: Source, body: Node, place: Place) -> bool:
        """Run one round of a loop; return False after `break` (its number is ignored), else True.

        States that left by `continue` in undecided branches are merged into the state. Raises Leave for `return` and
        `exit`.
        """
        try:
            self.statements(source, body.named_children)
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            return leave.kind == "continue"
        finally:
            self.resume("continue", place)
        return True

    def _unbounded_loop(self, source: Source, node: Node, body: Node, why: str) -> Truth:
        """Run the body twice, each time merged with the state without it, so that what it changes is unknown.

        Return an unknown status with the reason `why`. States that left by `break` are merged, too.
        """
        place = source.place(node.start_byte, body.start_byte)
        why = f"is set in a loop whose rounds are not known: {why}"
        for _ in range(2):  # the second round sees what the first one left open
            self.undecided([lambda: self._round(source, body, place), lambda: None], why, place)
        self.resume("break", place)
        return Truth(None, why)

    # ---- other shells, tests, functions

    def _pipeline(self, source: Source, node: Node) -> Truth:
        """Run each stage on a copy of the state, with the output of the previous one as input.

        Return an unknown status. Only files that the stages write are kept.
        """
        stages, stdin, status = node.named_children, self.stdin, TRUE
        for index, stage in enumerate(stages):
            output = self.output if index == len(stages) - 1 else []
            status = self.subshell(methodcaller("execute", source, stage), output=output, stdin=stdin)
            stdin = tuple(output or ())
        return Truth(None, status.why or "depends on a program", status=True)

    def _subshell(self, source: Source, node: Node) -> Truth:
        return self.subshell(methodcaller("statements", source, node.named_children))

    def _compound_statement(self, source: Source, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return self.arithmetic(source, node.children[0].end_byte, node.children[-1].start_byte)
        return self.statements(source, node.named_children)

    def _test_command(self, source: Source, node: Node) -> Truth:
        """Run `[ ]`, `[[ ]]` or `(( ))` as a condition and return its value: of `(( ))` whether the result is not 0."""
        start, end, expander = node.children[0].end_byte, node.children[-1].start_byte, self.expander(source, True)
        match node.children[0].type:
            case "((":
                return self.arithmetic(source, start, end)
            case "[[":
                return double_tested(expander, start, end)
        words = (item for word in code.words(source.data, start, end) for item in expander.fields(*word))
        return tested(expander, [item.pieces for item in words])

    def _function_definition(self, source: Source, node: Node) -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.state.functions[text_at(source, name)] = source, body
        return TRUE


def undecided_reason(written: str, truth: Truth) -> str:
    """Return the reason why variables set under this condition are not known, as text for a person."""
    why = f", which {truth.why}" if truth.why else ""
    return f"is set under a condition that is not known: {shortened(written)}{why}"

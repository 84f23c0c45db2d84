"""`&&` and `||`: what runs where each result is known, and with both results where one is not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tree_sitter import Node

from symconfig.existing.launch.bash.branches import opened
from symconfig.existing.launch.bash.conditions import Truth
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.log import Leave
from symconfig.existing.launch.bash.shell import Outcome, one_of
from symconfig.existing.launch.bash.source import Source

Link = tuple[bool, Node]  # a command, and the result of the one before it with which it is passed over


def run_list(shell: Interpreter, source: Source, node: Node) -> Truth:
    last, links = _links(node)
    provided = any(stop for stop, _ in links)  # what happens after a failure
    status = shell.execute(source, last)
    for index, (stop, right) in enumerate(links):
        if provided:
            status = status.left_open()
        if status.value is None:
            return _Ways(shell, source, last, status, provided).followed(links[index:])
        if status.value is not stop:
            check = source.place(last.start_byte, last.end_byte)
            status = shell.guarded(partial(shell.execute, source, right), check)
            last = right
    return status


def _links(node: Node) -> tuple[Node, list[Link]]:
    """Return the first command of a list, and the others in their order."""
    links: list[Link] = []
    while node.type == "list":
        links.append((any(child.type == "||" for child in node.children), node.children[-1]))
        node = node.children[0]
    return node, links[::-1]


class _Ways:
    """The rest of a list after a command whose result is not known. by: the outcome for each result of the last
    command that ran."""

    def __init__(self, shell: Interpreter, source: Source, node: Node, status: Truth, provided: bool) -> None:
        self._shell, self._source, self._provided = shell, source, provided
        self._why = self._reason(node, status)
        self._doubt = status
        self._place = source.place(node.start_byte, node.end_byte)
        self._by: dict[bool, Outcome] = {}
        self._left: Leave | None = None
        self._add(Outcome(shell.state), node, status)

    def followed(self, links: Sequence[Link]) -> Truth:
        """Return the list's result. The shell's state is what all ways to it have in common. Raises Leave where all
        leave.
        """
        for stop, node in links:
            before = self._by.pop(not stop, None)
            if before is not None:
                self._run(node, before)
        if not self._by:
            raise self._left or Leave("exit")
        value = next(iter(self._by)) if len(self._by) == 1 else None
        self._shell.goes_on(one_of(self._shell.budget, [*self._by.values()], self._why, self._place))
        return Truth(value, "" if value is not None else self._doubt.why, status=self._doubt.status)

    def _run(self, node: Node, before: Outcome) -> None:
        ended: list[Truth] = []
        after = self._shell.tried(lambda: ended.append(self._shell.execute(self._source, node)), before)
        if isinstance(after, Leave):
            self._left = self._left or after
        else:
            self._add(after, node, ended[0].left_open() if self._provided else ended[0])

    def _add(self, outcome: Outcome, node: Node, status: Truth) -> None:
        if status.value is not None:
            self._reach(status.value, outcome)
            return
        why = outcome.maybe or self._reason(node, status)
        # Programs are started to succeed: what stands behind one with && is what the script does.
        self._reach(True, Outcome(outcome.state, outcome.output, outcome.maybe if status.status else why))
        self._reach(False, Outcome(outcome.state, outcome.output, why))

    def _reach(self, value: bool, outcome: Outcome) -> None:
        there = self._by.get(value)
        if there is not None:
            outcome = one_of(self._shell.budget, [there, outcome], self._why, self._place)
        self._by[value] = outcome

    def _reason(self, node: Node, status: Truth) -> str:
        return opened(self._source.data[node.start_byte : node.end_byte].decode("utf-8", "replace"), status)

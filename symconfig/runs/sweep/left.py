"""Tasks that nobody has yet, by kin: a process that goes on with its model and cluster knows much of the next plan."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from symconfig.runs.sweep.task import Task

Kin = tuple[str, str]  # model and cluster, as a task has them


class Left:
    """Tasks in their order, kin by kin."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._of: dict[Kin, deque[Task]] = {}
        self._taken = Counter[Kin]()
        for task in tasks:
            self.add(task)

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, task: Task) -> None:
        """Add a task behind its kin."""
        self._of.setdefault(_kin(task), deque()).append(task)

    def take(self, last: Task | None = None) -> Task:
        """Take a task of the kin of the one who has done `last`; else of what fewest have begun, the first.

        There must be one.
        """
        kin = _kin(last) if last is not None else None
        if kin is None or kin not in self._of:
            kin = min(self._of, key=lambda one: self._taken[one])
            self._taken[kin] += 1
        task = self._of[kin].popleft()
        if not self._of[kin]:
            del self._of[kin]
        return task


def _kin(task: Task) -> Kin:
    return task.model, task.cluster

"""Which task a process is given next."""

from __future__ import annotations

from symconfig.runs.sweep.engines.local import Left
from symconfig.runs.sweep.task import Task


def task(number: int, model: str) -> Task:
    return Task(str(number), "{}", model, "h100")


def test_a_process_keeps_to_its_model_and_another_one_begins_another() -> None:
    left = Left([task(number, model) for number, model in enumerate("aabbab")])
    first, second = left.take(), left.take()
    assert (first.id, second.id) == ("0", "2")
    assert [left.take(first).id for _ in range(2)] == ["1", "4"]
    assert left.take(first).id == "3"  # nothing of its own is left
    assert left.take(second).id == "5"
    assert not left


def test_a_task_that_comes_back_is_the_last_of_its_kin() -> None:
    left = Left([task(0, "a"), task(1, "a")])
    first = left.take()
    left.add(first)
    assert [left.take().id, left.take().id] == ["1", "0"]

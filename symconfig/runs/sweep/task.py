"""One plan as work for any process: plain text goes in, a row comes out, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, SymconfigError
from symconfig.runs.best import best_plan
from symconfig.runs.sweep.columns import Value, planned
from symconfig.runs.sweep.job import Point
from symconfig.runs.sweep.planner import planner
from symconfig.solve.answer import TOP


class Status(StrEnum):
    """PLANNED, INFEASIBLE and REFUSED are answers, which never change; DEFECT and LOST are worth another try."""

    PLANNED = "planned"
    INFEASIBLE = "infeasible"
    REFUSED = "refused"
    DEFECT = "defect"
    LOST = "lost"

    @property
    def answered(self) -> bool:
        return self not in (Status.DEFECT, Status.LOST)


@dataclass(frozen=True, slots=True)
class Task:
    """A point with its job and descriptors as JSON: no file is needed where it is done."""

    id: str
    job: str
    model: str
    cluster: str

    @staticmethod
    def of(point: Point) -> Task:
        return Task(point.id, json.dumps(dict(point.job)), _json(point.model), _json(point.cluster))


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a task. values: the columns taken from the plan; planner: the planner's version."""

    id: str
    status: Status
    planner: str
    reason: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": str(self.status),
            "planner": self.planner,
            "reason": self.reason,
            "values": dict(self.values),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Row:
        """Return the row of plain data. Raises KeyError, TypeError or ValueError for anything else."""
        texts = [data["id"], data["planner"], data["reason"]]
        if not all(isinstance(text, str) for text in texts) or not isinstance(data["values"], dict):
            raise TypeError("is not a row")
        return Row(data["id"], Status(data["status"]), data["planner"], data["reason"], data["values"])


def done(task: Task) -> Row:
    """Return the row of a task. Never raises: an unexpected exception is recorded as DEFECT."""
    try:
        plan = best_plan(_model(task.model), _cluster(task.cluster), Job.model_validate_json(task.job), top=TOP)
        return Row(task.id, Status.PLANNED, planner(), "", planned(plan))
    except InfeasibleError as error:
        return Row(task.id, Status.INFEASIBLE, planner(), _text(error))
    except SymconfigError as error:
        return Row(task.id, Status.REFUSED, planner(), _text(error))
    except Exception as error:
        return Row(task.id, Status.DEFECT, planner(), f"{type(error).__name__}: {error}")


def _text(error: SymconfigError) -> str:
    return " ".join(map(str, error.problems))


def _json(described: ModelDescriptor | ClusterDescriptor) -> str:
    return described.model_dump_json(by_alias=True, exclude_unset=True)


# Kept between tasks: what is derived of a model is found again only for an equal one, and comparing one with itself is
# quick.
@lru_cache(maxsize=64)
def _model(text: str) -> ModelDescriptor:
    return ModelDescriptor.model_validate_json(text)


@lru_cache(maxsize=64)
def _cluster(text: str) -> ClusterDescriptor:
    return ClusterDescriptor.model_validate_json(text)

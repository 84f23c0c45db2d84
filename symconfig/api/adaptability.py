"""What a strategy is worth when a job changes, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symconfig.api.planning import read_job
from symconfig.descriptor.document import Document
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.runs.adaptability import Case, Setting
from symconfig.runs.adaptability import adaptability as weigh


def adaptability(
    job: Mapping[str, Any] | Document,
    changes: Sequence[Mapping[str, Any]],
    *,
    model: ModelDescriptor | None = None,
    problems: Sequence[Problem] = (),
    progress: Callable[[str, float], None] | None = None,
) -> tuple[Case, ...]:
    """Plan a job, keep that plan through each change, and plan each changed job anew.

    job: fields of JOB.yaml. changes: by the names of its fields, `model`, `cluster`, `experts`, or fields of the model.
    Raises InputError with everything that is wrong, InfeasibleError where nothing fits before the changes.
    """
    document = job if isinstance(job, Document) else Document(dict(job), file="")
    if not changes:
        raise InputError([*problems, Problem("says no change", field="changes", hint="global_batch_size=32")])
    whole_job = read_job(document, model, problems=problems)
    written = [{name: str(value) for name, value in change.items()} for change in changes]
    return weigh(Setting(whole_job.model, whole_job.cluster, whole_job.job), written, progress)

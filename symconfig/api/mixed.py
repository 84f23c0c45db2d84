"""The planner on two kinds of GPUs: `symconfig.plan_mixed(model=…, cluster="h100*16 + a100-80gb*16", …)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symconfig.api.files import Tell, put, warn_replaced
from symconfig.api.planning import check_top, job_fields, read_job
from symconfig.descriptor.cluster import MixedCluster
from symconfig.descriptor.document import Document
from symconfig.descriptor.load import mixed_of
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem, Problems, reworded
from symconfig.format import json_text
from symconfig.plans import TOP
from symconfig.plans.mixed import MixedCandidate, MixedPlan
from symconfig.runs.mixed import mixed_plan


@dataclass(frozen=True, slots=True)
class MixedResult:
    """A plan over two kinds of GPUs, with methods to write and convert it."""

    plan: MixedPlan

    @property
    def best(self) -> MixedCandidate:
        """Return the fastest candidate, with the layers on each kind of GPU."""
        return self.plan.best

    def write(self, out: str | Path, force: bool = False, tell: Tell = warn_replaced) -> list[Path]:
        """Write the files of both kinds of GPUs and what starts a node into `out`, all or none; return the paths. tell:
        called with the names of edited files replaced, if any. Raises InputError if `out` exists without `force`.
        """
        from symconfig.render.several import files
        from symconfig.report.grid import page_section
        from symconfig.report.table import mixed_blocks

        return put(
            lambda: files(self.plan, page_section("The plan", mixed_blocks(self.plan)[1:])), Path(out), force, tell
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract of `symconfig plan --json` on two kinds."""
        return self.plan.to_dict()

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json_text(self.to_dict())


def plan_mixed(
    model: str | Path | ModelDescriptor,
    cluster: str | Path,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    *,
    top: int = TOP,
    progress: Callable[[str, float], None] | None = None,
    **fields: Any,
) -> MixedResult:
    """Return the fastest pipeline found over two kinds of GPUs, for Megatron-LM. cluster: `h100*16 + a100-80gb*16`, or
    a file that lists them; gpus is their sum if not given. fields: others of JOB.yaml. top: number of candidates.
    Raises InputError, also for one kind of GPUs, and InfeasibleError when nothing fits.
    """
    named = {"model": model, "cluster": cluster, "global_batch_size": global_batch_size, "seq_length": seq_length}
    document = Document(job_fields({**named, **fields}), file="")
    mixed = mixed_of(document)
    if mixed is None:
        need = "two kinds, as h100*16 + a100-80gb*16"
        raise InputError("has one kind of GPUs", field="cluster", got=str(cluster), need=need)
    return solve(document, mixed, model if isinstance(model, ModelDescriptor) else None, top=top, progress=progress)


def solve(
    document: Document,
    mixed: MixedCluster,
    model: ModelDescriptor | None = None,
    *,
    model_base: Path | None = None,
    top: int = TOP,
    writes: bool = False,
    problems: Sequence[Problem] = (),
    progress: Callable[[str, float], None] | None = None,
) -> MixedResult:
    """Return the plan of a document's job over both kinds of GPUs; `gpus` is their sum unless the document states it.
    model: None: loaded by the document's name, relative to model_base. writes: model fields that the framework has only
    after edits by hand count as not expressible. problems: the caller's, raised with those found here. Raises
    InputError with all problems and their lines, InfeasibleError when nothing fits.
    """
    collected = Problems(problems)
    collected.collect(lambda: check_top(top))
    whole = document.data if isinstance(document.data, dict) else {}
    document = Document({"gpus": mixed.gpus, **whole}, document.file, document.keys, document.values, document.unread)
    job = read_job(document, model, mixed.shares[0].cluster, model_base=model_base, problems=collected.all)
    with reworded(job.document.stated):
        return MixedResult(mixed_plan(job.model, mixed, job.job, top=top, writes=writes, progress=progress))

"""Existing configurations from Python: `symconfig.audit("launch.sh", cluster="h100")`, `symconfig.adapt(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.api.files import Wanted, page_files
from symconfig.api.planning import AnyCluster, AnyPlan, Problems, loaded_cluster
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import validate
from symconfig.errors import InputError, Problem
from symconfig.existing.audit.audit import Audit
from symconfig.existing.audit.audit import audit as judge
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import below
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.megatron.flags import resolve
from symconfig.plans.file import loaded

if TYPE_CHECKING:
    from symconfig.existing.adapt.draft import Adapted
    from symconfig.measured.comparison import Comparison


def audit(
    source: str | Path,
    cluster: AnyCluster | None = None,
    gpus: int | None = None,
    *,
    model: str | Path | ModelDescriptor | None = None,
    seq_length: int | None = None,
    vocab_size: int | None = None,
    prompt_length: float | None = None,
    response_length: float | None = None,
    megatron_version: str | None = None,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    root: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    plan: bool = True,
    problems: Sequence[Problem] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Return the audit of a launch script or config: what it runs, what is wrong, and a better plan.

    source: a file, or a line of arguments; nothing is executed. cluster: None: nothing is predicted. gpus: None: as its
    launcher states. model, seq_length, vocab_size: used if the script does not state them. prompt_length,
    response_length: mean tokens, for reinforcement learning, which is predicted only with a cluster. variables,
    arguments: the script's environment and command line. root: folder below which files named by the script are read;
    None: the script's own. plan: whether to search for a better plan. problems: the caller's, raised with those found
    here. Raises InputError with all problems of arguments and source.
    """
    gathered = Problems(problems)
    known = None if cluster is None else gathered.collect(lambda: loaded_cluster(cluster))
    described = (
        model
        if isinstance(model, ModelDescriptor) or model is None
        else gathered.collect(lambda: load_model(str(model)))
    )
    for name, number in {"gpus": gpus, "seq_length": seq_length, "vocab_size": vocab_size}.items():
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            gathered.add(Problem("wrong value", field=name, got=str(number), need="a whole number above 0"))
    for name, length in {"prompt_length": prompt_length, "response_length": response_length}.items():
        if length is not None and (not isinstance(length, int | float) or isinstance(length, bool) or length < 1):
            gathered.add(Problem("wrong value", field=name, got=str(length), need="a number of at least 1"))
    kept = (
        limits
        if isinstance(limits, Limits)
        else gathered.collect(lambda: validate(Document(dict(limits or {}), file=""), Limits))
    )
    version = None if megatron_version is None else gathered.collect(partial(resolve, megatron_version))
    given = dict(variables or {})

    def opened() -> Reading:
        with below(root):
            return read(str(source), variables=given, extra=tuple(arguments))

    reading = gathered.collect(opened)
    if gathered.all or reading is None or kept is None:
        raise InputError(gathered.all)
    assumption = Supplied(described, gpus, seq_length, vocab_size, version, prompt_length, response_length)
    done = judge(reading, assumption, known, kept, plan=plan, progress=progress)
    if known is not None and done.stated is not None:
        from symconfig.runs.rl.stated import completed

        done = completed(done, known, kept, plan=plan, progress=progress)
    return done


def compare(audit: Audit, log: str | Path) -> Comparison:
    """Return the log of a running job compared with what an audit of its configuration predicts. Raises InputError if
    the log cannot be read or is of another job, or if nothing is predicted.
    """
    from symconfig.measured.comparison import compare as compared
    from symconfig.measured.training_log import read_log

    batch = None if audit.judged is None else audit.judged.plan.best.configuration.global_batch
    return compared(audit, read_log(Path(log), batch))


def audit_page(audit: Audit, source: str) -> str:
    """Return the HTML page of an audit, with the files of the better plan if there is one."""
    from symconfig.report import page

    return page.audit_page(audit, source, {} if audit.better is None else page_files(audit.better, Wanted()))


def adapt(
    source: str | Path,
    plan: AnyPlan,
    *,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    root: str | Path | None = None,
) -> Adapted:
    """Return a user's files with a plan's values: `files` has their new bytes, `diff` the changes, `done` whether the
    whole plan is in them and an audit finds no error. Nothing is written. plan: a plan, its file or folder. variables,
    arguments: the script's environment and command line. root: folder below which files are read; None: the script's
    own. Raises InputError if the plan is for another model or the source cannot be read.
    """
    from symconfig.existing.adapt.files import adapted

    with below(root):
        return adapted(str(source), loaded(plan), dict(variables or {}), tuple(arguments))

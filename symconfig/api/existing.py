"""Existing configurations from Python: `symconfig.audit("launch.sh", cluster="h100")`, `symconfig.adapt(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.api.arguments import typed
from symconfig.api.clusters import AnyCluster
from symconfig.api.clusters import loaded as cluster_of
from symconfig.api.planning import AnyPlan, Problems
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.validate import validate
from symconfig.errors import InputError, Problem
from symconfig.existing.audit.audit import Audit
from symconfig.existing.audit.audit import audit as judge
from symconfig.existing.launch.files import below
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.megatron.flags import resolve
from symconfig.plans.file import loaded

if TYPE_CHECKING:
    from symconfig.runs.adapting.adaptation import Adaptation


@typed
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
    assume_harmless: Sequence[str] = (),
    root: str | Path | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    plan: bool = True,
    problems: Sequence[Problem] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Audit an existing launch script or config: its effect, its mistakes, and what would be better.

    source: a file, or a line of arguments; nothing of it is executed. cluster: None: nothing is predicted. gpus: None:
    as its launcher says. model, seq_length, vocab_size: where it does not say. prompt_length, response_length: tokens
    in the mean, of reinforcement learning. variables, arguments: what the script takes from its environment and its
    command line. assume_harmless: files that cannot be read and change nothing that the script says itself, or "all".
    root: the folder below which files are read that the script names; None: its own. plan: look for a better one.
    problems: what the caller has found.
    Raises InputError (all problems at once) on bad input.
    """
    gathered = Problems(problems)
    known = None if cluster is None else gathered.collect(lambda: cluster_of(cluster))
    described = (
        model
        if isinstance(model, ModelDescriptor) or model is None
        else gathered.collect(lambda: load_model(str(model)))
    )
    lengths = {"prompt_length": prompt_length, "response_length": response_length}
    for name, value in {"gpus": gpus, "seq_length": seq_length, "vocab_size": vocab_size, **lengths}.items():
        if value is not None and value < 1:
            gathered.add(Problem("wrong value", field=name, got=str(value), need="a whole number above 0"))
    kept = (
        limits
        if isinstance(limits, Limits)
        else gathered.collect(lambda: validate(Document(dict(limits or {}), file=""), Limits))
    )
    version = None if megatron_version is None else gathered.collect(partial(resolve, megatron_version))
    given = dict(variables or {})

    def opened() -> Reading:
        with below(root):
            return read(str(source), variables=given, extra=tuple(arguments), harmless=tuple(assume_harmless))

    reading = gathered.collect(opened)
    if gathered.all or reading is None or kept is None:
        raise InputError(gathered.all)
    assumption = Supplied(described, gpus, seq_length, vocab_size, version, prompt_length, response_length)
    done = judge(reading, assumption, known, kept, plan=plan, progress=progress)
    if known is not None and done.stated is not None:
        from symconfig.runs.rl.stated import completed

        done = completed(done, known, kept, plan=plan, progress=progress)
    if assume_harmless and done.runs and done.unset:  # what the files would have said is asked for
        raise InputError(done.unset)
    return done


@typed
def adapt(
    source: str | Path,
    plan: AnyPlan,
    *,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    assume_harmless: Sequence[str] = (),
    root: str | Path | None = None,
) -> Adaptation:
    """Put a plan's values into a person's own files: `files` has their new bytes, `diff` the changes.

    plan: a plan, its file, or the folder that holds it. variables, arguments, assume_harmless, root: as for `audit`.
    Nothing is written: `done` says whether all of the plan is in them and an audit finds no error.
    Raises InputError where the plan is for another model, or where the source cannot be read.
    """
    from symconfig.runs.adapting.adaptation import adaptation

    given, extra, harmless = dict(variables or {}), tuple(arguments), tuple(assume_harmless)
    with below(root):
        return adaptation(str(source), loaded(plan), given, extra, harmless=harmless)

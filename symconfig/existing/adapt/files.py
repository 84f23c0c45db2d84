"""A configuration from its files, adapted to a plan in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from symconfig.errors import InputError
from symconfig.existing.adapt import deepspeed, megatron
from symconfig.existing.adapt.draft import Adapted, Draft, Flaw, Progress, with_notes
from symconfig.existing.adapt.launcher import without_export
from symconfig.existing.audit.audit import audit
from symconfig.existing.audit.configuration import MegatronConfiguration, RlConfiguration, configuration_of
from symconfig.existing.launch.read import ARGUMENTS, read
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import Text, instead
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules.rule import Finding
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.render import targets
from symconfig.resources import Staged, cannot_be_written


def adapted(source: str, plan: Plan, variables: Mapping[str, str], extra: Sequence[str] = ()) -> Adapted:
    """Return what adapting a configuration to a plan changes, with the files' new bytes; nothing is written to disk.

    source: a path, or a line of arguments. variables: the script's environment. extra: the script's own arguments. The
    result is audited: its errors are `flaws`; a new warning is noted, or the exported variable that it is about taken
    out again. Raises InputError if it cannot be read or adapted.
    """
    draft = opened(source, variables, extra)
    reading = draft.reading
    progress: Progress = with_notes(_side(plan, reading).adapt(draft, plan))
    old, new = _findings(reading, plan, reading.world.gpus), _findings(progress.draft.reading, plan)
    for key, finding in new.items():
        if finding.severity == "warning" and key not in old:
            removed = without_export(progress, finding.problem.field or "")
            note = f"warning: {finding.problem} [{finding.rule}] The plan's values bring it."
            progress = progress.with_note(note) if removed is None else removed
    flaws = (Flaw(each.rule, each.problem, key in old) for key, each in new.items() if each.severity == "error")
    return Adapted(reading, progress.draft.files, progress.changes, progress.unplaced, progress.notes, tuple(flaws))


def _findings(reading: Reading, plan: Plan, gpus: int | None = None) -> dict[tuple[str, str, str | None], Finding]:
    """Return the findings of an audit by (severity, rule, field), as lines move under an edit; the first of each.

    The release is taken as not given by the user, so that options that it lacks may be a fork's. gpus: None: the
    plan's.
    """
    options = BACKENDS[plan.best.target.backend].told_by is Medium.OPTIONS
    stated = Supplied(
        model=plan.model,
        gpus=gpus or plan.best.configuration.world_size,
        seq_length=plan.best.configuration.seq_length,
        vocab_size=plan.model.vocab_size,
        megatron_version=render.version(plan) if options else None,
    )
    configuration = configuration_of(reading, stated)
    if isinstance(configuration, MegatronConfiguration):
        configuration.version_given = False
    found: dict[tuple[str, str, str | None], Finding] = {}
    for each in audit(configuration, stated, plan.cluster, plan.job.limits, plan=False).findings:
        found.setdefault((each.severity, each.rule, each.problem.field), each)
    return found


def opened(source: str, variables: Mapping[str, str], extra: Sequence[str] = ()) -> Draft:
    """Return a draft without edits, whose `read` reads the files again with other contents. Raises InputError."""

    def taken(source: str) -> Reading:
        return read(source, variables=variables, extra=extra)

    reading = taken(source)
    first = reading.texts[0]

    def reread(files: Mapping[str, bytes]) -> Reading:
        if first.file == ARGUMENTS:  # a line, which is in no file
            return taken(files.get(first.file, first.data).decode())
        with instead(files):
            return taken(source)

    return Draft(reread, reading, {})


def _side(plan: Plan, reading: Reading) -> ModuleType:
    """Return the module that adapts to the plan's framework: `deepspeed` if plans for it are JSON, else `megatron`.

    Raises InputError for a script of an RL or fine-tuning trainer or with several runs, for a plan with RL or
    preferences or whose framework is configured in code, and for a recipe, overrides or a DeepSpeed JSON that a plan
    for Megatron-LM cannot go into.
    """
    configuration = configuration_of(reading, Supplied(model=plan.model))
    if isinstance(configuration, RlConfiguration):
        name = configuration.reader.trainer.name
        what = f"starts a program of {name}, and only scripts of Megatron-LM and DeepSpeed are adapted"
        hint = f"symconfig plan JOB.yaml --target {name} --out DIR, which writes new files"
        if name not in targets():
            hint = "the degrees of the plan, by hand"
        raise InputError(what, file=reading.file, hint=hint)
    told_by = BACKENDS[plan.best.target.backend].told_by
    if plan.job.rl is not None or plan.job.preference is not None or told_by is Medium.CODE:
        what = "the plan is for a trainer, and only scripts of Megatron-LM and DeepSpeed are adapted"
        raise InputError(what, file=reading.file, hint="symconfig render PLAN.json --out DIR, which writes new files")
    if reading.runs:
        places = ", ".join(str(run.start) for run in (reading, *reading.runs))
        what = "starts its program several times, and a plan is for one run"
        raise InputError(what, file=reading.file, got=places, hint="a script for each run")
    if told_by is Medium.JSON:
        return deepspeed
    if reading.recipe is not None or reading.format == "overrides":
        what = "is of Megatron-Bridge or NeMo, and only options of Megatron-LM's own are adapted"
        hint = "symconfig render PLAN.json --out DIR, which writes new files"
        raise InputError(what, file=reading.file, hint=hint)
    if reading.deepspeed is None and not reading.json_alone:
        return megatron
    file = reading.deepspeed.text.file if reading.deepspeed is not None else reading.file
    what = "the plan is for Megatron-LM, and this is a configuration of DeepSpeed, which decides ZeRO and the batch too"
    raise InputError(what, file=file, hint="a plan with --backend deepspeed")


def write(files: Mapping[str, bytes], texts: Mapping[str, Text], root: Path) -> None:
    """Replace each file by its new bytes, by renames, once all new files are written.

    texts: the files as they were read. Raises InputError, with no file replaced, if a file has changed since, a link
    leads out of `root`, the configuration's folder, or a file is read-only.
    """
    with Staged() as staged:
        for name, data in files.items():
            with cannot_be_written(Path(name)):
                target = _target(Path(name), texts[name].data, root)
                staged.add(staged.folder(target.parent), target.name, data, like=target.stat())
        with cannot_be_written(root):
            staged.publish()


def _target(path: Path, before: bytes, root: Path) -> Path:
    """Return the file to replace, links resolved. Raises InputError if a link leads out of `root`, or the file is not
    `before` any more or read-only; OSError if it cannot be read.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"is a link that leads out of {root}, and is not followed to write",
            file=str(path),
            got=str(path.resolve()),
            hint="adapt the file that it points to",
        )
    target = path.resolve(strict=True)
    if target.read_bytes() != before:
        raise InputError("has changed since it was read", file=str(path), hint="the same command again")
    if not os.access(target, os.W_OK):
        raise InputError("is read-only", file=str(path))
    return target

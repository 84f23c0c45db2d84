"""Holds a folder of rendered files against the real frameworks: every check of every module that applies."""

from __future__ import annotations

import importlib
import importlib.util
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from symconfig import install
from symconfig.descriptor.job import Backend
from symconfig.errors import InputError, Problem, SymconfigError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.megatron.flags import resolve
from symconfig.plans.file import MAX_BYTES, load_plan
from symconfig.plans.plan import Plan, Target
from symconfig.render import manifest, named, own_target, render
from symconfig.resources import content

Status = Literal["passed", "failed", "skipped"]
_PROGRAMS = (".sh", ".py")
RUN_EDITED = "read it, then verify with --run-edited"
# The file that tells for which framework a folder was written.
_FILES: dict[Backend, str] = {"megatron": "megatron_args.txt", "deepspeed": "ds_config.json"}
_ABSENT = re.compile(r"No module named '(\w+)")
TIMEOUT_S = 120.0  # of one framework's run; a parser run takes 3 to 6 s


@dataclass(frozen=True, slots=True)
class Compared:
    """One number of symconfig's beside the framework's own."""

    what: str
    ours: float
    real: float
    unit: Literal["count", "bytes"]

    @property
    def difference(self) -> float:
        """Return ours / real - 1; if real is 0, 0 for equal numbers and 1 otherwise."""
        return self.ours / self.real - 1 if self.real else float(self.ours != self.real)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `detail`: what was held against what, or what is wrong, or how to make it possible."""

    name: str
    status: Status
    detail: str
    seconds: float
    compared: tuple[Compared, ...] = ()

    def __str__(self) -> str:
        return f"{self.status:7} {self.name}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Options:
    """The wishes of the person. `megatron`: a Megatron-LM checkout; `progress` hears what is being run.

    `build`: the framework's own code shall also build ranks of the plan. `trace`: and run their modules, to see what
    they keep for the backward. `programs`: a folder with the files whose programs may be run (None: those that are
    checked). `refused`: why none may be.
    """

    megatron: Path | None = None
    timeout_s: float = TIMEOUT_S
    progress: Callable[[str], None] = lambda text: None
    build: bool = False
    trace: bool = False
    programs: Path | None = None
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why no program of a folder is run. status: what the checks that would run one get."""

    status: Status
    why: str


class Stopwatch:
    """A maker of checks with the seconds since it was made, or since its last check."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def check(self, name: str, status: Status, text: str) -> Check:
        now = time.perf_counter()
        seconds, self._start = now - self._start, now
        return Check(name, status, text, seconds)

    def problems(self, name: str, problems: Iterable[Problem], passed: str) -> Check:
        """Return a check that failed with all problems as sentences, or passed with the text `passed`."""
        sentences = [str(problem) for problem in problems]
        return self.check(name, "failed" if sentences else "passed", " ".join(sentences) or passed)


def frameworks() -> dict[str, Any]:
    """Return the checking modules by name; each has `applies(plan)` and `checks(folder, plan, options)`."""
    return {name: importlib.import_module(f"{__package__}.{name}") for name in ("deepspeed", "megatron", "shell")}


def verify(
    folder: Path,
    megatron: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[str], None] = lambda text: None,
    build: bool = False,
    trace: bool = False,
    run_edited: bool = False,
) -> list[Check]:
    """Run every check that applies to a folder of rendered files, and return the results.

    Programs are run from a temporary copy of what symconfig renders from the folder's plan, and only if the folder's
    are the same; with `run_edited`, from the folder itself. megatron: a Megatron-LM folder; None: the one found.
    timeout_s: of each program or rank. build: also build ranks; trace: also trace them (Megatron-LM only; implies
    build). Raises InputError if the folder has no plan, `megatron` is no Megatron-LM, or `build` or `trace` cannot be
    done for it; other errors become failed checks.
    """
    if not folder.is_dir():
        raise InputError("is not a folder", file=str(folder), need="the folder that plan --out wrote")
    written = load_plan(folder)
    plan = as_rendered(written, folder)
    known = manifest.read_manifest(folder)
    options = Options(megatron, timeout_s, progress, build or trace, trace)
    other = None if known is None or known.target in _FILES else known.target
    if any((folder / name).exists() for name in _FILES.values()):
        other = None
    if (trace and plan.best.target.backend != "megatron") or (other and (build or trace)):
        own = "megatron" if trace else own_target(plan)
        helps = plan.task in named(own).tasks if trace else own in _FILES
        only = "Megatron-LM's and DeepSpeed's own files"
        raise InputError(
            "runs the modules of Megatron-LM only" if trace else f"builds ranks of {only} only",
            file=str(folder),
            field="--trace" if trace else "--build",
            got=f"files for {other or plan.best.target.backend}",
            hint=f"symconfig render DIR/plan.json --target {own} --out NEW" if helps else None,
        )
    with TemporaryDirectory(prefix="symconfig-") as scratch:
        if not run_edited:
            refused = _copied(folder, written, known, plan.best.target.backend, Path(scratch))
            if refused is not None and options.build:
                raise InputError(
                    "runs programs of the folder", field="--trace" if trace else "--build", hint=refused.why
                )
            options = replace(options, programs=Path(scratch), refused=refused)
        return list(_checked(folder, plan, options, other))


def _copied(
    folder: Path, plan: Plan, known: manifest.Manifest | None, backend: Backend, scratch: Path
) -> Refused | None:
    """Copy the folder's files that symconfig renders into `scratch`, and return why no program may be run, or None.
    skipped: own templates, a plan that cannot be rendered, or a script of an earlier symconfig (equal to the manifest's
    digest); failed: a script that was edited. Files missing in the folder are left out; files other than scripts are
    copied as they are.
    """
    if known is not None and known.templates is not None:
        return Refused("skipped", f"the files were written with templates of your own, and are not run: {RUN_EDITED}")
    try:
        files = render(plan, known.target if known else backend, known.launchers if known else None)
    except SymconfigError as error:
        why = f"what symconfig writes from plan.json is not known ({error}), so nothing of it is run: {RUN_EDITED}"
        return Refused("skipped", why)
    for item in files:
        path = folder / item.path
        if not path.is_file():
            continue
        data = content(path, MAX_BYTES)
        if item.path.endswith(_PROGRAMS) and data != item.text.encode():
            stale = known is not None and sha256(data).hexdigest() == known.files.get(item.path)
            what = "was written by another symconfig" if stale else "is not what symconfig wrote"
            return Refused("skipped" if stale else "failed", f"{item.path} {what}, and is not run: {RUN_EDITED}")
        target = scratch / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return None


def _checked(folder: Path, plan: Plan, options: Options, other: str | None) -> list[Check]:
    """Return the checks of deepspeed, megatron and shell, as far as the module applies to the plan. If the files are of
    another format (`other`), the framework's are one skipped check, and only the scripts are checked.
    """
    checks = []
    for name, module in frameworks().items():
        if other and name in _FILES and module.applies(plan):
            checks.append(
                Check(
                    f"{name}'s own checks",
                    "skipped",
                    f"these are files for {other}, which its real parser reads in python -m tools verify formats",
                    0.0,
                )
            )
        elif module.applies(plan):
            checks.extend(_guarded(name, module, folder, plan, options))
    return checks


def as_rendered(plan: Plan, folder: Path) -> Plan:
    """Return the plan with `best.target` (framework and release) of the files in the folder, which `render --target`
    may have changed.

    Unchanged if the file of the plan's own framework, or neither framework's, is there, or the plan is for FSDP. The
    new release is the job's Megatron version, or the known DeepSpeed release.
    """
    if (folder / _FILES.get(plan.best.target.backend, "")).exists():
        return plan
    for backend, name in _FILES.items():
        if (folder / name).exists():
            version = resolve(plan.job.megatron_version) if backend == "megatron" else DEEPSPEED_RELEASE
            return replace(plan, best=replace(plan.best, target=Target(backend, version)))
    return plan


def _guarded(name: str, module: Any, folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
    """Yield one module's checks; another SymconfigError or exception ends them with a failed check, so that other
    modules still run. Raises InputError only.
    """
    watch = Stopwatch()
    try:
        yield from map(_skipped, module.checks(folder, plan, options))
    except InputError:
        raise
    except SymconfigError as error:
        yield watch.check(name, "failed", " ".join(map(str, error.problems)))
    except Exception as error:
        yield _skipped(watch.check(name, "failed", f"the check itself broke: {type(error).__name__}: {error}"))


def _skipped(check: Check) -> Check:
    """Return a check that failed for a missing package as skipped, with how to install it; others unchanged."""
    absent = _ABSENT.search(check.detail) if check.status == "failed" else None
    if absent is None or importlib.util.find_spec(absent[1]) is not None:
        return check
    return replace(check, status="skipped", detail=f"{absent[1]} is not installed: {install.EXTRA}")


def passed(checks: Iterable[Check]) -> bool:
    """Return whether no check failed; skipped ones do not count."""
    return all(check.status != "failed" for check in checks)

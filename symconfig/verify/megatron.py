"""Rendered Megatron-LM arguments against the flag table, symconfig's own rules, and Megatron itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symconfig import install
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules import megatron as megatron_rules
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan
from symconfig.verify import (
    megatron_agreement,
    megatron_rank,
    megatron_sameness,
    megatron_session,
    megatron_source,
)
from symconfig.verify.checks import Check, Options, Refused, Stopwatch
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.megatron_source import MegatronSource
from symconfig.verify.shell import ARGUMENTS as FILE
from symconfig.verify.shell import arguments, dry_run

# The parts of a run of Megatron's own code, as checks: title -> its phases.
PARTS: Mapping[str, tuple[str, ...]] = {
    "parse_args and validate_args": ("parse_args", "validate_args", "tokenizer"),
    "process groups": ("groups",),
    "config classes": ("transformer_config", "ddp_config", "optimizer_config"),
}

# What Megatron's parser lets pass in at least one release, and what then fails in the first step, loses layers in
# silence, or trains another model. A rendered list repeats no option and says the batch; what the parser refuses is in
# the flag table's own check, the environment is the launcher's.
_STRICT = ("repeated-option", "batch-not-said")
_APART = (*megatron_rules.BY_FILE["megatron_options"], *megatron_rules.BY_FILE["environment"])
RULES = tuple(
    rule for rule in megatron_rules.RULES if rule.name in _STRICT or (rule.severity == "error" and rule not in _APART)
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """One plan's arguments, and what its launcher exports."""

    plan: Plan
    args: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


def applies(plan: Plan) -> bool:
    return plan.best.target.backend == "megatron"


def checks(folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
    """Yield all checks of a folder with Megatron-LM files: without Megatron, and with it if possible.

    Megatron's are one skipped or failed check if programs may not run, launch.sh's dry run fails, or Megatron is not
    usable (`unfit`). Raises InputError if the folder of `--megatron` is no Megatron-LM, or Megatron is not usable and
    `build` or `trace` was requested.
    """
    source = megatron_source.find(options.megatron)
    refused, exported = options.refused, dict[str, str]()
    if refused is None:
        launcher = dry_run(options.programs or folder, "launch.sh", options.timeout_s)
        exported = dict(launcher.exported)
        if launcher.status:
            script = folder / "launch.sh"
            why = f"cannot be asked: {script} ends with status {launcher.status}, so that its exports are not known"
            refused = Refused("failed", why)
    rendered = Rendered(plan, arguments(folder), exported)
    if refused is not None:
        yield from offline(rendered)
        yield Check("Megatron's own checks", refused.status, refused.why, 0.0)
        return
    if options.build and (reason := unfit(source, plan)) is not None:
        tasks = ", ".join(f"--{task}" for task in ("build", "trace") if getattr(options, task))
        raise InputError(f"cannot be done: {reason}", file=str(folder), field=tasks)
    options.progress(f"Megatron on {plan.best.configuration.world_size} claimed GPUs")
    done = check_many({"": rendered}, source, options.timeout_s, options.build, options.trace, options.progress)
    yield from done[""]


def offline(rendered: Rendered) -> Iterator[Check]:
    """Yield two checks that need no Megatron: options against its release's table, and symconfig's rules on them."""
    watch = Stopwatch()
    table = flags.flags(rendered.plan.best.target.version)
    yield watch.problems(
        f"options of Megatron-LM {table.version}",
        table.check(rendered.args),
        f"all {sum(word.startswith('--') for word in rendered.args)} options are known, with values "
        "that its parser takes",
    )
    yield watch.problems(
        "what Megatron's parser lets pass",
        broken_rules(rendered.args, table, rendered.plan.best.configuration.world_size),
        f"{len(RULES)} rules hold",
    )


def broken_rules(words: Sequence[str], table: flags.FlagTable, world_size: int) -> list[Problem]:
    """Return a problem for every one of RULES that the arguments break on `world_size` GPUs."""
    facts = MegatronFacts(Namespace(settings(words, FILE), table), world_size=world_size)
    return [replace(finding.problem, file=FILE) for finding in megatron_rules.findings(facts, RULES)]


def unfit(source: MegatronSource | None, plan: Plan) -> str | None:
    """Return why `source` cannot check this plan, or None if it can. Reasons: PyTorch or Megatron is missing, or the
    release differs from the plan's, unless the user chose the source.
    """
    if importlib.util.find_spec("torch") is None:
        return f"PyTorch is not installed: {install.EXTRA}"
    if source is None:
        return f"Megatron's argument parser is not here: {megatron_source.COMMAND}, or give --megatron PATH"
    if not source.chosen and not _release_fits(source, plan):
        return (
            f"the plan is for {_wanted(plan)}, and {source.origin} is {source.version}: give --megatron PATH with "
            f"a checkout of {_wanted(plan)}"
        )
    return None


def _wanted(plan: Plan) -> str:
    return flags.resolve(plan.best.target.version)


def _release_fits(source: MegatronSource, plan: Plan) -> bool:
    """Return whether the source is of the plan's release; main fits only if the user chose the source."""
    wanted = _wanted(plan)
    if wanted == "main":
        return source.chosen
    return wanted.startswith("core_v{}.{}.".format(*source.release))


def session_jobs(
    id: str, item: Rendered, source: MegatronSource, build: bool = False, trace: bool = False
) -> list[Job]:
    """Return the job of an argument list, then with `build` and `trace` those that build and trace the plan's ranks
    (ids: the list's with "rank N", "trace N"), if they can be built (`unbuilt`) or traced.
    """
    own = megatron_session.job(id, item.plan, item.args, item.env, source)
    built = megatron_rank.build_jobs(own, item.plan) if build and megatron_rank.unbuilt(item.plan) is None else []
    return [own, *built, *(megatron_rank.trace_jobs(own, item.plan) if trace else ())]


def judge(
    rendered: Rendered,
    results: Mapping[str, Result],
    jobs: Sequence[Job],
    source: MegatronSource,
    build: bool = False,
    trace: bool = False,
) -> Iterator[Check]:
    """Yield the checks of one argument list, with `build` of its ranks that were built (one skipped check last for
    `unbuilt` ones), and with `trace` of those that were traced. jobs: as of `session_jobs`; if the first failed and
    there are others, these are one skipped check.
    """
    place, (first, *others) = _place(rendered.plan, source), jobs
    yield from online(rendered, results[first.id], source)
    if refused := bool(others) and not results[first.id].ok:
        yield Check(f"{place}: ranks as built", "skipped", "it refuses the arguments, as said above", 0.0)
    for job in others if not refused else ():
        if job.task == megatron_rank.BUILD:
            yield megatron_rank.check(rendered.plan, job, results[job.id], place, FILE)
    if trace and not refused:
        traced = [job for job in others if job.task == megatron_rank.TRACE]
        yield from megatron_rank.trace_checks(rendered.plan, traced, results, place, FILE)
    if build and (reason := megatron_rank.unbuilt(rendered.plan)) is not None:
        yield Check(f"{place}: ranks as built", "skipped", f"not tried {reason}", 0.0)


def _place(plan: Plan, source: MegatronSource) -> str:
    """Return the name of the checking Megatron, with a note if the plan is for another release."""
    return f"Megatron {source.version}" + ("" if _release_fits(source, plan) else f" (the plan is for {_wanted(plan)})")


def online(rendered: Rendered, result: Result, source: MegatronSource) -> Iterator[Check]:
    """Yield the checks of Megatron's run on the arguments by part, then of stages, plan and model as resolved. A crash,
    or the first phase that failed, is the last check; the comparisons follow only if all succeeded. Fields that the job
    lists as edited by hand are not compared.
    """
    plan = rendered.plan
    place = _place(plan, source)
    if result.crash is not None:
        yield Check(place, "failed", str(result.error), result.seconds)
        return
    world = f"{plan.best.configuration.world_size} GPUs"
    for title, names in PARTS.items():
        phases = [phase for phase in result.phases if phase.name in names]
        seconds = sum(phase.seconds for phase in phases)
        if any(not phase.ok for phase in phases):
            yield Check(f"{place}: {title}", "failed", f"{FILE}: {result.error}", seconds)
            return
        if len(phases) < len(names):  # an earlier step outside the parts stopped it
            break
        yield Check(f"{place}: {title}", "passed", f"{', '.join(names)} at {world}", seconds)
    if not result.ok:
        yield Check(place, "failed", f"{FILE}: {result.error}", result.seconds)
        return
    watch = Stopwatch()
    yield watch.problems(
        f"{place}: layers of every stage",
        megatron_agreement.stages(plan, result, FILE),
        f"{plan.model.num_hidden_layers} layers on {plan.best.configuration.pp} stages, as planned",
    )
    yield watch.problems(
        f"{place}: the same plan",
        megatron_agreement.compare(plan, result, FILE),
        "degrees, batch and switches resolve to the plan's",
    )
    yield watch.problems(
        f"{place}: the same model",
        megatron_sameness.compare(plan.model, result, FILE, plan.job.edited),
        f"{megatron_sameness.compared(plan.model, plan.job.edited)} comparisons of architectural fields"
        + (f"; edited by hand, so not looked at: {', '.join(plan.job.edited)}" if plan.job.edited else ""),
    )


def check_many(
    rendered: Mapping[str, Rendered],
    source: MegatronSource | None,
    timeout_s: float = 60.0,
    build: bool = False,
    trace: bool = False,
    heard: Callable[[str], None] = lambda text: None,
) -> dict[str, list[Check]]:
    """Return the checks of many argument lists by id, run in one subprocess with timeout_s for each job. Megatron's are
    one skipped check for lists that `unfit` refuses. heard: called with a sentence for each job that is done.
    """
    checks = {id: list(offline(item)) for id, item in rendered.items()}
    jobs: dict[str, list[Job]] = {}
    for id, item in rendered.items():
        if (reason := unfit(source, item.plan)) is not None:
            checks[id].append(Check("Megatron's own checks", "skipped", reason, 0.0))
        elif source is not None:
            jobs[id] = session_jobs(id, item, source, build, trace)
    if source is not None and jobs:
        every = [job for each in jobs.values() for job in each]
        results = megatron_session.run(source, every, timeout_s, lambda result: heard(f"Megatron: {result.id} is done"))
        for id, own in jobs.items():
            checks[id].extend(judge(rendered[id], results, own, source, build, trace))
    return checks

"""verl's overrides with a plan's degrees, engine and offload in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from symconfig.errors import InputError, Problem
from symconfig.existing.adapt import words
from symconfig.existing.adapt.draft import Draft
from symconfig.existing.adapt.outcome import Change, Flaw, Unplaced
from symconfig.existing.adapt.progress import Progress
from symconfig.existing.adapt.ways import behind_equals
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.rl.trainers import MEGATRON, VERL
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.rl.verl import REFERENCE, ROLLOUT, Reader
from symconfig.existing.recover.rl.verl_workers import ACTOR
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.plans.plan import Plan
from symconfig.render import verl
from symconfig.render.files import sh

_MEGATRON = f"{ACTOR}.megatron"
# Keys that a plan decides, beside all of the actor's Megatron workers; what it leaves out of these is off.
_DECIDED = (
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{REFERENCE}.megatron.param_offload",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.gpu_memory_utilization",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
)
_OFF = (
    f"{_MEGATRON}.virtual_pipeline_model_parallel_size",
    *(f"{_MEGATRON}.override_transformer_config.recompute_{name}" for name in ("granularity", "method", "num_layers")),
)
_NULL = "null"


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Make every change that can be made. Raises InputError where the plan is for other workers, or for no step."""
    _check(draft.reading, plan)
    progress = Progress(draft)
    for key, value in _wanted(plan).items():
        setting = _setting(progress.draft.reading, key)
        was = _text(setting) if setting is not None else Values(VERL, progress.draft.reading.settings).text(key)
        if (was or _NULL).lower() != value.lower():
            progress = _granted(progress, key, value, setting)
    return progress


def audited(progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
    """Return what an audit of the result calls errors."""
    before, after = (
        audit(reading, Supplied(model=plan.model), None, plan.job.limits, plan=False).findings
        for reading in (original, progress.draft.reading)
    )
    known = {finding.rule for finding in before}
    errors = (finding for finding in after if finding.severity == "error")
    return progress, tuple(Flaw(finding.rule, finding.problem, finding.rule in known) for finding in errors)


def original(reading: Reading, plan: Plan) -> Run:
    """Return the configuration in the planner's terms. Raises InputError."""
    gpus = reading.world.gpus or plan.best.parallel.world_size
    return Reader(reading, Supplied(model=plan.model), gpus, plan.cluster).run()


def _check(reading: Reading, plan: Plan) -> None:
    workers = Reader(reading, Supplied()).workers
    if plan.job.rl is None or not plan.rl:
        what, hint = (
            "starts reinforcement learning, and the plan is of no such step",
            "a plan of a job with a section rl",
        )
        raise InputError(Problem(what, reading.file, hint=hint))
    if not workers.options:
        what = "has workers of another kind than the plan's"
        hint = (
            "actor_rollout_ref.actor.strategy=megatron and --config-name ppo_megatron_trainer, or model_engine=megatron"
        )
        raise InputError(Problem(what, reading.file, got=workers.name, need=MEGATRON.name, hint=hint))


def _wanted(plan: Plan) -> Mapping[str, str]:
    """Return what the plan decides, by key."""
    rl = plan.job.rl
    assert rl is not None, "is checked"
    every = dict(word.split("=", 1) for word in verl.words(plan))
    mine = {key: value for key, value in every.items() if key in _DECIDED or key.startswith(f"{_MEGATRON}.")}
    return {**mine, **{key: _NULL for key in _OFF if key not in mine}}


def _setting(reading: Reading, key: str) -> Setting | None:
    return next((each for each in reversed(reading.settings) if each.name == key and each.values), None)


def _text(setting: Setting) -> str:
    """Write a value as the renderer does."""
    items = [word.text for word in setting.values]
    return items[0] if len(items) == 1 and not setting.name.endswith("_modules") else f"[{','.join(items)}]"


def _granted(progress: Progress, key: str, value: str, setting: Setting | None) -> Progress:
    """Return the progress with one override more, or with another value of it."""
    draft = progress.draft
    values = tuple(value.strip("[]").split(","))
    if setting is not None:
        goal = draft.meaning.setting(draft.reading.settings.index(setting), values)
        changed = words.changed(setting.values[0], value, draft.texts) if len(setting.values) == 1 else iter(())
        after = draft.tried(chain(changed, behind_equals(setting, sh(value), draft)), lambda now: now == goal)
        was = _text(setting)
    else:
        before = draft.meaning
        ways = chain.from_iterable(words.added(each, (f"{key}={value}",), draft.texts) for each in _anchors(draft, key))
        after, was = draft.tried(ways, lambda now: before.gained(key, values, now)), None
    if after is None:
        why = "its value is not a word of the script alone" if setting is not None else "no place for it was found"
        return progress.lacking(Unplaced(key, value, why, None if setting is None else setting.place))
    now = _setting(after.reading, key)
    assert now is not None, "is what was tried"
    return progress.went(after, Change(key, was, value, now.place))


def _anchors(draft: Draft, key: str) -> Iterator[Setting]:
    """Yield overrides beside which a new one belongs: those of its section, then of one above it."""
    section = key
    while "." in section:
        section = section.rpartition(".")[0]
        yield from [each for each in reversed(draft.reading.settings) if each.name.startswith(f"{section}.")][:2]

"""A DeepSpeed configuration with a plan's batch, ZeRO stage, offload and degrees in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from symconfig.descriptor.document import KeyPath, dotted
from symconfig.errors import InputError, Problem
from symconfig.existing.adapt import launcher, trainer
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.keys import KeyWish, at, keyed, where
from symconfig.existing.adapt.mending import because, mended
from symconfig.existing.adapt.outcome import Flaw, Unplaced
from symconfig.existing.adapt.runs import several, why_apart
from symconfig.existing.adapt.same import check_program
from symconfig.existing.launch.follow import ACCELERATE
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.rules.rule import Finding
from symconfig.frameworks.deepspeed.keys import AUTO
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed

_ROUNDS = 4  # what one key means may depend on another that was changed


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys that say one thing together. fields: of a Run. needed: those that must be there to say it."""

    fields: tuple[str, ...]
    paths: tuple[KeyPath, ...]
    needed: tuple[KeyPath, ...] = ()


_BF16, _FP16 = ("bf16", "enabled"), ("fp16", "enabled")
_MICRO, _STEPS, _BATCH = (("train_micro_batch_size_per_gpu",), ("gradient_accumulation_steps",), ("train_batch_size",))
_RECOMPUTE = _Keys(("options.recompute",), ())
_KEYS = (
    _Keys(("configuration.micro", "configuration.global_batch"), (_BATCH, _MICRO, _STEPS), (_MICRO, _BATCH)),
    _Keys(("options.precision",), (_BF16, _FP16)),
    _Keys(("options.zero_stage",), (("zero_optimization", "stage"),)),
    _Keys(("options.overlap.grad_reduce",), (("zero_optimization", "overlap_comm"),)),
    _Keys(("options.optimizer_offload",), (("zero_optimization", "offload_optimizer"),)),
    _Keys(("options.param_offload",), (("zero_optimization", "offload_param"),)),
    _Keys(("options.grad_bytes",), (("data_types", "grad_accum_dtype"),)),
    _Keys(("configuration.degrees.tp",), (("tensor_parallel", "autotp_size"),)),
    _Keys(("configuration.degrees.cp",), (("sequence_parallel_size",),)),
    _Keys(("configuration.degrees.ep",), (("expert_parallel",),)),
    _RECOMPUTE,
)


def adapt(draft: Draft, plan: Plan) -> Progress:
    """Make every change that can be made. Raises InputError where there is no JSON, or the model is another one."""
    reading = draft.reading
    if reading.deepspeed is None:
        raise InputError(_no_json(reading))
    check_program(reading, plan)
    if several(reading, trainer.NAMES):
        return Progress(draft).lacking(Unplaced("the plan, all of it,", "", why_apart(reading)))
    progress, config, before = Progress(draft), deepspeed.config(plan), None
    for wish in _unsaid(reading, config):
        progress = _granted(progress, wish)
    for _ in range(_ROUNDS):
        differing = _differing(progress.draft.reading, plan)
        if not differing or differing == before:
            break
        before = differing
        for keys in differing:
            progress = _recompute(progress, plan) if keys is _RECOMPUTE else progress
            for wish in _wishes(progress.draft.reading, config, keys):
                progress = _granted(progress, wish)
    return launcher.numbers(progress, plan)


def _no_json(reading: Reading) -> Problem:
    """Say what is missing: where Accelerate's file may have it, that this is not read."""
    for item in reading.unread:
        if ACCELERATE in item.why:
            return item.place.problem(
                f"names {ACCELERATE}, which is not read: what it says of DeepSpeed cannot be changed",
                field=item.what,
                hint="symconfig render PLAN.json --target accelerate --out DIR, which writes one with its values",
            )
    return Problem("the plan is for DeepSpeed, and no DeepSpeed configuration was found here", file=reading.file)


def audited(progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
    """Mend what an audit finds in the result; return what is left of it."""
    config = deepspeed.config(plan)
    apart = _differing(progress.draft.reading, plan)

    def repairs(now: Progress, finding: Finding) -> Iterator[Progress]:
        tree = now.draft.reading.deepspeed
        path = next((each for each in tree.spans if dotted(each) == finding.problem.field), ()) if tree else ()
        for value in (at(config, path), None) if path else ():
            after = _granted(now, KeyWish(path, value))
            if len(after.changes) > len(now.changes):
                yield replace(after, changes=(*after.changes[:-1], replace(after.changes[-1], why=because(finding))))

    return mended(progress, plan, original, repairs, lambda draft: set(_differing(draft.reading, plan)) <= set(apart))


def original(reading: Reading, plan: Plan) -> Run:
    """Return the configuration in the planner's terms. Raises InputError."""
    stated = _supplied(plan)
    return run(reading, plan.cluster, replace(stated, gpus=reading.world.gpus or stated.gpus))


def _unsaid(reading: Reading, config: dict[str, Any]) -> Iterator[KeyWish]:
    """Yield what of the batch is "auto" while the Trainer's argument for it is missing: without it nothing else can be
    compared."""
    tree = reading.deepspeed
    for path in (_MICRO, _STEPS) if tree is not None and trainer.used(reading) else ():
        if tree is not None and tree.get(*path) == AUTO and not _by_argument(reading, path):
            yield KeyWish(path, at(config, path))


def _supplied(plan: Plan) -> Supplied:
    return Supplied(model=plan.model, gpus=plan.best.parallel.world_size, seq_length=plan.best.batch.seq_length)


def _recompute(progress: Progress, plan: Plan) -> Progress:
    """Say that the training program decides recompute, not the JSON; of programs only the one of our own templates is
    known well.
    """
    recompute, reading = plan.best.options.recompute, progress.draft.reading
    full = recompute.granularity == "full"
    now = "0" if not full else str(recompute.num_layers) if recompute.method == "block" else "-1"
    if Arguments(reading.settings).given("recompute_layers"):
        return trainer.valued(progress, "recompute_layers", now)
    if recompute.method != "block" and trainer.used(reading):
        return trainer.recomputed(progress, full)
    words = {"0": "nothing", "-1": "every layer"}.get(now, f"the first {now} layers")
    if not reading.settings:
        return progress.noted(f"The plan recomputes {words}; the training program's own arguments say that.")
    why = "the training program says it in its own way"
    return progress.lacking(Unplaced("the recomputed layers", None if now == "0" else words, why))


def _differing(reading: Reading, plan: Plan) -> Sequence[_Keys]:
    """Return the keys that mean something else than the plan; all of them where the configuration means nothing as it
    is.
    """
    try:
        have = run(reading, plan.cluster, _supplied(plan))
    except InputError:
        return _KEYS[:-1]  # the last one has no keys to compare
    best = plan.best
    wanted = {
        "micro": best.batch.micro,
        "global_batch": best.batch.global_,
        "degrees.tp": best.parallel.tp,
        "degrees.cp": best.parallel.cp,
        "degrees.ep": best.parallel.ep,
    }

    def differs(field: str) -> bool:
        where, _, name = field.partition(".")
        want = wanted[name] if where == "configuration" else attrgetter(name)(best.options)
        return bool(attrgetter(field)(have) != want)

    return [each for each in _KEYS if any(map(differs, each.fields))]


def _wishes(reading: Reading, config: dict[str, Any], keys: _Keys) -> Iterator[KeyWish]:
    for path in keys.paths:
        have, want = reading.deepspeed.get(*path) if reading.deepspeed else None, at(config, path)
        derived = have is None and keys.needed and path not in keys.needed and not _by_argument(reading, path)
        if have != want and not derived and (want is not None or have):
            yield KeyWish(path, False if want is None and path[-1] == "enabled" else want)


def _by_argument(reading: Reading, path: KeyPath) -> bool:
    return trainer.name_of(reading, path) is not None


def _granted(progress: Progress, wish: KeyWish) -> Progress:
    tree = progress.draft.reading.deepspeed
    assert tree is not None, "adapt has looked"
    have = tree.get(*wish.path)
    if have == AUTO or (have is None and _by_argument(progress.draft.reading, wish.path)):
        return _argument(progress, wish)
    progress = keyed(progress, wish)
    if progress.draft.meaning.deepspeed == tree.data:
        return progress
    # The Trainer stops where its argument and the JSON say different numbers.
    name = trainer.name_of(progress.draft.reading, wish.path)
    return trainer.valued(progress, name, str(wish.value)) if name and wish.now is not None else progress


def _argument(progress: Progress, wish: KeyWish) -> Progress:
    """Set what is "auto" by the training program's own argument; what it derives from others needs no words."""
    reading = progress.draft.reading
    if wish.path not in trainer.ARGUMENTS or wish.now is None:
        return progress
    name = trainer.name_of(reading, wish.path)
    if name is not None:
        return trainer.valued(progress, name, str(wish.value))
    name = trainer.ARGUMENTS[wish.path][0]
    if wish.value is False:
        return progress  # as it is without the argument
    if trainer.used(reading):
        return trainer.given(progress, name, str(wish.value))
    why = f'it is "auto" here, and --{name}, which Transformers takes for it, is not given'
    place = where(reading.deepspeed, wish.path) if reading.deepspeed is not None else None
    return progress.lacking(Unplaced(wish.name, wish.now, why, place))

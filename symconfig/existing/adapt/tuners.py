"""What a plan decides of programs of TRL, LLaMA-Factory and ms-swift: their own options, and the files of DeepSpeed and
of Accelerate beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.task import PREFERRING
from symconfig.errors import InputError, Problem
from symconfig.existing.adapt.deepspeed import AUTO, BF16, FP16, KEYS, Keys, differing
from symconfig.existing.adapt.draft import Document, Progress
from symconfig.existing.adapt.families import FAMILIES
from symconfig.existing.adapt.keys import KeyWish, at, keyed, tree_of
from symconfig.existing.adapt.learned import Learned, Wanted
from symconfig.existing.adapt.options import Option, of, put
from symconfig.existing.adapt.outcome import Unplaced
from symconfig.existing.adapt.trainer import MARKS
from symconfig.existing.adapt.trainer import spoken as spelled
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.dialects.entry import spoken
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.arguments import plain
from symconfig.existing.recover.deepspeed import LLAMAFACTORY, RECOMPUTE, RECOMPUTE_OFF
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.tuner_stated import TunerStated
from symconfig.existing.recover.rl.tuners import READERS
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN
from symconfig.plans.plan import Plan
from symconfig.render import (
    accelerate,
    deepspeed,
    learning,
    llamafactory,
    ms_swift,
    ms_swift_deepspeed,
    trl,
)
from symconfig.render import ms_swift_options as options

_STAGE, _OPTIMIZER, _PARAM = (("zero_optimization", key) for key in ("stage", "offload_optimizer", "offload_param"))
_PRECISION = ("bf16", "fp16", "torch_dtype")


def _in_swift(dest: str) -> str | None:
    """Return what ms-swift calls one of Megatron-LM's options; None for what it has no argument for."""
    flag = f"--{dest.replace('_', '-')}"
    own = {*options.RENAMED.values(), *(name for words in options.SPELLED.values() for name in words)}
    return options.RENAMED.get(flag) or (dest if flag in options.SAME or dest in own else None)


# What a plan decides of ms-swift's options for Megatron-Core, in the order in which a new one is put beside another;
# those that a plan leaves out are to be off.
_MEGATRON = tuple(name for family in FAMILIES for dest in family.dests if (name := _in_swift(dest)) is not None)
_GENERATED = (
    "num_generations",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
    "vllm_mode",
    "vllm_tensor_parallel_size",
    "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode",
    "sleep_level",
    "offload_model",
    "offload_optimizer",
)
_TRAINED = ("per_device_train_batch_size", ACCUMULATION, *RECOMPUTE, RECOMPUTE_OFF)
_ORDER = (*_MEGATRON, *_TRAINED, *_GENERATED)


def _host(value: Any) -> str:
    """Name where a part is that DeepSpeed's JSON has a section for, as Accelerate's file does."""
    return value["device"] if isinstance(value, dict) else "none"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where Accelerate's file says what DeepSpeed's JSON says at the path `of`. spelled: a value of the JSON, as it has
    it. needed: a file without it is to get it."""

    of: KeyPath
    key: str
    spelled: Callable[[Any], Any] = lambda value: value
    needed: bool = True

    @property
    def path(self) -> KeyPath:
        return ("deepspeed_config", self.key)


# The rest of DeepSpeed's JSON Accelerate's file cannot say.
_OF_ACCELERATE = (
    _Place(_STAGE, "zero_stage"),
    _Place(_STAGE, "zero3_init_flag", lambda stage: stage == 3, needed=False),
    _Place(_OPTIMIZER, "offload_optimizer_device", _host),
    _Place(_PARAM, "offload_param_device", _host),
)
_MESH = "parallelism_config"  # its section of degrees
# Of Accelerate's file for shards of FSDP, by what of a plan it says.
_SHARDS = (
    Keys(("options.param_offload",), (("fsdp_config", "fsdp_offload_params"),)),
    Keys(
        ("options.instances",),
        tuple((_MESH, f"{_MESH}_{name}_size") for name in ("dp_replicate", "dp_shard")),
    ),
)
# Keys of the JSON that say how weights, gradients and states are kept, and what else of it no option says.
_KEPT = tuple(keys for keys in KEYS if {_STAGE, _OPTIMIZER, _PARAM} & {*keys.paths})
_IN_JSON = tuple(keys for keys in KEYS if keys.fields[0] in ("options.overlap.grad_reduce", "options.grad_bytes"))
# Files that come with a program, by the option that names one: the stage of each, and whether states are on the host.
_PRESETS: Mapping[str, Mapping[str, tuple[int, bool]]] = {
    "deepspeed": tuners.DEEPSPEED_PRESETS,
    "accelerate_config": {f"zero{stage}": (stage, False) for stage in (1, 2, 3)},
}
_COMPARES = {
    tuners.TRL: trl.COMPARES,
    tuners.LLAMAFACTORY: llamafactory.COMPARES,
    tuners.SWIFT: ms_swift_deepspeed.COMPARES,
}
_REPEATED = ((MICRO,), (ACCUMULATION,), (TRAIN,), BF16, FP16)  # what the JSON, or Accelerate's file, may say once more


def _of_megatron(plan: Plan, script: TunerStated) -> Wanted:
    """Return what ms-swift is told of a plan for Megatron-Core."""
    if script.program.trainer != tuners.SWIFT:
        what = f"a plan is not put into {script.program.trainer}'s options for Megatron-Core"
        raise InputError(Problem(what, script.reading.file, hint="--target ms-swift, whose files are new ones"))
    if script.does != "alone":
        what = "a plan is not put into ms-swift's options for steps and preferences with Megatron-Core"
        raise InputError(what, file=script.reading.file, hint="--target ms-swift-deepspeed or trl")
    groups = ms_swift.sections(plan)
    values = {name: value for group in groups.values() for name, value in group.items()}
    names = _MEGATRON
    if script.precision == plan.best.options.precision:
        names = tuple(name for name in names if name not in _PRECISION)
    wanted = {name: _texts(values.get(name)) for name in names}
    return {name: now for name, now in wanted.items() if now is not None or of(script.reading, name) is not None}


def _of_trainer(plan: Plan, script: TunerStated) -> Wanted:
    """Return what a program around Transformers' Trainer is told of a plan."""
    best, rl, of_swift = plan.best, plan.job.rl, script.program.trainer == tuners.SWIFT
    if script.does == "rl":
        learning.refuse(plan, trl.LEARNS, script.program.trainer, ())
    elif script.does in PREFERRING:
        learning.refuse(plan, _COMPARES[script.program.trainer], script.program.trainer, ())
    micro = best.batch.micro // learning.per_example(plan)
    values: dict[str, Any] = {"per_device_train_batch_size": micro, ACCUMULATION: best.batch.num_microbatches}
    for degree, name in ((best.parallel.cp, "sequence_parallel_size"), (best.parallel.tp, "deepspeed_autotp_size")):
        if of_swift and (degree > 1 or of(script.reading, name) is not None):
            values[name] = degree
        elif degree > 1 and not (name == "sequence_parallel_size" and script.launched.parallel):
            what = f"{script.program.trainer} has no option for it"
            raise InputError(Problem(what, script.reading.file, field=name, got=str(degree), need="1"))
    if script.precision != best.options.precision:
        values |= {name: best.options.precision == name for name in ("bf16", "fp16")}
        values |= {"torch_dtype": learning.dtype(plan)} if of_swift else {}
    if rl is not None:
        step, at_once = plan.rl[0], micro * best.parallel.dp
        by_steps = script.values.given("steps_per_generation")
        values |= {"steps_per_generation": rl.sequences // at_once} if by_steps else {}
        if not by_steps and (rl.updates > 1 or script.values.given("generation_batch_size")):
            values["generation_batch_size"] = rl.sequences
        values |= {
            "num_generations": rl.samples,
            "num_iterations": rl.epochs,
            "vllm_tensor_parallel_size": step.rollout_tp,
            "vllm_gpu_memory_utilization": step.memory_share,
        }
        if rl.placement == "colocated":  # the plan counts on an engine that gives its memory back
            values |= {"sleep_level": step.sleep_level} if of_swift else {"vllm_enable_sleep_mode": True}
        for name, part in (("offload_model", learning.WEIGHTS), ("offload_optimizer", learning.STATES)):
            values |= {} if of(script.reading, name) is None else {name: part in step.away}
    return {name: _texts(value) for name, value in values.items()}


def _wanted(plan: Plan, script: Script) -> Wanted:
    assert isinstance(script, TunerStated), "is the reader of these"
    return (_of_megatron if script.program.megatron else _of_trainer)(plan, script)


def _texts(value: Any) -> tuple[str, ...] | None:
    """Return a value as the words of an option."""
    if value is None:
        return None
    return tuple(map(spoken, value)) if isinstance(value, list | tuple) else (spoken(value),)


def _files(progress: Progress, plan: Plan, script: Script) -> Progress:
    """Change what DeepSpeed's JSON, a preset of it or Accelerate's file says, and who recomputes."""
    assert isinstance(script, TunerStated), "is the reader of these"
    if script.program.megatron:
        return progress
    progress = _recomputed(progress, plan)
    sharded = plan.best.target.backend == "fsdp"
    keys, lacking = _SHARDS if sharded else _KEPT, []
    for each in differing(_script(progress, plan).run(), plan, keys):
        known, progress = progress.unplaced, _kept(progress, plan, each)
        lacking += [each] if progress.unplaced != known else []
    if progress.draft.reading.deepspeed is not None and not sharded:  # whose defaults are a stage's
        for each in differing(_script(progress, plan).run(), plan, _IN_JSON):
            progress = _kept(progress, plan, each)
    progress = _repeated(progress, plan)
    for each in (one for one in differing(_script(progress, plan).run(), plan, keys) if one not in lacking):
        name = each.fields[0].partition(".")[2]
        now, why = str(attrgetter(name)(plan.best.options)), "no file that can be changed says it"
        progress = progress.lacking(Unplaced(name, now, why, script.reading.start))
    return progress


def _kept(progress: Progress, plan: Plan, keys: Keys) -> Progress:
    """Say by the file that says it how weights, gradients or states are kept."""
    reading = progress.draft.reading
    if plan.best.target.backend == "fsdp":
        shards = accelerate.shards(plan)
        named = [KeyWish(path, at(shards, path)) for path in keys.paths]
        return _all_keyed(progress, named) if reading.accelerate is not None else progress
    config = deepspeed.config(plan)
    if reading.deepspeed is not None:
        wishes = [KeyWish(path, at(config, path)) for path in keys.paths]
        if _STAGE in keys.paths and plan.best.options.zero_stage < 3:  # what no lower stage reads
            section = reading.deepspeed.get(_STAGE[0])
            own = [name for name in section if name.startswith("stage3_")] if isinstance(section, dict) else []
            wishes += [KeyWish((_STAGE[0], name), None) for name in own]
        return _all_keyed(progress, wishes, "deepspeed")
    for name, presets in _PRESETS.items():
        if (setting := of(reading, name)) is not None and setting.text in presets:
            return _preset(progress, config, setting, presets)
    if reading.accelerate is None:
        return progress
    places = (each for each in _OF_ACCELERATE if each.of in keys.paths)
    there = (each for each in places if each.needed or reading.accelerate.get(*each.path) is not None)
    return _all_keyed(progress, [KeyWish(each.path, each.spelled(at(config, each.of))) for each in there])


def _all_keyed(progress: Progress, wishes: Sequence[KeyWish], document: Document = "accelerate") -> Progress:
    for wish in wishes:
        tree = tree_of(progress, document)
        have = None if tree is None else tree.get(*wish.path)
        derived = have == AUTO and wish.value is not None  # from an option
        if tree is not None and have != wish.value and not derived:
            progress = keyed(progress, document, wish)
    return progress


def _preset(progress: Progress, config: Any, setting: Setting, presets: Mapping[str, tuple[int, bool]]) -> Progress:
    """Name another of the configurations that come with a program."""
    stage, away = at(config, _STAGE) or 0, tuple(at(config, path) is not None for path in (_OPTIMIZER, _PARAM))
    for name, (of_stage, on_host) in presets.items():
        if of_stage == stage and away == (on_host, on_host and of_stage == 3):
            document: Document = "deepspeed" if presets is tuners.DEEPSPEED_PRESETS else "accelerate"
            return put(progress, Option(plain(setting.name), (name,), lambda now: now, document=document))
    why = f"{', '.join(presets)} are all that come with the program: name a file of your own"
    return progress.lacking(Unplaced(setting.spelled, f"a file of stage {stage}", why, setting.place))


def _mesh(plan: Plan, mesh: Mapping[str, Any]) -> Iterator[KeyWish]:
    """Yield the degrees of Accelerate's mesh, as far as its file has them."""
    p, copies = plan.best.parallel, plan.best.options.instances
    split = "sp" if f"{_MESH}_sp_size" in mesh else "cp"
    degrees = {"dp_replicate": copies, "dp_shard": p.dp // copies, "tp": p.tp, "cp": 1, "sp": 1, split: p.cp}
    for name, degree in degrees.items():
        if f"{_MESH}_{name}_size" in mesh:
            yield KeyWish((_MESH, f"{_MESH}_{name}_size"), degree)


def _repeated(progress: Progress, plan: Plan) -> Progress:
    """Let the files say of the batch and the precision what the options say, where they do not leave it to those."""
    reading, best = progress.draft.reading, plan.best
    micro, steps, half = best.batch.micro // learning.per_example(plan), best.batch.num_microbatches, best.options
    now: dict[KeyPath, Any] = dict(zip(_REPEATED, (micro, steps, micro * steps * best.parallel.dp), strict=False))
    now |= {(name, "enabled"): half.precision == name for name in ("bf16", "fp16")}
    for path, value in now.items():
        if reading.deepspeed is not None and reading.deepspeed.get(*path) not in (None, AUTO, value):
            progress = keyed(progress, "deepspeed", KeyWish(path, value))
    filed = [KeyWish(("deepspeed_config", ACCUMULATION), steps), KeyWish(("mixed_precision",), half.precision)]
    if isinstance(mesh := reading.accelerate and reading.accelerate.get(_MESH), dict):
        filed += _mesh(plan, mesh)
    for wish in filed:
        tree = tree_of(progress, "accelerate")
        if tree is not None and tree.get(*wish.path) not in (None, AUTO, wish.value):
            progress = keyed(progress, "accelerate", wish)
    return progress


def _recomputed(progress: Progress, plan: Plan) -> Progress:
    """Let every layer run again in the backward, or none, by the word that says it."""
    wanted, in_file = (
        plan.best.options.recompute.granularity != "none",
        ("fsdp_config", "fsdp_activation_checkpointing"),
    )
    tree = progress.draft.reading.accelerate
    if tree is not None and tree.get(*in_file) not in (None, wanted) and _script(progress, plan).recomputes != wanted:
        progress = keyed(progress, "accelerate", KeyWish(in_file, wanted))
    if _script(progress, plan).recomputes == wanted:
        return progress
    reading = progress.draft.reading
    turned = of(reading, RECOMPUTE_OFF) is not None or any(of(reading, name) is not None for name in LLAMAFACTORY)
    on = turned and of(reading, RECOMPUTE[0]) is None
    name, value = (RECOMPUTE_OFF, not wanted) if on else (RECOMPUTE[0], wanted)
    return put(progress, Option(name, (spoken(value),), partial(spelled, name), _neighbours(reading, name)))


def _script(progress: Progress, plan: Plan) -> TunerStated:
    """Return the reader of a script as it is now."""
    reading = progress.draft.reading
    program = tuners.program(reading)
    assert program is not None, "is what makes it one of theirs"
    script = LEARNED[program.trainer].script(reading, plan)
    assert isinstance(script, TunerStated), "is the reader of these"
    return script


def _neighbours(reading: Reading, name: str) -> Iterator[Setting]:
    """Yield options that a plan decides, those first that stand next to it in their order; then others of a Trainer."""
    at_ = _ORDER.index(name) if name in _ORDER else 0
    order = sorted(_ORDER, key=lambda each: abs(_ORDER.index(each) - at_))
    present = (of(reading, each) for each in (*order, *MARKS))
    yield from (each for each in present if each is not None)
    yield from reading.settings[-1:]


LEARNED: Mapping[str, Learned] = {
    name: Learned(
        reader,
        _wanted,
        None,
        lambda _reading, name, values: spelled(name, values),
        _neighbours,
        {
            "deepspeed": "accelerate launch with a configuration of DeepSpeed, or --deepspeed",
            "fsdp": "accelerate launch with a configuration of FSDP",
        },
        files=_files,
    )
    for name, reader in READERS.items()
}

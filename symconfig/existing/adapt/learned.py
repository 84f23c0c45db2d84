"""Scripts of reinforcement learning with a plan's degrees, engine and offload in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from symconfig.errors import InfeasibleError, InputError
from symconfig.existing.adapt import words
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.outcome import Change, Flaw, Unplaced
from symconfig.existing.adapt.ways import behind_equals
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.dialects.openrlhf import spelled
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Edit
from symconfig.existing.recover.rl import openrlhf as of_openrlhf
from symconfig.existing.recover.rl import slime as of_slime
from symconfig.existing.recover.rl import verl as of_verl
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import FSDP, MEGATRON
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.rl.verl import REFERENCE, ROLLOUT
from symconfig.existing.recover.rl.verl_workers import ACTOR, MODEL
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.plans.plan import Plan
from symconfig.render import openrlhf, slime, verl, verl_fsdp
from symconfig.render.files import sh

Wanted = Mapping[str, tuple[str, ...] | None]  # values of an option; None: it is not to be there


@dataclass(frozen=True, slots=True)
class Learned:
    """A trainer's way to be adapted. wanted: what a plan decides, by option. gpus: the options that say the trained
    nodes, and the GPUs of each; also: the same of roles beside them, where a script says them. added: an option as
    words of a script; anchors: options beside which a new one belongs, the
    likeliest first. others: what makes a script one of the workers of a plan, by backend."""

    reader: type[Script]
    wanted: Callable[[Plan], Wanted]
    gpus: tuple[str, str]
    added: Callable[[Reading, str, tuple[str, ...]], tuple[str, ...]]
    anchors: Callable[[Reading, str], Iterator[Setting]]
    others: Mapping[str, str] = field(default_factory=dict)
    also: tuple[tuple[str, str], ...] = ()

    def adapt(self, draft: Draft, plan: Plan) -> Progress:
        """Make every change that can be made. Raises InputError where the plan is for other workers, or for no step."""
        self._check(draft.reading, plan)
        try:
            wanted = {**self.wanted(plan), **self._world(draft.reading, plan)}
        except InfeasibleError as error:  # the plan is for a trainer that can be told more
            raise InputError(error.problems) from None
        progress = Progress(draft)
        for name, values in wanted.items():
            setting = _setting(progress.draft.reading, name)
            if not self._says(progress.draft.reading, name, values, setting):
                progress = self._granted(progress, name, values, setting)
        return progress

    def audited(self, progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
        """Return what an audit of the result calls errors."""
        before, after = (
            audit(reading, Supplied(model=plan.model), None, plan.job.limits, plan=False).findings
            for reading in (original, progress.draft.reading)
        )
        known = {finding.rule for finding in before}
        errors = (finding for finding in after if finding.severity == "error")
        return progress, tuple(Flaw(finding.rule, finding.problem, finding.rule in known) for finding in errors)

    def original(self, reading: Reading, plan: Plan) -> Run:
        """Return the configuration in the planner's terms. Raises InputError."""
        gpus = reading.world.gpus or plan.best.parallel.world_size
        return self.reader(reading, Supplied(model=plan.model), gpus, plan.cluster).run()

    def _check(self, reading: Reading, plan: Plan) -> None:
        workers = self.reader(reading, Supplied()).workers
        if plan.job.rl is None or not plan.rl:
            what = "starts reinforcement learning, and the plan is of no such step"
            raise InputError(what, file=reading.file, hint="a plan of a job with a section rl")
        if not workers.predicted or workers.planned != plan.best.target.backend:
            what, need = "has workers of another kind than the plan's", plan.best.target.backend
            raise InputError(what, file=reading.file, got=workers.name, need=need, hint=self.others.get(need))

    def _world(self, reading: Reading, plan: Plan) -> Wanted:
        """Return the GPUs that train, where the plan has others."""
        trained = plan.best.parallel.world_size
        each = min(trained, plan.cluster.gpus_per_node)
        served = plan.rl[0].rollout_gpus if plan.job.rl is not None and plan.job.rl.placement == "split" else 0
        same = reading.world.gpus in (None, trained + served)
        of_roles = (pair for pair in self.also if all(_setting(reading, name) for name in pair))
        numbers = ((str(trained // each),), (str(each),))
        return (
            {}
            if same
            else {name: value for pair in (self.gpus, *of_roles) for name, value in zip(pair, numbers, strict=True)}
        )

    def _says(self, reading: Reading, name: str, values: tuple[str, ...] | None, setting: Setting | None) -> bool:
        """Say whether a script says it already, or has it by itself."""
        if setting is not None:
            return values is not None and _texts(setting) == [value.lower() for value in values]
        usual = Values(self.reader.TRAINER, reading.settings).text(name.removeprefix("--").replace("-", "_"))
        if values is None or usual is None:
            return values in (None, _OFF) or (values == _ONE and name.endswith("-parallel-size"))
        return [usual.lower()] == [value.lower() for value in values]

    def _granted(
        self, progress: Progress, name: str, values: tuple[str, ...] | None, setting: Setting | None
    ) -> Progress:
        """Return the progress with one option more, less, or with another value."""
        draft, now = progress.draft, " ".join(values or ()) or None
        if setting is None:
            assert values is not None, "is what the script says by itself"
            before, mine, anchors = (
                draft.meaning,
                self.added(draft.reading, name, values),
                self.anchors(draft.reading, name),
            )
            ways = chain.from_iterable(words.added(each, mine, draft.texts) for each in anchors)
            after, was = draft.tried(ways, lambda now: before.gained(name, values, now)), None
        else:
            was = " ".join(word.text for word in setting.values)
            goal = draft.meaning.setting(draft.reading.settings.index(setting), values)
            edits: Iterator[tuple[Edit, ...]]
            if values is None:
                edits = words.removed(setting, draft.texts)
            else:
                text = self.added(draft.reading, name, values)[-1].removeprefix(f"{name}=")
                one = words.changed(setting.values[0], text, draft.texts) if len(setting.values) == 1 else iter(())
                edits = chain(one, behind_equals(setting, sh(text), draft))
            after = draft.tried(edits, lambda now: now == goal)
        if after is None:
            why = "its value is not a word of the script alone" if setting is not None else "no place for it was found"
            return progress.lacking(Unplaced(name, now, why, None if setting is None else setting.place))
        there = _setting(after.reading, name) or setting
        place = None if there is None else there.place
        assert place is not None, "is what was tried"
        return progress.went(after, Change(name, was, now, place))


def _setting(reading: Reading, name: str) -> Setting | None:
    return next((each for each in reversed(reading.settings) if each.name == name), None)


def _texts(setting: Setting) -> list[str]:
    return [word.text.lower() for word in setting.values]


_MEGATRON = f"{ACTOR}.megatron"
_OFF = ("null",)  # of an override
_ONE = ("1",)  # the degree that is not there
# Keys that a plan decides, beside all of the actor's workers; what it leaves out of these is off.
_KEYS = (
    f"{MODEL}.enable_gradient_checkpointing",
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{REFERENCE}.megatron.param_offload",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.gpu_memory_utilization",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
)
_KEYS_OFF = (
    f"{_MEGATRON}.virtual_pipeline_model_parallel_size",
    *(f"{_MEGATRON}.override_transformer_config.recompute_{name}" for name in ("granularity", "method", "num_layers")),
)
# slime's options that a plan decides; of those that it leaves out the script is to have none.
_OPTIONS = (
    "--tensor-model-parallel-size",
    "--sequence-parallel",
    "--pipeline-model-parallel-size",
    "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
    "--use-dynamic-batch-size",
    "--max-tokens-per-gpu",
    "--log-probs-max-tokens-per-gpu",
    "--rollout-num-gpus",
    "--rollout-num-gpus-per-engine",
    "--sglang-mem-fraction-static",
    "--colocate",
)


@dataclass(frozen=True, slots=True)
class _Workers:
    """How verl's workers are told a plan. section: of their keys; off: those that are off where a plan has none."""

    words: Callable[[Plan], list[str]]
    section: str
    off: tuple[str, ...] = ()


_WORKERS = {
    MEGATRON.planned: _Workers(verl.words, _MEGATRON, _KEYS_OFF),
    FSDP.planned: _Workers(verl_fsdp.words, f"{ACTOR}.{FSDP.section}"),
}


def _keys_wanted(plan: Plan) -> Wanted:
    kind = _WORKERS[plan.best.target.backend]
    every = dict(word.split("=", 1) for word in kind.words(plan))
    mine = {
        key: tuple(value.strip("[]").split(","))
        for key, value in every.items()
        if key in _KEYS or key.startswith(f"{kind.section}.")
    }
    return {**mine, **{key: _OFF for key in kind.off if key not in mine}}


def _key_added(_reading: Reading, key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    listed = len(values) > 1 or key.endswith("_modules")
    return (f"{key}=[{','.join(values)}]" if listed else f"{key}={values[0]}",)


def _beside_key(reading: Reading, key: str) -> Iterator[Setting]:
    """Yield overrides of a key's section, then of one above it."""
    section = key
    while "." in section:
        section = section.rpartition(".")[0]
        yield from [each for each in reversed(reading.settings) if each.name.startswith(f"{section}.")][:2]


# OpenRLHF's.
_SECTIONS = (
    "--train.colocate_all",
    "--train.dynamic_batch_enable",
    "--train.max_tokens_per_gpu",
    "--rollout.max_tokens_per_gpu",
    "--actor.gradient_checkpointing_enable",
    "--ds.packing_samples",
    "--ds.zero_stage",
    "--ds.tensor_parallel_size",
    "--ds.adam_offload",
    "--ds.enable_sleep",
    "--vllm.num_engines",
    "--vllm.tensor_parallel_size",
    "--vllm.gpu_memory_utilization",
    "--vllm.enable_sleep",
)


def _options_wanted(plan: Plan) -> Wanted:
    return _wanted_by(slime.words(plan), _OPTIONS)


def _wanted_by(words_: Sequence[str], names: Sequence[str]) -> Wanted:
    """Return what words say of these options; None of those that they leave out."""
    lines: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words_:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            lines[name] = (value,) if equals else ()
        else:
            lines[name] = (*lines[name], word)
    return {name: lines.get(name) for name in names}


def _beside_option(names: Sequence[str], reading: Reading, name: str) -> Iterator[Setting]:
    """Yield options that a plan decides, those that stand next to it in their order first."""
    at = names.index(name) if name in names else 0
    order = sorted(range(len(names)), key=lambda index: abs(index - at))
    present = (_setting(reading, names[index]) for index in order)
    yield from (each for each in present if each is not None)


VERL = Learned(
    of_verl.Reader,
    _keys_wanted,
    ("trainer.nnodes", "trainer.n_gpus_per_node"),
    _key_added,
    _beside_key,
    {
        MEGATRON.planned: f"{ACTOR}.strategy=megatron and --config-name ppo_megatron_trainer, or model_engine=megatron",
        FSDP.planned: f"{ACTOR}.strategy=fsdp2",
    },
)
SLIME = Learned(
    of_slime.Reader,
    _options_wanted,
    ("--actor-num-nodes", "--actor-num-gpus-per-node"),
    lambda _reading, name, values: (name, *values),
    partial(_beside_option, _OPTIONS),
)
OPENRLHF = Learned(
    of_openrlhf.Reader,
    lambda plan: _wanted_by(openrlhf.words(plan), _SECTIONS),
    ("--actor.num_nodes", "--actor.num_gpus_per_node"),
    lambda reading, name, values: (spelled(reading.settings, name), *values),
    partial(_beside_option, _SECTIONS),
    also=(("--ref.num_nodes", "--ref.num_gpus_per_node"),),
)

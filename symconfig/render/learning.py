"""Which targets are for which tasks, and what those that learn by reinforcement or from preferences have alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace as Run
from typing import Any, Final, Literal

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import OF_GROUPS, LossName, Preference, Rl
from symconfig.errors import Problem
from symconfig.frameworks.constraint import Fixed
from symconfig.frameworks.megatron.hybrid import hybrid
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Plan
from symconfig.plans.rl import ReferencePlace
from symconfig.render.files import word
from symconfig.render.shared import training_problem

Sequences = Literal["packed", "padded"]
STATES, WEIGHTS = "optimizer state", "weights"
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}  # as torch calls them
ANY_WAY = ((), (STATES,), (WEIGHTS, STATES))
# By how much a loss lets the ratio of probabilities fall and rise: DAPO's (arXiv:2503.14476, section 4.1), and GSPO's,
# whose ratio is a sequence's (arXiv:2507.18071v2, section 5.1). The other algorithms have each program's own.
_CLIPPED: Final[Mapping[str, tuple[float, float]]] = {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarding:
    """How a program runs a reward model.

    by: an inference engine, workers laid out like the trained model, workers that shard it over all their GPUs, or an
    external service. overlaps: what it runs in parallel with, if it has GPUs of its own. together: one forward pass has
    all responses of a data-parallel rank.
    """

    by: Literal["engine", "workers", "shards", "service"]
    overlaps: Literal["", "generation", "training"] = ""
    together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Learns:
    """What a program supports of RL.

    engines: inference engines, the default first. away: sets of model parts that it can keep on the host between phases
    if the engine shares the GPUs. epochs: several passes over the same samples. adapters: LoRA. sequences: how a
    micro-batch is made: packed up to a number of tokens, or padded. reference: where the reference model is while it is
    not in use; "swapped": its weights take the actor's place. rewards: how a reward model runs, by placement.
    sleep_levels: of an engine that shares the GPUs, the default first. ranks_of_data: engines with data parallelism
    within a replica. critic: "own": it may have a layout of its own; "alike": it has the actor's; "apart": that, and
    perhaps GPUs of its own, with micro-batches for log-probabilities like the actor's. reads_apart: log-probabilities
    may have another micro-batch size than updates.
    """

    algorithms: tuple[str, ...]
    engines: tuple[str, ...]
    placements: tuple[str, ...] = ("colocated",)
    away: tuple[tuple[str, ...], ...] = ANY_WAY
    epochs: bool = True
    adapters: bool = False
    sequences: Sequences = "packed"
    reference: ReferencePlace = "offloaded"
    rewards: Mapping[str, Rewarding] = field(default_factory=dict)
    sleep_levels: tuple[int, ...] = (2,)
    ranks_of_data: tuple[str, ...] = ()
    critic: Literal["own", "alike", "apart"] = "own"
    reads_apart: bool = False

    def sleep_level(self, rl: Rl, adapts: bool) -> int:
        """Return the engine's sleep level: the job's, else 1 with adapters (its weights do not change), else the first
        supported."""
        return rl.rollout.sleep_level or (1 if adapts else self.sleep_levels[0])

    def unsupported(self, plan: Plan, name: str) -> Iterator[Problem]:
        """Yield a problem for each of these that the program `name` does not support: algorithm, engine and its `dp`,
        placements, sleep level, epochs, critic GPUs, adapters; and for one sample with an algorithm over groups.

        Of a plan with RL phases (`plan.rl`) also, for a program that pads, an update of another number of rows than
        `rl.batch` samples, and for a colocated plan parts on the host that are none of `away`.
        """
        rl, adapter, step = section(plan), plan.model.adapter, plan.rl[0] if plan.rl else None
        engine, dp = rl.rollout.engine or self.engines[0], max(rl.rollout.dp or 1, step.rollout_dp if step else 1)
        choices: dict[str, tuple[object, Iterable[object]]] = {
            "rl.algorithm": (rl.algorithm, self.algorithms),
            "rl.rollout.engine": (engine, self.engines),
            "rl.placement": (rl.placement, self.placements),
            "rl.reward_model.placement": (rl.reward_model and rl.reward_model.placement, self.rewards),
            "rl.rollout.sleep_level": (rl.rollout.sleep_level, self.sleep_levels),
            "rl.rollout.dp": (dp, (dp if engine in self.ranks_of_data else 1,)),
            "rl.epochs": (rl.epochs, (rl.epochs if self.epochs else 1,)),
            "rl.critic_gpus": (rl.critic_gpus, (rl.critic_gpus,) if self.critic == "apart" else ()),
            "adapter": (adapter and adapter.method, ("lora", "qlora") if self.adapters else ()),
        }
        yield from _unknown(choices, name)
        if rl.samples == 1 and rl.algorithm in OF_GROUPS:
            what, hint = f"the advantage of {rl.algorithm} is over the responses to a prompt", "reinforce_plus_plus"
            yield Problem(what, field="rl.samples", got="1", need="2 or more", hint=f"algorithm: {hint}")
        if plan.rl and self.sequences != "packed" and plan.best.configuration.global_batch != rl.batch:
            what = f"{name} packs no sequences of different samples, so it needs a plan of its own"
            got, need = f"{plan.best.configuration.global_batch} rows of an update", f"its {rl.batch} samples"
            yield Problem(what, field="rl", got=got, need=need, hint=f"symconfig plan … --target {name}")
        if plan.rl and rl.placement == "colocated" and plan.rl[0].away not in self.away:
            able = tuple(" and ".join(each) or "nothing" for each in self.away)
            got = " and ".join(plan.rl[0].away) or "nothing"
            what = f"{name} keeps other parts on the host between phases, so it needs a plan of its own"
            yield Problem(what, field="rl", got=got, need=" or ".join(able), hint=f"symconfig plan … --target {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compares:
    """What a program supports of preference training.

    losses: by name. batching: of micro-batches of whole pairs; padded: losses for which it always pads. copies: the
    reference is a full second model even with adapters. first: which models' forward passes run before the one that is
    trained on, not between it and its backward pass. both_heads: a reward model keeps the head over the vocabulary.
    """

    losses: tuple[LossName, ...]
    batching: tuple[str, ...] = ("padded",)
    padded: tuple[LossName, ...] = ()
    copies: bool = False
    first: tuple[Literal["model", "reference"], ...] = ()
    both_heads: bool = False

    def scoring(self, model: ModelDescriptor, job: Job) -> ModelDescriptor:
        """Return the model with a scalar head for the vocabulary's if the loss trains one and not both heads are kept,
        else the model."""
        return model.scoring if self._scores(job) else model

    def _scores(self, job: Job) -> bool:
        """Return whether the program replaces the head over the vocabulary by one with a single output."""
        return job.preference is not None and job.preference.means.scores and not self.both_heads

    def unsupported(self, plan: Plan, name: str) -> Iterator[Problem]:
        """Yield a problem for each setting of preference training that the program `name` does not support.

        These are the loss, batching; and, if the plan has preference phases (`plan.tuned`), another head, and a plan
        without the reference copy that the program has beside adapters.
        """
        sequences = plan.job.sequences
        choices: dict[str, tuple[object, Iterable[object]]] = {"preference.loss": (preference(plan).loss, self.losses)}
        if sequences is not None:
            able = self.batching[:1] if preference(plan).loss in self.padded else self.batching
            choices["sequences.batching"] = (sequences.batching, able)
        yield from _unknown(choices, name)
        if plan.tuned and self._scores(plan.job) != (plan.model.num_labels is not None):
            what = f"{name} trains another head, so it needs a plan of its own"
            yield Problem(what, field="preference.loss", hint=f"symconfig plan … --target {name}")
        copied = any("reference" in phase.holds for step in plan.tuned for phase in step.phases)
        if self.copies and plan.tuned and plan.model.adapter is not None and not copied:
            what = f"{name} has a copy of the model beside adapters, too, so it needs a plan of its own"
            yield Problem(what, field="preference", hint=f"symconfig plan … --target {name}")


def of_checkpoints(plan: Plan, what: str) -> Iterator[Problem]:
    """Yield a problem if the job resumes from another checkpoint than its own last one. what: the sentence."""
    if plan.training.load is not None and not plan.training.loads_its_own:
        yield training_problem(plan, "load", what, need="the folder of training.save")


def of_schedule(plan: Plan, name: str, known: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem if the job's lr_decay_style is not among `known`."""
    if plan.training.lr_decay_style not in known:
        yield training_problem(plan, "lr_decay_style", f"{name} does not have this schedule", need=" or ".join(known))


def of_types(plan: Plan, name: str, known: tuple[str, ...]) -> Iterator[Problem]:
    """Yield a problem if the model's type is not in `known`, or it has a vision tower: its weights
    cannot be converted.
    """
    model = plan.model
    if model.model_type not in known or model.vision is not None:
        what = f"{name} has no way to bring this model's weights to Megatron-LM and its engine"
        yield Problem(what, field="model_type", got=model.model_type, need=" or ".join(known))


def of_transformers(plan: Plan, name: str) -> Iterator[Problem]:
    """Yield what does not work with sequences packed for Transformers' flash attention. These are scans, attention
    sinks, attention of the model's own class, and unfused attention.
    """
    model = Fixed.of(plan.model)
    if model.scans:
        what = f"{name} packs sequences, whose borders the scans and convolutions of Transformers' blocks do not see"
        yield Problem(what, field="mixers", hint="--target verl")
    if model.attention_sinks:
        what = f"{name} packs sequences for flash attention, which has no sinks in Transformers"
        yield Problem(what, field="attention_sinks", hint="--target verl")
    if model.own_attention:
        what = f"{name} packs sequences for flash attention, and Transformers' class has attention of its own"
        yield Problem(what, field="model_type", got=model.model_type)
    if plan.job.attention == "unfused":
        yield Problem(f"{name} packs sequences for flash attention alone", field="attention", got="unfused")


def of_stages(plan: Plan, name: str) -> Iterator[Problem]:
    """Yield a problem if a pipeline layout string sets the stages, or else if stages of a hybrid model differ in size
    (`stage_layout`).
    """
    options = plan.best.configuration
    if options.pipeline_layout:
        what = f"{name} can set the number of layers of the first and the last stage only"
        yield Problem(what, field="layout", got=options.pipeline_layout, pins=("layout=ends", "pp=1"))
    elif options.stage_layout and hybrid(plan.model):
        what = f"{name} gives every stage of this model the same number of layers"
        yield Problem(what, field="layout", got=options.stage_layout, pins=("layout=equal", "pp=1"))


def of_adam(plan: Plan, name: str) -> Iterator[Problem]:
    """Yield a problem if the job's optimizer is not Adam."""
    if plan.job.optimizer.name != "adam":
        yield Problem(f"{name} trains with Adam", field="optimizer", got=plan.job.optimizer.name, need="adam")


def options(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return one tuple of words for each option: `--name` and its value as text, or each item of a tuple as a word.
    None and False are left out, True has no value.
    """
    given = {f"--{name}": value for name, value in values.items() if value is not None and value is not False}
    return [
        (name, *(map(word, value) if isinstance(value, tuple) else () if value is True else (word(value),)))
        for name, value in given.items()
    ]


def section(plan: Plan) -> Rl:
    """Return the section `rl` of a plan's job, which must have one."""
    assert plan.job.rl is not None, "`tasks` refuses other plans"
    return plan.job.rl


def run_of(plan: Plan, targets: Iterable[str] = (), kind: str = "") -> Run:
    """Return the plan as nested namespaces, by the field names that tables of keys use (`formats.keys`). Fields that do
    not apply are None or missing: `critic` without one, `engine`, `ranks` and `rewards.planned` without RL phases.
    targets, kind: the adapted layers and the adapter's kind in the program's terms. `clip` has the ratio bounds of dapo
    and gspo only; token counts are per GPU and micro-batch. May load the critic's descriptor.
    """
    rl, step, best, training = plan.job.rl, plan.rl[0] if plan.rl else None, plan.best, plan.training
    tokens, away = step.tokens_per_gpu if step else rl and rl.longest, step.away if step else ()
    (nodes, gpus), clip, adapter = reward_nodes(plan), _CLIPPED.get(rl.algorithm) if rl else None, plan.model.adapter

    def trained(c: Configuration) -> Run:
        """Return the namespace of one trained model; `tokens` and `away` are those of the step, `chunks` is vpp or None
        for 1. `experts`, `flex` and `recompute` are None without experts, flex dispatcher or recompute.
        """
        layers = Run(
            granularity=c.recompute,
            modules=[*c.recompute_modules] or None,
            method=c.recompute_method,
            num_layers=c.recompute_layers if c.recompute == "full" else None,
        )
        return Run(
            configuration=c,
            tokens=tokens,
            away=Run(weights=WEIGHTS in away, states=STATES in away),
            chunks=c.vpp if c.vpp > 1 else None,
            experts=Run(etp=c.etp) if c.moe_dispatcher is not None else None,
            flex=Run(kind="flex", by=c.moe_flex_backend) if c.moe_dispatcher == "flex" else None,
            recomputes=c.recompute == "full",
            recompute=layers if c.recompute != "none" else None,
        )

    run = Run(plan=plan, model=plan.model, training=training, rl=rl, step=step)
    run.dtype = DTYPES.get(best.configuration.precision)
    run.actor, run.rollout, run.reference = trained(best.configuration), Run(tokens=None), Run(shards=None)
    run.actor.dynamic = run.actor.packs = True
    run.actor.predicts = plan.model.num_nextn_predict_layers > 0 or None
    run.clip = clip and Run(low=clip[0], high=clip[1])
    run.adapter = adapter and Run(**dict(adapter), targets=tuple(targets), kind=kind)
    run.rewards = Run(apart=nodes > 0, nodes=nodes or None, gpus=gpus or None)
    run.loggers = {"wandb": training.wandb_project, "tensorboard": training.tensorboard_dir}
    run.wandb_name = training.wandb_project and (training.wandb_name or plan.model.name)
    run.saves = training.save and Run(every=training.save_interval)
    if rl is not None and adapter is None and rl.reference:
        run.reference.shards = best.shard_ranks
    if rl is not None and rl.has_critic:
        run.critic = trained((step and step.critic) or best.configuration)
        run.critic.model = critic(plan) or None
    if rl is not None and step is not None:
        replicas = step.rollout_gpus // step.rollout_tp
        run.engine = Run(sleeps=True, max_num_seqs=rl.rollout.max_num_seqs, replicas=replicas)
        run.ranks = Run(dp=step.rollout_dp, experts=step.replica_gpus) if step.rollout_dp > 1 else None
        run.rollout.tokens = step.read_per_gpu
        run.reference.tokens = step.read_per_gpu if rl.reference else None
        run.rewards.planned = step.reward
    return run


def reward_model(plan: Plan) -> str | None:
    """Return the reward model's Hugging Face id, or else the name or path in the job. "" if the job gives none, None if
    no reward model runs on the job's GPUs (none, or a server). Raises as `load_model`.
    """
    named = plan.job.rl.reward_model if plan.job.rl else None
    return None if named is None or named.placement == "server" else _weights(named.model)


def reward_url(plan: Plan) -> str:
    """Return the URL of a reward service; empty if there is none."""
    named = plan.job.rl.reward_model if plan.job.rl else None
    return (named and named.url) or ""


def reward_nodes(plan: Plan) -> tuple[int, int]:
    """Return (nodes, GPUs of each) of the reward model's own GPUs in the plan; (0, 0) if it has none of its own."""
    own = plan.rl[0].reward if plan.rl else None
    return own_nodes(plan, 0 if own is None else own.gpus)


def own_nodes(plan: Plan, gpus: int) -> tuple[int, int]:
    """Return (nodes, GPUs of each) of a role's own GPUs, (0, 0) for none; nodes are rounded up."""
    most = plan.cluster.gpus_per_node
    return -(-gpus // most), min(gpus, most)


def critic(plan: Plan) -> str | None:
    """Return the Hugging Face id of the critic's weights, or else the name in the job; "" if it starts as a copy of the
    actor. None without a critic. Raises as `load_model`.
    """
    return _weights(section(plan).critic) if section(plan).has_critic else None


def _weights(name: str | None) -> str:
    """Return the Hugging Face id of a model that a job names, or else its name; "" for None. Raises as `load_model`."""
    return "" if name is None else load_model(name).huggingface_id or name


def preference(plan: Plan) -> Preference:
    """Return the section `preference` of a plan's job, which must have one."""
    assert plan.job.preference is not None, "`tasks` refuses other plans"
    return plan.job.preference


def per_example(plan: Plan) -> int:
    """Return the sequences per example as programs count them: 2 for preference pairs, else 1."""
    return 1 if plan.job.preference is None else plan.job.preference.means.sequences


def _unknown(choices: Mapping[str, tuple[object, Iterable[object]]], name: str) -> Iterator[Problem]:
    """Yield a problem for each chosen value but None that is not among those that the program `name` supports.

    choices: by field, the chosen value and the supported ones.
    """
    for chosen, (got, able) in choices.items():
        if got is not None and got not in able:
            need = " or ".join(map(str, able)) or "none"
            yield Problem(f"{name} does not support it", field=chosen, got=str(got), need=need)

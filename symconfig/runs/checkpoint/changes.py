"""What differs between two plans, as far as a checkpoint cares: each fact has a name that the table of rules uses.

A fact is a function of the old and the new plan that says in words what it found, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint import weights
from symconfig.verify.rank_states import chunk_parameters

Finding = Callable[[Plan, Plan], str]
LEAST_BUCKET = 40_000_000  # elements (Megatron-LM, training.py, resolve_ddp_bucket_size)
BUCKET_OF_A_RANK = 1_000_000  # elements that each data-parallel rank adds to that, where there are many


@dataclass(frozen=True, slots=True)
class Fact:
    """`does`: what it means that the fact holds, for the page of rules."""

    name: str
    does: str
    find: Finding


FACTS: dict[str, Fact] = {}


def fact(name: str, does: str) -> Callable[[Finding], Finding]:
    def enter(find: Finding) -> Finding:
        FACTS[name] = Fact(name, does, find)
        return find

    return enter


def holding(old: Plan, new: Plan) -> Mapping[str, str]:
    """Return {name: text} of the facts that hold between two plans, in the order of FACTS."""
    return {name: text for name, entry in FACTS.items() if (text := entry.find(old, new))}


def _backend(plan: Plan) -> Backend:
    return BACKENDS[plan.best.target.backend]


def _other(what: str, old: object, new: object) -> str:
    return f"{what} {old} -> {new}" if old != new else ""


def _compared(what: str, of: Callable[[Plan], object]) -> Finding:
    """Return a finding that compares one value of two plans: its text, or "" if equal."""
    return lambda old, new: _other(what, of(old), of(new))


def _replicas(plan: Plan) -> int:
    return plan.best.parallel.dp * plan.best.parallel.cp


def _zero(plan: Plan) -> int:
    return plan.best.options.zero_stage


for _name, _does in (
    ("tp", "another tensor-parallel degree (AutoTP's with DeepSpeed)"),
    ("pp", "another number of pipeline stages"),
    ("vpp", "another number of virtual stages"),
    ("cp", "another context-parallel degree (Ulysses with DeepSpeed)"),
    ("ep", "another expert-parallel degree"),
    ("etp", "another degree of tensor parallelism within experts"),
    ("dp", "another number of data-parallel replicas"),
):
    fact(_name, _does)(_compared(_name, attrgetter(f"best.parallel.{_name}")))

fact("replicas", "another number of ranks among which the optimizer's state is cut: dp x cp")(
    _compared("dp x cp", _replicas)
)


@fact("stages", "layers lie on other stages")
def _stages(old: Plan, new: Plan) -> str:
    places = [
        tuple(tuple(len(chunk) - chunk.count("mtp") for chunk in stage.chunks) for stage in plan.best.stages)
        for plan in (old, new)
    ]
    return "layers on other stages" if places[0] != places[1] else ""


@fact("buckets", "Megatron's gradient buffers close their buckets elsewhere, in a run that can be told where")
def _buckets(old: Plan, new: Plan) -> str:
    return _other_buckets(old, new) if closes(new) is not None else ""


@fact("buckets-lost", "the new run's gradient buffers have one bucket, the old one's several")
def _buckets_lost(old: Plan, new: Plan) -> str:
    return _other_buckets(old, new) if closes(new) is None else ""


def _other_buckets(old: Plan, new: Plan) -> str:
    """Return a text if the bucket sizes differ and at least one run's gradients need several buckets; else ""."""
    if any(not _backend(plan).gradient_buckets or plan.best.options.zero_stage > 1 for plan in (old, new)):
        return ""
    difference = _other("elements that close a bucket of gradients", *map(closes, (old, new)))
    in_pieces = difference and any(
        sum(parameter.elements for parameter in chunk_parameters(plan, 0)[0] if parameter.trainable) > size
        for plan in (old, new)
        if (size := closes(plan)) is not None
    )
    return difference if in_pieces else ""


def closes(plan: Plan) -> int | None:
    """Return the number of elements after which Megatron closes a bucket of its gradient buffer; None if there is a
    single bucket.
    """
    replicas = _replicas(plan)
    in_pieces = replicas > 1 and plan.best.options.overlap.grad_reduce
    return max(LEAST_BUCKET, BUCKET_OF_A_RANK * replicas) if in_pieces else None


@fact("sharded", "both runs shard the optimizer's state: ZeRO, Megatron's distributed optimizer")
def _sharded(old: Plan, new: Plan) -> str:
    return "a sharded optimizer" if min(_zero(old), _zero(new)) > 0 else ""


def _crossed(what: str, of: Callable[[Plan], Any], within: Callable[[Any], bool]) -> Finding:
    """Return a finding that holds if exactly one of two plans has its value in a class; within: the class's test."""
    return lambda old, new: _other(what, of(old), of(new)) if within(of(old)) != within(of(new)) else ""


_STAGE = "ZeRO stage"
fact("sharding", "the one run shards the optimizer's state, the other does not")(_crossed(_STAGE, _zero, bool))
fact("zero", "another ZeRO stage")(_compared(_STAGE, _zero))
fact("zero-3", "from or to ZeRO stage 3, which also cuts the weights")(
    _crossed(_STAGE, _zero, lambda stage: stage == 3)
)
fact("fsdp", "Megatron-FSDP (stage 2 and 3) in one of the runs only")(_crossed(_STAGE, _zero, lambda stage: stage >= 2))
fact("16-bit", "from bf16 to fp16, or back")(
    _compared("weights in", lambda plan: "fp16" if plan.best.options.precision == "fp16" else "bf16")
)
fact("scales", "FP8 with scales from a history in one of the runs only")(
    _crossed("precision", attrgetter("best.options.precision"), lambda precision: precision == "fp8")
)


@fact("scales-kept", "FP8 with scales from a history in both runs")
def _scales_kept(old: Plan, new: Plan) -> str:
    return "fp8" if old.best.options.precision == new.best.options.precision == "fp8" else ""


def _parts(plan: Plan) -> int:
    """Return the number of optimizers: 2 if the experts' parameters have their own (optimizer/__init__.py,
    get_megatron_optimizer), else 1.
    """
    parallel = plan.best.parallel
    return 2 if plan.model.experts is not None and (parallel.ep > 1 or parallel.etp != parallel.tp) else 1


fact("optimizers", "experts have an optimizer of their own, as with ep 2 or another etp than tp, in one run only")(
    _compared("optimizers", _parts)
)
for _name, _does, _what, _where in (
    ("gradients", "gradients of another type", "bytes of a gradient", "options.grad_bytes"),
    (
        "offload",
        "another share of the optimizer's state on the host",
        "share of the optimizer on the host",
        "options.optimizer_offload",
    ),
    ("framework", "another framework", "framework", "target.backend"),
):
    fact(_name, _does)(_compared(_what, attrgetter(f"best.{_where}")))


def _into(backend: Backend) -> Finding:
    return lambda old, new: backend.label if _backend(new) is backend else ""


for _each in BACKENDS.values():
    fact(f"into-{_each.name}", f"the new run is {_each.label}'s")(_into(_each))


def _rng_states(plan: Plan) -> int:
    """Return the random generators' states saved per rank of tp and pp: 1, or dp with ep in releases that save all."""
    best = plan.best
    if best.parallel.ep == 1 or not _backend(plan).generators_by_replica(best.target.version):
        return 1
    return best.parallel.dp


fact(
    "rng-grid",
    "random generators have a state for each replica, as with ep in core_v0.16, in one run only, or for "
    "another number of them",
)(_compared("states of a stage's generators", _rng_states))


@fact("older-release", "the new run has an older release of the framework")
def _older(old: Plan, new: Plan) -> str:
    releases = [plan.best.target.version for plan in (old, new)]
    if old.best.target.backend != new.best.target.backend or releases[0] == releases[1]:
        return ""
    return _other("release", *releases) if _backend(old).releases.older(releases[1], releases[0]) else ""


@fact("padding", "Megatron pads the vocabulary to another size, a multiple of 128 x tp")
def _padding(old: Plan, new: Plan) -> str:
    """Return a text if the padded vocabulary differs; "" if equal, or if a backend does not pad."""
    if not all(_backend(plan).pads_vocabulary for plan in (old, new)):
        return ""
    return _other(
        "rows of the padded vocabulary",
        *(_backend(plan).usual.padded_vocab(plan.model.vocab_size, plan.best.parallel.tp) for plan in (old, new)),
    )


fact("global-batch", "another global batch size")(_compared("global batch", attrgetter("best.batch.global_")))
fact("seq-length", "another sequence length")(_compared("sequence length", attrgetter("best.batch.seq_length")))


@fact("schedule", "another schedule of the learning rate or weight decay, counted in sequences")
def _schedule(old: Plan, new: Plan) -> str:
    return ", ".join(_schedules(old, new))


def _schedules(old: Plan, new: Plan) -> Iterator[str]:
    """Yield a text for each difference that OptimizerParamScheduler checks when it loads
    (optimizer_param_scheduler.py, _check_and_set).
    """
    mine, theirs = old.training, new.training
    for name in ("lr", "min_lr", "lr_decay_style", "weight_decay"):
        if difference := _other(name, getattr(mine, name), getattr(theirs, name)):
            yield difference
    for name in ("lr_warmup_iters", "lr_decay_iters", "train_iters"):  # the last one: where weight decay has its end
        counted = [
            (getattr(plan.training, name) or plan.training.train_iters) * plan.best.batch.global_
            if name == "lr_decay_iters"
            else getattr(plan.training, name) * plan.best.batch.global_
            for plan in (old, new)
        ]
        if difference := _other(f"{name} x global batch", *counted):
            yield difference


def _of_models(find: weights.Finding) -> Finding:
    return lambda old, new: find(old.model, new.model)


for _name, _does, _find in weights.COMPARED:
    fact(_name, _does)(_of_models(_find))


@fact("positions", "a learned position for every token, and another number of them")
def _positions(old: Plan, new: Plan) -> str:
    longest = [max(plan.model.max_position_embeddings, plan.best.batch.seq_length) for plan in (old, new)]
    learned = old.model.position == new.model.position == "learned"
    return _other("learned positions", *longest) if learned else ""

"""What differs between two plans, as far as a checkpoint cares: each fact has a name that the table of rules uses.

A fact is a function of the old and the new plan that returns what it found in words, or "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts
from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.plan import Plan
from symconfig.verify.rank_states import chunk_parameters

Finding = Callable[[Plan, Plan], str]
OfModels = Callable[[ModelDescriptor, ModelDescriptor], str]
LEAST_BUCKET = 40_000_000  # elements (Megatron-LM, training.py, resolve_ddp_bucket_size)
BUCKET_OF_A_RANK = 1_000_000  # elements that each data-parallel rank adds to that, where there are many


@dataclass(frozen=True, slots=True)
class Fact:
    """`does`: what it means that the fact holds, for the page of rules."""

    name: str
    does: str
    find: Finding


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


def _crossed(what: str, of: Callable[[Plan], Any], within: Callable[[Any], bool]) -> Finding:
    """Return a finding that holds if exactly one of two plans has its value in a class; within: the class's test."""
    return lambda old, new: _other(what, of(old), of(new)) if within(of(old)) != within(of(new)) else ""


def _replicas(plan: Plan) -> int:
    return plan.best.configuration.dp * plan.best.configuration.cp


def _zero(plan: Plan) -> int:
    return plan.best.configuration.zero_stage


def _stages(old: Plan, new: Plan) -> str:
    """Return "layers on other stages" if a chunk of a stage has another number of layers (MTP excluded), else ""."""
    places = [
        [[len(chunk) - chunk.count("mtp") for chunk in stage.chunks] for stage in plan.best.stages]
        for plan in (old, new)
    ]
    return "layers on other stages" if places[0] != places[1] else ""


def _other_buckets(lost: bool) -> Finding:
    """Return a function of two plans that returns both sizes of Megatron's gradient buckets as text, or "". It is ""
    for equal sizes, from ZeRO-2 on, and if no bucket closes within the first stage's first chunk, which has too few
    parameters. lost: for a new run with a single bucket; else for one with several, which can be given the old size.
    """

    def find(old: Plan, new: Plan) -> str:
        """Return the two bucket sizes as text, or "" if the finding does not hold."""
        plans = (old, new)
        if (closes(new) is None) is not lost or not all(_backend(plan).gradient_buckets for plan in plans):
            return ""
        difference = _other("elements that close a bucket of gradients", *map(closes, plans))
        if not difference or any(_zero(plan) > 1 for plan in plans):
            return ""
        in_pieces = any(
            sum(parameter.elements for parameter in chunk_parameters(plan, 0)[0] if parameter.trainable) > size
            for plan in plans
            if (size := closes(plan)) is not None
        )
        return difference if in_pieces else ""

    return find


def closes(plan: Plan) -> int | None:
    """Return the number of elements after which Megatron closes a bucket of its gradient buffer. None (a single bucket)
    if dp x cp is 1 or gradient reduction is not overlapped.
    """
    replicas = _replicas(plan)
    in_pieces = replicas > 1 and plan.best.configuration.overlap_grad_reduce
    return max(LEAST_BUCKET, BUCKET_OF_A_RANK * replicas) if in_pieces else None


def _optimizers(plan: Plan) -> int:
    """Return the number of optimizers: 2 if experts have their own (ep > 1 or etp != tp; optimizer/__init__.py,
    get_megatron_optimizer), else 1."""
    parallel = plan.best.configuration
    return 2 if plan.model.experts is not None and (parallel.ep > 1 or parallel.etp != parallel.tp) else 1


def _rng_states(plan: Plan) -> int:
    """Return the random generators' states saved per rank of tp and pp: 1, or dp with ep in releases that save all."""
    best = plan.best
    if best.configuration.ep == 1 or not _backend(plan).generators_by_replica(best.target.version):
        return 1
    return best.configuration.dp


def _older(old: Plan, new: Plan) -> str:
    """Return a text if the new release of the same backend is older than the old one; "" otherwise, also across
    backends.
    """
    before, after = old.best.target, new.best.target
    if before.backend != after.backend or before.version == after.version:
        return ""
    older = _backend(old).releases.older(after.version, before.version)
    return _other("release", before.version, after.version) if older else ""


def _padding(old: Plan, new: Plan) -> str:
    """Return a text if the padded vocabulary sizes differ; "" if equal, or if either backend does not pad."""
    plans = (old, new)
    if not all(_backend(plan).pads_vocabulary for plan in plans):
        return ""
    rows = (_backend(plan).usual.padded_vocab(plan.model.vocab_size, plan.best.configuration.tp) for plan in plans)
    return _other("rows of the padded vocabulary", *rows)


def _schedules(old: Plan, new: Plan) -> Iterator[str]:
    """Yield for each value that OptimizerParamScheduler checks when it loads (optimizer_param_scheduler.py,
    _check_and_set) a text with both plans' values, or "" if they are equal. Iterations are multiplied by the global
    batch; an unset decay is the whole run.
    """
    for name in ("lr", "min_lr", "lr_decay_style", "weight_decay"):
        yield _other(name, getattr(old.training, name), getattr(new.training, name))
    for name in ("lr_warmup_iters", "lr_decay_iters", "train_iters"):  # the last one: where weight decay has its end
        counts = []
        for plan in (old, new):
            iterations = getattr(plan.training, name)
            if iterations is None:  # the decay's
                iterations = plan.training.train_iters
            counts.append(iterations * plan.best.configuration.global_batch)
        yield _other(f"{name} x global batch", *counts)


def _positions(old: Plan, new: Plan) -> str:
    longest = [max(plan.model.max_position_embeddings, plan.best.configuration.seq_length) for plan in (old, new)]
    learned = old.model.position == new.model.position == "learned"
    return _other("learned positions", *longest) if learned else ""


# Fields of a model that only say what it is called; that change what is computed with the weights, and none of them;
# and that have a fact of their own.
NAMES = frozenset({"schema_", "name", "source", "notes", "huggingface_id", "torch_dtype", "model_type"})
COMPUTED = frozenset((
    "max_position_embeddings", "hidden_act", "norm_eps", "norm_zero_centered", "parallel_residual", "rope_theta",
    "rope_scaling", "rope_local_base_freq", "partial_rotary_factor", "sliding_window", "sliding_window_pattern",
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "scale_embeddings",
    "attention_dropout", "hidden_dropout", "initializer_range",
))  # fmt: skip
EXPERTS_COMPUTED = frozenset((
    "num_experts_per_tok", "scoring_func", "norm_topk_prob", "softmax_after_topk", "n_group", "topk_group",
    "routed_scaling_factor", "router_aux_loss_coef",
))  # fmt: skip
_MTP = "num_nextn_predict_layers"
OWN = frozenset({"vocab_size", "num_hidden_layers", "experts", _MTP, "adapter", "tie_word_embeddings"})


def _differ(old: Any, new: Any, names: frozenset[str], prefix: str = "") -> str:
    """Return the fields in `names` that differ between two descriptors (or sections) as `name old -> new`, joined by ",
    "; "" if none. prefix: put before each name.
    """
    return ", ".join(
        f"{prefix}{name} {_plain(getattr(old, name))} -> {_plain(getattr(new, name))}"
        for name in type(old).model_fields
        if name in names and getattr(old, name) != getattr(new, name)
    )


def _plain(value: object) -> str:
    return "absent" if value is None else str(value) if isinstance(value, int | float | str) else "another"


def _fields(names: frozenset[str], of_experts: frozenset[str]) -> OfModels:
    """Return a function of two models that returns a text with the differing fields, of `names`, and of `of_experts` in
    the section experts if both have it. intermediate_size is ignored unless both models have dense layers.
    """

    def find(old: ModelDescriptor, new: ModelDescriptor) -> str:
        """Return the differing fields as `name old -> new`, joined by ", "; "" if none."""
        left = names
        if not (old.intermediate_size and new.intermediate_size):  # without dense layers it is none's
            left = names - {"intermediate_size"}
        parts = [_differ(old, new, left)]
        if old.experts is not None and new.experts is not None:
            parts.append(_differ(old.experts, new.experts, of_experts, "experts."))
        return ", ".join(filter(None, parts))

    return find


def _field(name: str, where: Callable[[Any, Any], bool] = lambda old, new: True) -> OfModels:
    """Return a finding on one field's difference; "" unless `where` holds for its two values."""
    return lambda old, new: (
        _differ(old, new, frozenset({name})) if where(getattr(old, name), getattr(new, name)) else ""
    )


def _adapters(old: ModelDescriptor, new: ModelDescriptor) -> str:
    """Return the difference of two adapters' rank and target modules (compared as sets); "" if equal or either model
    has none.
    """
    one, other = old.adapter, new.adapter
    if one is None or other is None:
        return ""
    modules = "other target modules" if set(one.target_modules) != set(other.target_modules) else ""
    return ", ".join(filter(None, (_other("r", one.r, other.r), modules)))


_STAGE, _PRECISION = "ZeRO stage", attrgetter("best.configuration.precision")
_MODELS: tuple[tuple[str, str, OfModels], ...] = (
    ("shapes", "tensors of other names or shapes",
     _fields(frozenset(ModelDescriptor.model_fields) - NAMES - COMPUTED - OWN,
             frozenset(Experts.model_fields) - EXPERTS_COMPUTED)),
    ("computed", "the same weights, used otherwise", _fields(COMPUTED, EXPERTS_COMPUTED)),
    ("vocabulary", "another vocabulary", _field("vocab_size")),
    ("layers", "another number of layers", _field("num_hidden_layers")),
    ("tied", "the output layer becomes the embedding", _field("tie_word_embeddings", lambda old, new: new)),
    ("untied", "the output layer gets weights of its own", _field("tie_word_embeddings", lambda old, new: old)),
    ("upcycled", "experts in the place of dense layers",
     lambda old, new: f"experts none -> {new.experts.num_experts}" if new.experts and not old.experts else ""),
    ("experts-dropped", "dense layers in the place of experts",
     lambda old, new: f"experts {old.experts.num_experts} -> none" if old.experts and not new.experts else ""),
    ("mtp-more", "more layers that predict further tokens", _field(_MTP, lambda old, new: new > old)),
    ("mtp-fewer", "fewer layers that predict further tokens", _field(_MTP, lambda old, new: new < old)),
    ("adapter-added", "an adapter in the new model only",
     lambda old, new: f"no adapter -> {new.adapter.method}" if new.adapter and not old.adapter else ""),
    ("adapter-removed", "an adapter in the old model only",
     lambda old, new: f"{old.adapter.method} -> no adapter" if old.adapter and not new.adapter else ""),
    ("adapter-kept", "an adapter in both models",
     lambda old, new: "an adapter in both" if old.adapter and new.adapter else ""),
    ("adapter-shapes", "an adapter of another rank or on other modules", _adapters),
    ("quantised", "frozen weights in 4 bits in one of the runs only",
     lambda old, new: (
         _other("method", old.adapter.method, new.adapter.method) if old.adapter and new.adapter else "")),
)  # fmt: skip
_PLANS: tuple[tuple[str, str, Finding], ...] = (
    *(
        (name, does, _compared(name, attrgetter(f"best.configuration.{name}")))
        for name, does in (
            ("tp", "another tensor-parallel degree (AutoTP's with DeepSpeed)"),
            ("pp", "another number of pipeline stages"),
            ("vpp", "another number of virtual stages"),
            ("cp", "another context-parallel degree (Ulysses with DeepSpeed)"),
            ("ep", "another expert-parallel degree"),
            ("etp", "another degree of tensor parallelism within experts"),
            ("dp", "another number of data-parallel replicas"),
        )
    ),
    ("replicas", "another number of ranks among which the optimizer's state is cut: dp x cp",
     _compared("dp x cp", _replicas)),
    ("stages", "layers lie on other stages", _stages),
    ("buckets", "Megatron's gradient buffers close their buckets elsewhere, in a run that has an option for it",
     _other_buckets(lost=False)),
    ("buckets-lost", "the new run's gradient buffers have one bucket, the old one's several",
     _other_buckets(lost=True)),
    ("sharded", "both runs shard the optimizer's state: ZeRO, Megatron's distributed optimizer",
     lambda old, new: "a sharded optimizer" if min(_zero(old), _zero(new)) > 0 else ""),
    ("sharding", "the one run shards the optimizer's state, the other does not", _crossed(_STAGE, _zero, bool)),
    ("zero", "another ZeRO stage", _compared(_STAGE, _zero)),
    ("zero-3", "from or to ZeRO stage 3, which also cuts the weights",
     _crossed(_STAGE, _zero, lambda stage: stage == 3)),
    ("fsdp", "Megatron-FSDP (stage 2 and 3) in one of the runs only",
     _crossed(_STAGE, _zero, lambda stage: stage >= 2)),
    ("16-bit", "from bf16 to fp16, or back",
     _compared("weights in", lambda plan: "fp16" if _PRECISION(plan) == "fp16" else "bf16")),
    ("scales", "FP8 with scales from a history in one of the runs only",
     _crossed("precision", _PRECISION, lambda precision: precision == "fp8")),
    ("scales-kept", "FP8 with scales from a history in both runs",
     lambda old, new: "fp8" if _PRECISION(old) == _PRECISION(new) == "fp8" else ""),
    ("optimizers", "experts have an optimizer of their own, as with ep 2 or another etp than tp, in one run only",
     _compared("optimizers", _optimizers)),
    ("gradients", "gradients of another type",
     _compared("bytes of a gradient", attrgetter("best.configuration.grad_bytes"))),
    ("offload", "another share of the optimizer's state on the host",
     _compared("share of the optimizer on the host", attrgetter("best.configuration.optimizer_offload"))),
    ("framework", "another framework", _compared("framework", attrgetter("best.target.backend"))),
    *((f"into-{each.name}", f"the new run is {each.label}'s",
       lambda _, new, each=each: each.label if _backend(new) is each else "") for each in BACKENDS.values()),
    ("rng-grid", "random generators have a state for each replica, as with ep in core_v0.16, in one run only, or for "
     "another number of them", _compared("states of a stage's generators", _rng_states)),
    ("older-release", "the new run has an older release of the framework", _older),
    ("padding", "Megatron pads the vocabulary to another size, a multiple of 128 x tp", _padding),
    ("global-batch", "another global batch size",
     _compared("global batch", attrgetter("best.configuration.global_batch"))),
    ("seq-length", "another sequence length",
     _compared("sequence length", attrgetter("best.configuration.seq_length"))),
    ("schedule", "another schedule of the learning rate or weight decay, counted in sequences",
     lambda old, new: ", ".join(filter(None, _schedules(old, new)))),
    *((name, does, lambda old, new, find=find: find(old.model, new.model)) for name, does, find in _MODELS),
    ("positions", "a learned position for every token, and another number of them", _positions),
)  # fmt: skip
FACTS: dict[str, Fact] = {name: Fact(name, does, find) for name, does, find in _PLANS}

"""The plan: everything that rendering, verifying and reporting may know. Frozen, with a JSON round trip.

Digests of its parts are written with it and held against it when it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.job import Backend, Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import Task
from symconfig.descriptor.training import WholeTraining
from symconfig.errors import InputError
from symconfig.format import json_text
from symconfig.install import VERSION
from symconfig.plans.configuration import Configuration, Precision
from symconfig.plans.history import History
from symconfig.plans.rl import PlannedRl, PlannedStep

SCHEMA = "symconfig.plan/1"
_CONFIG = ConfigDict(extra="forbid", strict=True)
INPUTS: Mapping[str, type[BaseModel]] = {"model": ModelDescriptor, "cluster": ClusterDescriptor, "job": Job}
ANSWER = ("best", "alternatives", "beside", "search", "binding")
SOMETIMES = ("history", "rl", "tuned")  # of plans that take over a run, and of those whose step has phases
_EXACT_FLOATS = 2**53  # above it, not every whole number is a float
# What a plan predicts: a step takes time, and a GPU of a plan holds something.
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Part = Annotated[float, Field(allow_inf_nan=False)]  # of a sum: a difference may lie below 0 by a rounding error
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """The framework that will run the plan. `version`: core_v0.12.1 … core_v0.19.0, main; DeepSpeed's
    release."""

    __pydantic_config__ = _CONFIG
    backend: Backend
    version: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage. `chunks`: per virtual stage, the kinds of its layers in order (embedding, dense, moe,
    dense_window, moe_window, mtp, head)."""

    __pydantic_config__ = _CONFIG
    chunks: tuple[tuple[str, ...], ...]
    recompute: str
    peak_bytes: Amount


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction for one steady step, in SI units, as the ends of the names say."""

    __pydantic_config__ = _CONFIG
    step_s: Positive
    tokens_per_s_per_gpu: Amount
    model_tflops_per_gpu: Amount
    mfu: Amount
    peak_bytes: Positive
    reserved_bytes: Positive
    device_bytes: Positive
    host_bytes: Amount
    memory: dict[str, Part]
    time: dict[str, Part]
    interval: dict[str, tuple[Amount, Amount]]
    # With experts on several ranks: the step where routing is forced to balance, as most benchmarks force it.
    balanced_step_s: Positive | None = None
    # With experts, as uneven as routers load them, of nine in ten runs: load (tokens of the rank that holds most over
    # the mean, in the mean of its layers), layer_load (of the layer and rank that have most), device_bytes; waited_load
    # (of the rank that has most of a layer, in the mean of the layers, for which all others wait), step_s.
    untrained: dict[str, tuple[float, float]] | None = None
    # The measured runs behind the intervals of `time` and of `memory`, in words.
    interval_from: dict[str, str] = field(default_factory=dict)

    @property
    def benchmark_tokens_per_s_per_gpu(self) -> float:
        """Return the tokens/s per GPU with routing forced to balance; the plain rate if there is no such prediction."""
        return self.tokens_per_s_per_gpu * (self.step_s / self.balanced_step_s if self.balanced_step_s else 1.0)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a plan's place among the others follows from.

    score_s: its step with the premium for what is unusual. unusual: choices that hardly any published layout of such
    models on such GPUs has. complexity: axes beyond 1, options beside the defaults, recompute, offloads, a layout
    string and uneven ends; of plans within 2 % of the best score the one with the least is first. fits: probability
    that it does not run out of memory.
    """

    __pydantic_config__ = _CONFIG
    score_s: Positive
    unusual: tuple[str, ...]
    complexity: int
    fits: float


@dataclass(frozen=True, slots=True)
class Opened:
    """An experimental option that the plan uses since nothing fits without it, or a pin asks for it."""

    __pydantic_config__ = _CONFIG
    name: str
    label: str
    maturity: str
    why: str
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run of a plan's model on its kind of GPU: the one whose job is nearest, or the fastest where the plan
    claims more than 1.2 times what that has (unproven). job, layout: in words."""

    __pydantic_config__ = _CONFIG
    job: str
    layout: str
    tokens_per_s_per_gpu: Positive
    source: str
    unproven: bool


@dataclass(frozen=True, slots=True)
class OtherPlans:
    """Plans that are shown beside the families.

    fastest: of the plans that were compared; None: a plan that is shown is.
    measured: a run of the model on such GPUs that somebody measured; published: the layout of
    that run here, of a plan that is unproven. real_data: of fine-tuning, measured over predicted seconds of published
    runs on packed real data, rising.
    """

    __pydantic_config__ = _CONFIG
    fastest: Candidate | None = None
    measured: MeasuredRun | None = None
    published: Candidate | None = None
    real_data: tuple[Positive, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data as it stands in plan.json."""
        plans = {"fastest": self.fastest, "published": self.published}
        return {**asdict(self), **{name: one.to_dict() for name, one in plans.items() if one is not None}}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with its stages and its prediction. standing: among others that it was chosen from."""

    __pydantic_config__ = _CONFIG
    target: Target
    configuration: Configuration
    stages: tuple[Stage, ...]
    predicted: Predicted
    standing: Standing | None = None

    @property
    def chunks(self) -> tuple[tuple[str, ...], ...]:
        """Return the kinds of blocks of each chunk, in model order: chunk j is on stage j mod pp."""
        p = self.configuration
        return tuple(self.stages[j % p.pp].chunks[j // p.pp] for j in range(p.pp * p.vpp))

    @property
    def tokens_per_s(self) -> float:
        """Return the predicted tokens per second of all GPUs."""
        return self.predicted.tokens_per_s_per_gpu * self.configuration.world_size

    @property
    def shard_ranks(self) -> int | None:
        """Return how many ranks ZeRO shards over if there are several optimizer instances; None for a single one."""
        c = self.configuration
        return c.dp * c.cp // c.instances if c.instances > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data as it stands in plan.json."""
        data = asdict(self)
        del data["configuration"]
        return {"target": data.pop("target"), **self.configuration.to_dict(), **data}


@dataclass(frozen=True, slots=True)
class Search:
    """The record of the search. simulated: candidates whose schedule was, each with its layout of stages; all others
    are ranked by the formula.

    fewest: the number of GPUs was asked of it, too (auto). opened: experimental options that it uses. best_score_s: the
    least score of a candidate; the first plan is the plainest within 2 % of it. None: nothing was ranked.
    """

    __pydantic_config__ = _CONFIG
    candidates: int
    feasible: int
    seconds: float = 0.0
    simulated: int = 0
    fewest: bool = False
    opened: tuple[Opened, ...] = ()
    best_score_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen candidate with all that it was chosen from. history: what its run did before it. rl, tuned: of a job
    that learns by reinforcement, or from sequences of many lengths or pairs of them, the step around the best candidate
    and around each alternative."""

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job
    best: Candidate
    alternatives: tuple[Candidate, ...]
    search: Search
    binding: str  # the constraint that binds, as a sentence
    symconfig_version: str
    history: History = field(default_factory=History)
    beside: OtherPlans = field(default_factory=OtherPlans)
    rl: tuple[PlannedRl, ...] = ()
    tuned: tuple[PlannedStep, ...] = ()

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """Return all candidates that are shown, the best first."""
        return (self.best, *self.alternatives)

    def candidate(self, rank: int) -> Candidate:
        """Return the candidate of a rank; 1 is the best. Raises InputError without one."""
        if not 1 <= rank <= len(self.ranked):
            need = f"a whole number from 1 to {len(self.ranked)}"
            raise InputError("out of range", field="candidate", got=str(rank), need=need)
        return self.ranked[rank - 1]

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """Return the whole step around each candidate (reinforcement learning or tuning); () for plain training."""
        return self.rl or self.tuned

    @property
    def fastest(self) -> Candidate:
        """Return the candidate with the shortest step, shown or not."""
        return self.beside.fastest or min(self.ranked, key=lambda one: one.predicted.step_s)

    @property
    def training(self) -> WholeTraining:
        """Return the training settings with a value for everything that the job left open."""
        return WholeTraining.of(self.job.training)

    @property
    def task(self) -> Task:
        """Return what is done with the model: the job's task, pretrain by default. For most tasks a model with adapters
        makes it lora.
        """
        return self.job.task_of(self.model)

    @property
    def usable_bytes(self) -> float:
        """Return the bytes of a GPU that a plan may use: its memory minus the job's margin."""
        return self.job.limits.usable_bytes(self.cluster.gpu.memory_bytes.value)

    @property
    def step_s(self) -> float:
        """Return the seconds of the best candidate's step; of reinforcement learning, of all its phases."""
        return self.rl[0].step_s if self.rl else self.best.predicted.step_s

    @property
    def device_bytes(self) -> float:
        """Return the predicted bytes on the fullest GPU; of reinforcement learning, in the phase with most."""
        return max(phase.bytes for phase in self.rl[0].phases) if self.rl else self.best.predicted.device_bytes

    @property
    def may_not_fit(self) -> bool:
        """Return whether the upper end of the memory interval exceeds the GPU's memory; False without an interval. The
        job's margin does not count: it is there for such errors.
        """
        return self.best.predicted.interval.get("device_bytes", (0.0, 0.0))[1] > self.cluster.gpu.memory_bytes.value

    @property
    def safe_margin(self) -> float:
        """Return the memory margin with which the best candidate fits at the upper end of its device_bytes interval. It
        is 1 - prediction / upper end, rounded up to two decimals; 0 without an interval.
        """
        predicted = self.best.predicted
        _, high = predicted.interval.get("device_bytes", (0.0, predicted.device_bytes))
        return math.ceil(100 * (1 - predicted.device_bytes / high)) / 100 if high else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data with its digests, as it stands in plan.json. The seconds of the search are left
        out, so that equal inputs give equal bytes. history is there unless it is empty, rl and tuned where there are
        any.
        """
        inputs = {"model": self.model, "cluster": self.cluster, "job": self.job}
        search = asdict(self.search)
        del search["seconds"]
        data = {
            "schema": SCHEMA,
            "symconfig": self.symconfig_version,
            "best": self.best.to_dict(),
            "alternatives": [candidate.to_dict() for candidate in self.alternatives],
            "beside": self.beside.to_dict(),
            "search": search,
            "binding": self.binding,
            "inputs": {name: each.model_dump(mode="json", by_alias=True) for name, each in inputs.items()},
        }
        if self.history != History():
            data["history"] = asdict(self.history)
        for name, steps in (("rl", self.rl), ("tuned", self.tuned)):
            if steps:
                data[name] = [each.to_dict() for each in steps]
        return {**data, "digests": {name: digest(value) for name, (_, value) in signed(data).items()}}

    def to_json(self) -> str:
        return json_text(self.to_dict())


def sketch(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, release: str) -> Plan:
    """Return a plan without search and figures: all GPUs are data-parallel, at micro-batch 1, in one stage. release: of
    the framework. gpus `auto` becomes one node, also in the plan's job; precision `auto` or None becomes bf16; the job
    must have a sequence length (AssertionError). Predictions are 0.
    """
    gpus = cluster.gpus_per_node if job.gpus == "auto" else job.gpus
    assert job.seq_length is not None, "the job has no defaults yet"
    precision: Precision = "bf16" if job.precision is None or job.precision == "auto" else job.precision
    ends = *["mtp"] * model.num_nextn_predict_layers, "head"
    kinds = (*model.encoder_kinds, "embedding", *model.layer_kinds, *ends)
    best = Candidate(
        target=Target(job.backend, release),
        configuration=Configuration(
            dp=gpus,
            micro=1,
            global_batch=job.global_batch_size,
            seq_length=job.seq_length,
            zero_stage=1,
            precision=precision,
            moe_dispatcher="alltoall" if model.experts else None,
        ),
        stages=(Stage((kinds,), "none", 0.0),),
        predicted=Predicted(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, {}),
    )
    known = job.model_copy(update={"gpus": gpus})
    return Plan(model, cluster, known, best, (), Search(0, 0, 0.0, False), "nothing was weighed", VERSION)


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of plain data, as hexadecimal. Whole floats count as integers (1.0 as
    1), so that reformatting the JSON keeps the digest.
    """
    text = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOATS:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list | tuple) else value


def signed(data: Mapping[str, Any]) -> dict[str, tuple[KeyPath, Any]]:
    """Return the parts of a plan's plain data that have a digest: name to (key path, value), without those it lacks.
    The value of `search` is without its seconds.
    """
    inputs = data.get("inputs")
    parts: dict[str, tuple[KeyPath, Any]] = {}
    for name in INPUTS:
        if isinstance(inputs, dict) and name in inputs:
            parts[name] = (("inputs", name), inputs[name])
    for name in ("symconfig", *ANSWER, *SOMETIMES):
        if name in data:
            value = data[name]
            if name == "search" and isinstance(value, dict):
                value = {key: inner for key, inner in value.items() if key != "seconds"}
            parts[name] = ((name,), value)
    return parts

"""The job: what to train, on what, how much of it, and what the planner must respect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import BeforeValidator, Field

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import BatchSize, GpuCount, PositiveInt, Rate, Sparse, Strict
from symconfig.descriptor.strict import section as inner_section
from symconfig.descriptor.task import PLAIN, PREFERRING, TASKS, WITH_OR_WITHOUT, Task
from symconfig.descriptor.training import ADAM, Optimizer, Training
from symconfig.descriptor.tuning import LOSSES, LossName, Preference, Rl, Sequences
from symconfig.errors import nearest

Backend = Literal["megatron", "deepspeed", "fsdp"]
PrecisionName = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "auto"]
PIN_NAMES = (
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "zero", "instances", "gtp", "sp", "recompute", "precision",
    "optimizer_offload", "activation_offload", "cp_comm", "layout", "moe_overlap", "user_buffers", "dispatcher",
    "cuda_graphs", "grad_dtype", "fp8_param_gather", "fused_loss", "expert_capacity", "paged_stash", "fp8_attention",
)  # fmt: skip
_ANY_PIN = f"one of {', '.join(PIN_NAMES)}"
# How frameworks' own options for a degree begin: --tensor-model-parallel-size, --micro-batch-size.
_BEGIN = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "data-parallel": "dp",
    "micro": "mbs",
    "recompute": "recompute",
}


def pin_meant(name: str) -> str | None:
    """Return the pin of this name, else the one for a framework option of this name (tensor-model-parallel-size: tp).

    None if there is neither. Case, leading dashes, and `-` for `_` do not matter; of an option only its begin counts.
    """
    words = name.lower().lstrip("-").replace("_", "-")
    known = {pin.replace("_", "-"): pin for pin in PIN_NAMES}
    return known.get(words) or next((pin for begin, pin in _BEGIN.items() if words.startswith(begin)), None)


def section_field(option: str) -> str | None:
    """Return the field of a section of a job that an option names (--updates: rl.updates); None if none or several."""
    leaf = option.lower().lstrip("-").replace("-", "_")
    sections = {name: inner_section(field.annotation) for name, field in Job.model_fields.items()}
    found = [f"{name}.{leaf}" for name, inner in sections.items() if inner and leaf in inner.model_fields]
    return found[0] if len(found) == 1 else None


def _pins(value: Any) -> Any:
    """Return pins with lower-case names and text values: integers become text, text is stripped and in lower case.

    Only a layout other than equal or ends keeps its case. Values of other types, and a `value` that is no dict, are
    returned unchanged, for pydantic to refuse. Raises ValueError for unknown names, with what each may mean.
    """
    if not isinstance(value, dict):
        return value
    names = [str(name).lower() for name in value]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} is pinned twice: upper and lower case are the same")
    value = dict(zip(names, value.values(), strict=True))
    unknown = [name for name in value if name not in PIN_NAMES]
    if unknown:
        need = {name: pin_meant(name) or nearest(name, PIN_NAMES) or _ANY_PIN for name in unknown}
        raise ValueError("; ".join(f"{name} cannot be pinned, need {need[name]}" for name in unknown))
    return {name: _pin(name, item) for name, item in value.items()}


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _pin(name: str, value: Any) -> Any:
    text = str(value) if isinstance(value, int) else value
    cased = not isinstance(text, str) or (name == "layout" and text.lower() not in ("equal", "ends"))
    return text if cased else _lower(text.strip())


class Packing(Strict):
    """Packed sequences: documents of these lengths fill each sequence."""

    lengths: tuple[PositiveInt, ...] = Field(min_length=1)
    weights: tuple[float, ...] | None = Field(default=None, description="share of documents of each length")


ALL_LINEAR, OF_ATTENTION, OF_MLP = TARGET_GROUPS = ("all-linear", "attention", "mlp")


def _listed(value: Any) -> Any:
    """Return a comma-separated text, or a list, as a tuple; other values unchanged."""
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Lora(Strict):
    """Low-rank adapters that the job lays over its model, whose own weights stay frozen."""

    method: Literal["lora", "qlora"] = Field(
        default="lora", description="lora (default), or qlora: the frozen weights in 4 bits"
    )
    r: PositiveInt = Field(default=16, description="their rank (default 16)")
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="their scale times the rank; absent: twice the rank"
    )
    targets: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)] = Field(
        default=(ALL_LINEAR,),
        min_length=1,
        description="all-linear, attention, mlp, or names of modules as Hugging Face has them: q_proj, v_proj, …",
    )
    dropout: Rate = Field(default=0.0, description="before each of them (default 0)")


class Images(Strict):
    """The images among what is trained on, for a model with a vision tower."""

    per_sequence: Annotated[float, Field(ge=0.0, le=1e6)] = Field(
        default=0.0, description="on average; 0: text only, and the tower is not loaded"
    )
    size: PositiveInt | None = Field(
        default=None, description="pixels along a side, where the tower takes any; absent: the model's"
    )
    frozen: Literal["none", "tower", "all"] | None = Field(
        default=None,
        description="the frozen part of the tower: all, or the tower without its projector; absent: as the model says, "
        "and all beside adapters",
    )


class Limits(Strict):
    memory_margin: Annotated[float, Field(ge=0.0, lt=0.9)] = Field(
        default=0.04, description="share of the GPU's memory that a plan must leave free"
    )
    expert_imbalance: Annotated[float, Field(ge=1.0, le=64.0)] | None = Field(
        default=None,
        description="tokens on the busiest expert-parallel rank over the mean, in every layer; absent: steps and the "
        "risk of running out count how uneven routers load ranks; 1: the router is forced to balance",
    )
    memory_risk: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.05, description="probability of running out of memory that a plan may have"
    )

    @property
    def load(self) -> float:
        """Return the tokens on the busiest expert-parallel rank over the mean; 1.0 if the job sets no imbalance."""
        return self.expert_imbalance or 1.0

    def usable_bytes(self, memory_bytes: float) -> float:
        """Return the bytes that a plan may use of a GPU with `memory_bytes`: all but the margin."""
        return memory_bytes * (1 - self.memory_margin)


def _task(value: Any) -> Any:
    """Return the value unchanged. Raises ValueError for the name of an RL algorithm or of a loss, naming its section.

    Other unknown names and other types pass, for pydantic to refuse.
    """
    if not isinstance(value, str) or value in TASKS:
        return value
    if value in get_args(Rl.model_fields["algorithm"].annotation):
        kind, section = "an algorithm of task rl", "rl"
    elif value in LOSSES:
        kind, section = f"a loss of task {LOSSES[cast(LossName, value)].task}", "preference"
    else:
        return value
    raise ValueError(
        f"is {kind}: a section {section} of the job's file has it, see docs/how-to/post-train.md (got {value})"
    )


class Job(Sparse):
    """JOB.yaml. `model` and `cluster` are zoo names or paths (relative to the job's file)."""

    rare: ClassVar[tuple[str, ...]] = ("optimizer", "images", "sequences", "preference", "rl")

    schema_: Literal["symconfig.job/1"] = Field(default="symconfig.job/1", alias="schema")
    model: str = Field(min_length=1, description="zoo name, id of Hugging Face, or path of a descriptor or config.json")
    cluster: str = Field(min_length=1, description="zoo name, or path of a descriptor")
    gpus: GpuCount | Literal["auto"] = Field(description="how many, all of them used; auto: the fewest that fit")
    global_batch_size: BatchSize = Field(description="sequences per optimizer step")
    seq_length: PositiveInt | None = Field(
        default=None, description="tokens; absent: the smaller of the model's and 4096"
    )
    backend: Backend = Field(
        default="megatron", description="megatron, deepspeed or fsdp; absent: megatron, or deepspeed for adapters"
    )
    megatron_version: str = Field(
        default="core_v0.19.0", description="core_v0.12 to core_v0.19, or main; absent: core_v0.19"
    )
    target: Annotated[str | None, BeforeValidator(_lower)] = Field(
        default=None,
        description="the target that must support the plan (`symconfig list targets`); absent: any of its framework",
    )
    task: Annotated[Task | None, BeforeValidator(_task)] = Field(
        default=None,
        description=f"{', '.join(PLAIN)}, or with a section of the job {', '.join(WITH_OR_WITHOUT)}; absent: lora for "
        "adapters, else pretrain",
    )
    precision: PrecisionName | None = Field(
        default=None,
        description="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest; absent: bf16, or fp16 on GPUs without it",
    )
    attention: Literal["flash", "unfused"] | None = Field(
        default=None,
        description="flash, or unfused, which keeps its scores in memory; absent: flash, where the GPU has it",
    )
    optimizer: Optimizer = Field(
        default=ADAM,
        description="adam (default), adam8bit, adafactor, muon or sgd, or a section with its name and settings",
    )
    pins: Annotated[dict[str, str], BeforeValidator(_pins)] = Field(
        default_factory=dict, description="degree -> value, 'a..b', '..b' or 'a..'"
    )
    allow: tuple[str, ...] = Field(default=(), description="experimental options that a plan may use, or all")
    without: tuple[str, ...] = Field(default=(), description="options that the site lacks, as user_buffers,deepep")
    edited: tuple[str, ...] = Field(
        default=(), description="fields of the model that your edited copy of the framework supports"
    )
    packing: Packing | None = None
    lora: Lora | None = Field(
        default=None, description="adapters over the model; absent: its own, or for task lora those of an empty section"
    )
    images: Images | None = Field(default=None, description="absent: text only")
    sequences: Sequences | None = Field(
        default=None, description="lengths of what is tuned on; absent: all of seq_length"
    )
    preference: Preference | None = Field(
        default=None, description="of tasks dpo, kto and reward: answers, and their loss"
    )
    rl: Rl | None = Field(default=None, description="of task rl: what is generated and trained on in a step")
    limits: Limits = Limits()
    training: Training = Training()

    def contradictions(self) -> Iterator[str]:
        """Yield why task, sections and sequence lengths do not go together.

        These are both `rl` and `preference`; a task that needs one of them without it, or another task beside it; each
        is reported alone. And if none of these: `sequences` with `rl`, or packed with `preference`, or with a max above
        seq_length.
        """
        preferring = None if self.preference is None else self.preference.means.task
        if self.rl is not None and preferring is not None:
            yield "preference is of another task than the section rl (got both, need one)"
            return
        for section, of, tasks in (("rl", self.rl and "rl", ("rl",)), ("preference", preferring, PREFERRING)):
            if of is None and self.task in tasks:
                what = f"needs a section {section} in the job's file, see docs/how-to/post-train.md"
                yield f"task {self.task} {what} (got none)"
                return
            if of is not None and self.task != of:
                yield f"task is not that of the section {section} (got {self.task}, need {of}, or nothing)"
                return
        if (lengths := self.sequences) is not None:
            most = lengths.max if self.seq_length is None else self.seq_length
            if self.rl is not None:
                yield "sequences are not given beside the section rl, which has lengths of its own"
            if lengths.batching == "packed" and self.preference is not None:
                yield "sequences.batching is not for answers (got packed, need padded or padding_free)"
            if lengths.max > most:
                yield f"sequences.max is above seq_length (got {lengths.max}, need at most {most})"

    @property
    def wants_adapters(self) -> bool:
        """Return whether the job trains adapters of its own: task lora, or a section lora."""
        return self.task == "lora" or self.lora is not None

    def beyond(self, model: ModelDescriptor) -> int:
        """Return the tokens of the longest sequence or packed document if the model's maximum is below that, else 0."""
        longest = self.seq_length or 0
        if self.packing is not None:
            longest = min(longest, max(self.packing.lengths))
        return longest if longest > model.max_position_embeddings else 0

    def task_of(self, model: ModelDescriptor) -> Task:
        """Return the job's task for this model, pretrain if it states none; lora instead for a model with an adapter.

        Tasks that work with and without adapters (WITH_OR_WITHOUT) stay.
        """
        if model.adapter is None or self.task in WITH_OR_WITHOUT:
            return self.task or "pretrain"
        return "lora"

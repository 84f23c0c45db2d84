"""The job: what to train, on what, how much of it, and what the planner must respect."""

from __future__ import annotations

import difflib
from posixpath import normpath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from symconfig.descriptor.model import Count, PositiveInt, Rate, Strict

Backend = Literal["megatron", "deepspeed"]
Task = Literal["pretrain", "sft", "lora"]
PIN_NAMES = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "mbs",
    "zero",
    "sp",
    "recompute",
    "precision",
    "optimizer_offload",
    "activation_offload",
    "cp_comm",
    "layout",
    "moe_overlap",
    "user_buffers",
    "dispatcher",
    "cuda_graphs",
    "grad_dtype",
    "fp8_param_gather",
    "fused_loss",
)


def _pins(value: Any) -> Any:
    """`tp: 8` and `sp: true` as the text that `--pin tp=8 --pin sp=true` gives; unknown names are errors."""
    if not isinstance(value, dict):
        return value
    unknown = [name for name in value if name not in PIN_NAMES]
    if unknown:
        close = {name: difflib.get_close_matches(str(name), PIN_NAMES, n=1) for name in unknown}
        raise ValueError(
            "; ".join(f"{name} cannot be pinned, need one of {', '.join(close[name] or PIN_NAMES)}" for name in unknown)
        )
    return {name: str(item).lower() if isinstance(item, int) else item for name, item in value.items()}


class Packing(Strict):
    """Packed sequences: documents of these lengths fill each sequence."""

    lengths: tuple[PositiveInt, ...] = Field(min_length=1)
    weights: tuple[float, ...] | None = Field(default=None, description="share of documents of each length")


ALL_LINEAR, OF_ATTENTION, OF_MLP = TARGET_GROUPS = ("all-linear", "attention", "mlp")


def _listed(value: Any) -> Any:
    """`q_proj,v_proj` as the list that it is."""
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class Lora(Strict):
    """Low-rank adapters that the job lays over its model, whose own weights stay frozen."""

    method: Literal["lora", "qlora"] = Field(default="lora", description="qlora: the frozen weights in 4 bits")
    r: PositiveInt = 16
    alpha: Annotated[float, Field(gt=0)] | None = Field(default=None, description="absent: twice r")
    targets: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)] = Field(
        default=(ALL_LINEAR,),
        min_length=1,
        description="all-linear, attention, mlp, or names of modules as Hugging Face has them: q_proj, v_proj, …",
    )
    dropout: Rate = 0.0


class Limits(Strict):
    memory_margin: Annotated[float, Field(ge=0.0, lt=0.9)] = Field(
        default=0.04, description="share of the GPU's memory that a plan must leave free"
    )
    expert_imbalance: Annotated[float, Field(ge=1.0, le=64.0)] = Field(
        default=1.0, description="tokens on the busiest expert-parallel rank over the mean"
    )
    memory_risk: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.05, description="probability of running out of memory that a plan may have"
    )

    def usable_bytes(self, memory_bytes: float) -> float:
        """What a plan may take of a GPU with this much memory."""
        return memory_bytes * (1 - self.memory_margin)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Training(Strict):
    """What the planner passes on and never decides."""

    lr: Annotated[float, Field(gt=0)] = 3.0e-4
    min_lr: Annotated[float, Field(ge=0)] = 3.0e-5
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    lr_warmup_iters: Count = 100
    lr_decay_iters: PositiveInt | None = None
    lr_wsd_decay_iters: PositiveInt | None = Field(
        default=None, description="iterations of the decay that ends WSD; absent: a tenth of lr_decay_iters"
    )
    train_iters: PositiveInt = 1000
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_eps: Annotated[float, Field(gt=0)] = 1.0e-8
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    seed: Count = 1234
    tokenizer_type: str | None = Field(
        default=None, description="Megatron's name; absent: HuggingFaceTokenizer with real data"
    )
    tokenizer_model: str | None = None
    data_path: tuple[str, ...] = ()
    split: str = "949,50,1"
    hf_weights: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Hugging Face id or folder to start from; absent: for sft and lora the model's own, else random",
    )
    save: str | None = None
    load: str | None = None
    save_interval: PositiveInt = 500
    eval_interval: PositiveInt = 1000
    eval_iters: Count = 0
    log_interval: PositiveInt = 1

    @property
    def wsd_decay_iters(self) -> int:
        """Iterations of the decay behind WSD's stable phase: Megatron-LM demands a number; a tenth is common."""
        return self.lr_wsd_decay_iters or max(1, (self.lr_decay_iters or self.train_iters) // 10)

    @property
    def blended(self) -> bool:
        """Whether data_path has weights and prefixes in turn, as Megatron-LM reads it (core/datasets/utils.py,
        get_blend_from_list)."""
        paths = self.data_path
        return bool(paths) and len(paths) % 2 == 0 and all(map(_is_number, paths[::2]))

    @property
    def loads_its_own(self) -> bool:
        """Whether it goes on from what it saved itself, and starts where there is nothing yet."""
        return None not in (self.load, self.save) and normpath(str(self.load)) == normpath(str(self.save))


class Job(Strict):
    """JOB.yaml. `model` and `cluster` are zoo names or paths (relative to the job's file)."""

    schema_: Literal["symconfig.job/1"] = Field(default="symconfig.job/1", alias="schema")
    model: str = Field(min_length=1)
    cluster: str = Field(min_length=1)
    gpus: PositiveInt | Literal["auto"]
    global_batch_size: PositiveInt
    seq_length: PositiveInt | None = Field(
        default=None, description="tokens; absent: the smaller of the model's and 4096"
    )
    backend: Backend = Field(default="megatron", description="absent: megatron, or deepspeed for adapters")
    megatron_version: str = "core_v0.19.0"
    target: str | None = Field(
        default=None, description="a format that the plan must be told in; absent: any that its framework can"
    )
    task: Task | None = Field(default=None, description="absent: lora for adapters, else pretrain")
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "auto"] | None = Field(
        default=None, description="absent: bf16, or fp16 where the GPU has no bf16; auto: the fastest that the GPU has"
    )
    attention: Literal["flash", "unfused"] | None = Field(
        default=None, description="the kernel; unfused keeps its scores in memory. Absent: flash, where the GPU has it"
    )
    objective: Literal["time", "symtensor"] = "time"
    pins: Annotated[dict[str, str], BeforeValidator(_pins)] = Field(
        default_factory=dict, description="degree -> value, 'a..b', '..b' or 'a..'"
    )
    allow: tuple[str, ...] = Field(
        default=(),
        description="options that are not stable and that a plan may use, or all",
    )
    without: tuple[str, ...] = Field(default=(), description="options that the site lacks")
    edited: tuple[str, ...] = Field(
        default=(), description="fields of the model that your copy of the framework was changed to know"
    )
    packing: Packing | None = None
    lora: Lora | None = Field(
        default=None, description="adapters over the model; absent: its own, or for task lora those of an empty section"
    )
    limits: Limits = Limits()
    training: Training = Training()

    @property
    def wants_adapters(self) -> bool:
        """Whether it trains adapters, also over a model that has none of its own."""
        return self.task == "lora" or self.lora is not None

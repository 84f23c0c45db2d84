"""The schema symconfig.measurements/1: published runs with what was measured; an absent key was not stated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.strict import BatchSize, Count, GpuCount, PositiveInt, Strict, validate
from symconfig.descriptor.task import Task
from symconfig.errors import Problems

Positive = Annotated[float, Field(gt=0)]
Precision = Annotated[
    Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"],
    BeforeValidator(lambda word: word.lower() if isinstance(word, str) else word),
]
Degree = Literal["tp", "pp", "vpp", "cp", "ep", "etp", "dp"]


class MeasuredModel(Strict):
    """Key names of Hugging Face, plus gated_mlp, position, norm, attention and first_k_dense."""

    name: str
    num_hidden_layers: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    intermediate_size: Count | None = None
    num_attention_heads: PositiveInt | None = None
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    vocab_size: PositiveInt | None = None
    num_experts: PositiveInt | None = None
    num_experts_per_tok: PositiveInt | None = None
    moe_intermediate_size: PositiveInt | None = None
    shared_expert_intermediate_size: Count | None = None
    first_k_dense: Count | None = None
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt | None = None
    qk_nope_head_dim: PositiveInt | None = None
    qk_rope_head_dim: PositiveInt | None = None
    v_head_dim: PositiveInt | None = None
    mtp_num_layers: Count | None = None
    params: PositiveInt | None = None
    gated_mlp: bool | None = None
    tie_word_embeddings: bool | None = None
    position: Literal["rope", "learned", "alibi"] | None = None
    norm: Literal["rmsnorm", "layernorm"] | None = None
    attention: Literal["gqa", "mla"] = "gqa"
    lora: dict[str, Any] | None = None


class MeasuredCluster(Strict):
    """`gpu` has one spelling per product; memory_gib is the nominal size."""

    gpu: str | None = None
    gpus: GpuCount | None = None
    gpus_per_node: PositiveInt | None = None
    memory_gib: PositiveInt | None = None
    nvlink_domain: PositiveInt | None = None
    power_w: PositiveInt | None = None
    intra_node: str | None = None
    inter_node: str | None = None
    system: str | None = None


class Software(Strict):
    """The software that ran it."""

    name: str
    version: str | None = None


class MeasuredBatch(Strict):
    """Sequences and tokens."""

    micro: BatchSize | None = None
    global_: BatchSize | None = Field(default=None, alias="global")
    grad_accum: BatchSize | None = None
    seq_length: PositiveInt | None = None


class MeasuredOptions(Strict):
    """Options as stated. Those that change a prediction have a type, others are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    precision: Precision | None = None
    sequence_parallel: bool | None = None
    recompute: str | None = None
    recompute_layers: PositiveInt | None = None
    zero_stage: Literal[0, 1, 2, 3] | None = None
    distributed_optimizer: bool | None = None
    fsdp: bool | str | None = None
    attention_kernel: str | None = None
    fused_rmsnorm: bool | None = None
    overlap: dict[str, bool] | None = None
    megatron_args: dict[str, Any] | None = None


class Measured(Strict):
    """The figures that a source prints. `oom`: the run ended out of memory.

    stage_*_ms: one GPU's own work without a network: a microbatch forward and backward through its pipeline `stage`
    (from 0), and one optimizer step.
    """

    step_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    tokens_per_s: Positive | None = None
    samples_per_s_per_gpu: Positive | None = None
    tflops_per_gpu: Positive | None = None
    hardware_tflops_per_gpu: Positive | None = None
    mfu: Positive | None = None
    hfu: Positive | None = None
    layer_forward_ms: Positive | None = None
    layer_backward_ms: Positive | None = None
    stage: Count | None = None
    stage_forward_ms: Positive | None = None
    stage_backward_ms: Positive | None = None
    stage_optimizer_ms: Positive | None = None
    peak_allocated_gib: Positive | None = None
    peak_reserved_gib: Positive | None = None
    allocated_after_step_gib: Positive | None = None
    peak_allocated_gib_by_rank: tuple[Positive, ...] | None = None
    peak_reserved_gib_by_rank: tuple[Positive, ...] | None = None
    device_used_gib: Positive | None = None
    device_used_gb: Positive | None = None
    memory_gb: Positive | None = None
    model_states_mib_first_rank: Positive | None = None
    activation_mib_first_rank: Positive | None = None
    activation_peak_mib_first_rank: Positive | None = None
    model_states_mib_last_rank: Positive | None = None
    activation_mib_last_rank: Positive | None = None
    activation_peak_mib_last_rank: Positive | None = None
    oom: Literal[True] | None = None
    memory_rank: Literal["last", "max", 0] | None = None


class Derived(Strict):
    """Computed from what is measured."""

    step_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    tflops_per_gpu: Positive | None = None
    mfu: Positive | None = None


class Row(Strict):
    """One run. Rows of one `sweep` differ in the plan only, so they can be ranked.

    parallel: tp * pp * cp * dp = gpus; ep lies inside dp * cp * tp.
    """

    id: str = Field(min_length=1)
    sweep: str | None = None
    task: Task
    model: MeasuredModel
    cluster: MeasuredCluster = MeasuredCluster()
    software: Software | None = None
    parallel: dict[Degree, PositiveInt] = Field(default_factory=dict)
    batch: MeasuredBatch = MeasuredBatch()
    options: MeasuredOptions = MeasuredOptions()
    measured: Measured
    derived: Derived = Derived()
    confidence: Literal["exact", "derived"]
    peer: dict[str, Any] | None = None
    note: str | None = None


class Measurements(Strict):
    """One public source. `validated` false: targets, not runs."""

    schema_: Literal["symconfig.measurements/1"] = Field(alias="schema")
    validated: bool = Field(default=True, alias="validate")
    source: dict[str, Any]
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...]


def load_measurements(path: Path) -> Measurements:
    """Load a YAML file of measurements.

    Raises InputError for invalid fields; if there are none, with a problem for each id that occurs again, or if the
    file has no rows.
    """
    document = load_yaml_strict(path)
    measurements = validate(document, Measurements)
    first: dict[str, int] = {}
    problems = Problems()
    for index, row in enumerate(measurements.rows):
        if first.setdefault(row.id, index) != index:
            place = document.place(("rows", first[row.id], "id"))
            before = f", first on line {place.line}" if place else ""
            problems.add(document.problem(f"this id stands twice{before}", ("rows", index, "id"), got=row.id))
    if not measurements.rows:
        problems.add(document.problem("holds no rows", ("rows",), need="at least one measured run"))
    problems.check()
    return measurements

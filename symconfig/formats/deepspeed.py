"""DeepSpeed's JSON: each key with what a plan says by it, and with the Trainer's arguments that fill "auto" in.

Keys, defaults and limits are those of DeepSpeed 0.19.8 (`deepspeed/runtime/config.py`, `runtime/zero/config.py`), and
the Trainer's those of Transformers 5.23 (`integrations/deepspeed.py`, HfTrainerDeepSpeedConfig; `training_args.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from symconfig.cost.stages import Offload
from symconfig.descriptor.document import KeyPath
from symconfig.format import nested
from symconfig.formats.links import value_of
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO, TRAIN, ZERO
from symconfig.plans.configuration import ZERO_STAGES, Precision, ZeroStage
from symconfig.plans.plan import Plan

Json = dict[str, Any]
# Elements. Below this, a collective over many ranks is latency; at twice it (overlap) the buffers stay under 1 GiB.
MIN_BUCKET = 50_000_000
MAX_BUCKET = 200_000_000
SUB_GROUP = 1_000_000_000  # DeepSpeed's default: elements of one optimizer tile at stage 3
TILES = 64  # of a rank's optimizer state when a share of it is offloaded
MIN_LIVE = 100_000_000
PREFETCH = 50_000_000  # elements, DeepSpeed's default
LEARNING_RATE, BETAS = 5e-5, (0.9, 0.999)  # the Trainer's


@dataclass(frozen=True, slots=True)
class Key:
    """A key of DeepSpeed's JSON, or a section that is written as a whole.

    name: the path with dots. write: the value, or a function of the plan that returns it; None: left out; by default
    the value of `field`. field: the field of a plan's candidate that the key sets, perhaps with other keys. stages: the
    ZeRO stages at which it is written. arguments: the Trainer's arguments for it, then those of other programs;
    default: the value without them. sized: the Trainer's value by hidden size, unless the plan's is 0, which is kept.
    """

    name: str
    write: Callable[[Plan], Any] | bool | None = None
    _: KW_ONLY
    field: str = ""
    stages: str = "0123"
    arguments: tuple[str, ...] = ()
    default: Any = None
    sized: Callable[[int], int] | None = None

    @property
    def path(self) -> KeyPath:
        return tuple(self.name.split("."))

    def value(self, plan: Plan) -> Any:
        if self.write is None:
            return value_of(plan.best.configuration, self.field) if self.field else None
        return self.write(plan) if callable(self.write) else self.write


def write(plan: Plan, auto: bool = False) -> Json:
    """Return the DeepSpeed JSON of a plan as nested dicts, with the keys of its ZeRO stage that have a value.

    auto: write "auto" for keys with `arguments` of the Trainer or a nonzero `sized`, and for train_batch_size.
    """
    stage = str(plan.best.configuration.zero_stage)
    values = {key: value for key in KEYS if stage in key.stages and (value := key.value(plan)) is not None}
    filled = {key.name for key, value in values.items() if key.arguments or (key.sized and value) or key.name == TRAIN}
    return nested({key.name: AUTO if auto and key.name in filled else value for key, value in values.items()})


def own_optimizer(plan: Plan) -> bool:
    """Return whether the JSON has an optimizer: for Adam, but not with a separate reference model (no adapter)."""
    preference = plan.job.preference
    copied = preference is not None and preference.has_reference and plan.model.adapter is None
    return plan.job.optimizer.name == "adam" and not copied


def train_batch_size(plan: Plan) -> int:
    """Return train_batch_size as DeepSpeed counts it: micro batch x accumulation x dp x tp, as AutoTP ranks count."""
    batch, parallel = plan.best.configuration, plan.best.configuration
    return batch.micro * batch.num_microbatches * parallel.dp * parallel.tp


def _optimizer(name: str, value: Callable[[Plan], Any], **more: Any) -> Key:
    return Key(f"optimizer.{name}", lambda plan: value(plan) if own_optimizer(plan) else None, **more)


def _precision(name: Precision) -> Key:
    return Key(f"{name}.enabled", lambda plan: plan.best.configuration.precision == name or None, field="precision",
               arguments=(name,), default=False)  # fmt: skip


def _above_one(name: str, degree: str) -> Key:
    return Key(name, lambda plan: n if (n := value_of(plan.best.configuration, degree)) > 1 else None, field=degree)


def _experts(plan: Plan) -> Json | None:
    ep = plan.best.configuration.ep
    return {"enabled": True, "autoep_size": ep, "preset_model": plan.model.model_type} if ep > 1 else None


def _bucket(plan: Plan) -> int:
    return min(max(plan.model.hidden_size**2, MIN_BUCKET), MAX_BUCKET)


def _offloaded(plan: Plan) -> Json | None:
    share = plan.best.configuration.optimizer_offload
    return {"device": "cpu", "pin_memory": True, **({"ratio": share} if share < 1 else {})} if share else None


def _live(plan: Plan) -> int:
    layer = _largest_layer(plan)
    return max(2 * layer, layer + plan.model.vocab_size * plan.model.hidden_size, MIN_LIVE)


def _sub_group(plan: Plan) -> int:
    """Return `sub_group_size`, the elements of one optimizer tile at stage 3.

    DeepSpeed's default unless a share of the optimizer is offloaded; then a 64th of a rank's trained weights, as
    `ratio` is one of tiles (`runtime/zero/stage3.py`, 0.19.8).
    """
    if not 0 < plan.best.configuration.optimizer_offload < 1:
        return SUB_GROUP
    model, parallel = plan.model, plan.best.configuration
    trained = model.num_hidden_layers * _largest_layer(plan) + 2 * model.vocab_size * model.hidden_size
    if model.adapter is not None:
        trained = trained * 2 * model.adapter.r // model.hidden_size
    return max(trained // (parallel.tp * parallel.cp * parallel.dp) // TILES, 1)


def _largest_layer(plan: Plan) -> int:
    """Return the number of weights of a layer's attention and MLP matrices on one rank; tp divides nothing.

    Of a model with experts the larger of dense MLP and experts (routed ones / ep, and shared) counts.
    """
    model, hidden, heads = plan.model, plan.model.hidden_size, plan.model.num_attention_heads
    if (latent := model.latent) is not None:
        rank = latent.q_lora_rank or hidden
        attention = (
            hidden * rank
            + rank * heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
            + hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim)
            + latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
            + heads * latent.v_head_dim * hidden
        )
    else:
        attention = hidden * model.head_dim * 2 * (heads + model.num_key_value_heads)
    width = model.intermediate_size
    if (experts := model.experts) is not None:
        routed = experts.num_experts * experts.moe_intermediate_size // plan.best.configuration.ep
        width = max(width, routed + experts.shared_expert_intermediate_size)
    return attention + (3 if model.gated_mlp else 2) * hidden * width


KEYS: tuple[Key, ...] = (
    Key(TRAIN, train_batch_size, field="batch"),
    Key(MICRO, lambda p: p.best.configuration.micro, field="batch", default=8,
        arguments=("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size")),
    Key(ACCUMULATION, lambda p: p.best.configuration.num_microbatches, field="batch", default=1,
        arguments=(ACCUMULATION,)),
    Key("gradient_clipping", lambda p: p.training.clip_grad, arguments=("max_grad_norm",), default=1.0),
    Key("steps_per_print", lambda p: max(100, p.training.log_interval)),
    Key("wall_clock_breakdown", False),
    Key(f"{ZERO}.stage", field="zero_stage"),
    Key(f"{ZERO}.overlap_comm", field="overlap_grad_reduce", stages="123"),
    Key(f"{ZERO}.contiguous_gradients", True, stages="123"),
    Key(f"{ZERO}.reduce_scatter", True, stages="123"),
    Key(f"{ZERO}.reduce_bucket_size", _bucket, stages="123", sized=lambda hidden: hidden * hidden),
    Key(f"{ZERO}.allgather_partitions", True, stages="12"),
    Key(f"{ZERO}.allgather_bucket_size", _bucket, stages="12"),
    # Ranks copy different gradients to the host at the same time.
    Key(f"{ZERO}.round_robin_gradients", lambda p: p.best.configuration.optimizer_offload > 0 or None, stages="12"),
    Key(f"{ZERO}.stage3_prefetch_bucket_size", stages="3", sized=lambda hidden: int(0.9 * hidden * hidden),
        write=lambda p: p.model.hidden_size**2 * 9 // 10 if p.best.configuration.overlap_param_gather else 0),
    Key(f"{ZERO}.stage3_param_persistence_threshold", lambda p: 10 * p.model.hidden_size, stages="3",
        sized=lambda hidden: 10 * hidden),
    Key(f"{ZERO}.stage3_max_live_parameters", _live, stages="3"),
    Key(f"{ZERO}.stage3_max_reuse_distance", _live, stages="3"),
    Key(f"{ZERO}.sub_group_size", _sub_group, stages="3"),
    Key(f"{ZERO}.stage3_gather_16bit_weights_on_model_save", True, stages="3"),
    Key(f"{ZERO}.offload_optimizer", _offloaded, field="optimizer_offload", stages="123"),
    Key(f"{ZERO}.offload_param", field="param_offload", stages="123",
        write=lambda p: {"device": "cpu", "pin_memory": True} if p.best.configuration.param_offload else None),
    _optimizer("type", lambda p: "AdamW"),
    _optimizer("params.lr", lambda p: p.training.lr, arguments=("learning_rate",), default=LEARNING_RATE),
    _optimizer("params.betas", lambda p: [p.training.adam_beta1, p.training.adam_beta2],
               arguments=("adam_beta1", "adam_beta2"), default=BETAS),
    _optimizer("params.eps", lambda p: p.training.adam_eps, arguments=("adam_epsilon",), default=1e-8),
    _optimizer("params.weight_decay", lambda p: p.training.weight_decay, arguments=("weight_decay",), default=0.0),
    _optimizer("params.torch_adam", lambda p: not p.best.configuration.optimizer_offload or None),
    _optimizer("params.fused", lambda p: not p.best.configuration.optimizer_offload or None),
    Key("zero_allow_untested_optimizer", lambda p: not own_optimizer(p) or None),
    Key("scheduler.params.warmup_min_lr", default=0),
    Key("scheduler.params.warmup_max_lr", arguments=("learning_rate",), default=LEARNING_RATE),
    _precision("bf16"),
    _precision("fp16"),
    *(Key(f"fp16.{name}", lambda p, value=value: value if p.best.configuration.precision == "fp16" else None)  # type: ignore[misc]
      for name, value in {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
                          "min_loss_scale": 1}.items()),
    Key("data_types.grad_accum_dtype", field="grad_bytes", stages="123",
        write=lambda p: "fp32" if p.best.configuration.grad_bytes == 4 else p.best.configuration.precision),
    _above_one("tensor_parallel.autotp_size", "tp"),
    _above_one("sequence_parallel_size", "cp"),
    Key("expert_parallel", _experts, field="ep"),
)  # fmt: skip
BY_PATH: Mapping[KeyPath, Key] = {key.path: key for key in KEYS}


@dataclass(frozen=True, slots=True)
class Zero:
    """The section zero_optimization, with DeepSpeed's defaults.

    offload: shares of the optimizer state, and whether weights, are on the host. overlap: the reduction of gradients
    overlaps with the backward pass. prefetch: stage 3 gathers weights ahead of use. scatters: stages 1 and 2 reduce
    each gradient to its owner only.
    """

    stage: ZeroStage = 0
    offload: Offload = field(default_factory=Offload)
    overlap: bool = False
    prefetch: bool = True
    scatters: bool = False


def stage_of(config: Any) -> ZeroStage:
    """Return the ZeRO stage, also of "2", true and `zero_optimization: true` (1); 0 if none, or no such, is given."""
    if isinstance(config, dict) and config.get(ZERO) is True:
        return 1  # how the first releases switched it on
    value = section(config, ZERO).get("stage", 0)
    return next((stage for stage in ZERO_STAGES if value in (stage, str(stage))), 0)


def zero_of(config: Any) -> Zero:
    """Return the ZeRO settings of a DeepSpeed JSON, with defaults for what it lacks; old names of keys count, too.

    The optimizer is offloaded from stage 1 on, by `ratio`; weights only at stage 3, which also overlaps by default.
    """
    zero, stage = section(config, ZERO), stage_of(config)
    optimizer = zero.get("offload_optimizer")
    if zero.get("cpu_offload") is True and not optimizer:
        optimizer = {"device": "cpu"}
    ratio = section(zero, "offload_optimizer").get("ratio", 1.0) if _on(optimizer) and stage else 0.0
    overlap = zero.get("overlap_comm")
    return Zero(
        stage,
        Offload(
            float(ratio) if isinstance(ratio, (int, float)) else 1.0,
            stage == 3 and (_on(zero.get("offload_param")) or zero.get("cpu_offload_param") is True),
        ),
        stage == 3 if not isinstance(overlap, bool) else overlap,
        zero.get("stage3_prefetch_bucket_size", zero.get("prefetch_bucket_size", PREFETCH)) != 0,
        zero.get("reduce_scatter") is not False and zero.get("use_multi_rank_bucket_allreduce") is False,
    )


def gradient_bytes_of(config: Any) -> int:
    """Return the bytes per accumulated gradient: 4 if data_types says fp32, else 2."""
    return 4 if section(config, "data_types").get("grad_accum_dtype") in ("fp32", "float32", "float") else 2


def section(config: Any, name: str) -> Json:
    """Return an object of the JSON by key; {} where there is none."""
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}


def precision_of(config: Any) -> Precision | None:
    """Return "bf16" if it (or its old key bfloat16) has `enabled: true`, else "fp16" if that has; None if neither."""

    def on(key: str) -> bool:
        return section(config, key).get("enabled") is True

    return "bf16" if on("bf16") or on("bfloat16") else "fp16" if on("fp16") else None


def _on(device: Any) -> bool:
    return isinstance(device, dict) and device.get("device", "none") not in ("none", AUTO)

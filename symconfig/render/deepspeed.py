"""The DeepSpeed target: plan -> ds_config.json in two flavours, a training script, its launchers.

Keys, defaults and limits are those of DeepSpeed 0.19.8 (`deepspeed/runtime/config.py`, `runtime/zero/config.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.format import json_text
from symconfig.frameworks import counting
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed_launch, going_on, monitors
from symconfig.render.deepspeed_limits import data_problems, refuse
from symconfig.render.files import File
from symconfig.render.trainer_optimizer import generated_script, own_optimizer
from symconfig.render.unsaid import Saving

NAME = "deepspeed"
DOES = 'DeepSpeed\'s JSON, native and with "auto", a training script for it, launch.sh'
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.RENUMBERED
goes_on = going_on.launched
SAVING = Saving("--save", "SAVE=DIR bash launch.sh")
UNSAID = {
    "eval_iters": "train.py does not evaluate",
    "split": "train.py trains on all of its files",
    "manual_gc_interval": "train.py leaves garbage collection to Python",
    "tokenizer_type": "train.py takes Hugging Face's tokenizers",
}

Json = dict[str, Any]

TRAIN = "the generated training script"  # train.py

# Elements. Below this, a collective over many ranks is latency; at twice it (overlap) the buffers stay under 1 GiB.
MIN_BUCKET = 50_000_000
MAX_BUCKET = 200_000_000
SUB_GROUP = 1_000_000_000  # DeepSpeed's default: elements of one optimizer tile at stage 3
TILES = 64  # of a rank's optimizer state when a share of it is offloaded
MIN_LIVE = 100_000_000


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what DeepSpeed cannot run."""
    refuse(plan, *data_problems(plan, TRAIN), *generated_script(plan))
    return deepspeed_launch.variables(plan)


def texts(plan: Plan) -> Iterator[File]:
    """Yield the JSON in its two flavours, and what surrounds it."""
    yield File("ds_config.json", _text(config(plan)))
    yield File("ds_config_hf.json", _text(config_auto(plan)))
    yield from deepspeed_launch.texts(plan)


def words(plan: Plan) -> list[str]:
    """Return what train.py is given beside the JSON. Raises InfeasibleError for what DeepSpeed cannot run."""
    refuse(plan, *data_problems(plan, TRAIN), *generated_script(plan))
    return [word for group in deepspeed_launch.arguments(plan).values() for word in group]


def config(plan: Plan) -> Json:
    """Return ds_config.json with native numbers: integers are integers, and nothing is left to a default that
    matters.
    """
    refuse(plan)
    batch, training, options = plan.best.batch, plan.training, plan.best.options
    data: Json = {
        "train_batch_size": train_batch_size(plan),
        "train_micro_batch_size_per_gpu": batch.micro,
        "gradient_accumulation_steps": batch.num_microbatches,
        "gradient_clipping": training.clip_grad,
        "steps_per_print": max(100, training.log_interval),
        "wall_clock_breakdown": False,
        "zero_optimization": zero(plan),
        **_optimizer(plan),
    }
    if options.precision == "fp16":
        data["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    else:
        data["bf16"] = {"enabled": True}
    if options.zero_stage > 0:
        data["data_types"] = {"grad_accum_dtype": "fp32" if options.grad_bytes == 4 else options.precision}
    data.update(_parallel(plan))
    return data | monitors.deepspeed_sections(plan)


def config_auto(plan: Plan) -> Json:
    """Return the flavour for Transformers' Trainer: "auto" wherever it fills the value in from TrainingArguments.

    It fills hidden-size based buckets, but not `allgather_bucket_size`, which therefore stays a number
    (`transformers/integrations/deepspeed.py`, 5.23).
    """
    data = config(plan)
    for key in monitors.deepspeed_sections(plan):  # Trainer has callbacks of its own
        del data[key]
    for key in (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    ):
        data[key] = "auto"
    precision = "fp16" if "fp16" in data else "bf16"
    data[precision]["enabled"] = "auto"
    for key in ("lr", "betas", "eps", "weight_decay") if own_optimizer(plan) else ():
        data["optimizer"]["params"][key] = "auto"
    section = data["zero_optimization"]
    for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
        if section.get(key):  # 0 is a choice: nothing is gathered ahead
            section[key] = "auto"
    return data


def train_batch_size(plan: Plan) -> int:
    """Return the batch as DeepSpeed counts it: AutoTP ranks are data ranks, Ulysses ranks are not."""
    batch, parallel = plan.best.batch, plan.best.parallel
    return batch.micro * batch.num_microbatches * parallel.dp * parallel.tp


def zero(plan: Plan) -> Json:
    """Return the section zero_optimization."""
    options, hidden = plan.best.options, plan.model.hidden_size
    stage = options.zero_stage
    if stage == 0:
        return {"stage": 0}
    bucket = min(max(hidden * hidden, MIN_BUCKET), MAX_BUCKET)
    section: Json = {
        "stage": stage,
        "overlap_comm": options.overlap.grad_reduce,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    if stage < 3:
        section["allgather_partitions"] = True
        section["allgather_bucket_size"] = bucket
        if options.optimizer_offload:
            section["round_robin_gradients"] = True  # ranks copy different gradients to the host at the same time
    else:
        model = plan.model
        layer = _largest_layer(plan)
        live = max(2 * layer, layer + model.vocab_size * model.hidden_size, MIN_LIVE)
        section |= {
            "stage3_prefetch_bucket_size": hidden * hidden * 9 // 10 if options.overlap.param_gather else 0,
            "stage3_param_persistence_threshold": 10 * hidden,
            "stage3_max_live_parameters": live,
            "stage3_max_reuse_distance": live,
            "sub_group_size": sub_group_elements(plan),
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if options.optimizer_offload:
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if options.optimizer_offload < 1:
            section["offload_optimizer"]["ratio"] = options.optimizer_offload
    if options.param_offload:
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    return section


def sub_group_elements(plan: Plan) -> int:
    """Return the elements of one optimizer tile at stage 3: DeepSpeed's default, but many tiles where a share is
    offloaded.

    `ratio` is a share of a rank's tiles, not of its elements: with one tile nothing or all would move
    (`runtime/zero/stage3.py`, 0.19.8, `subgroup_to_device`).
    """
    if not 0 < plan.best.options.optimizer_offload < 1:
        return SUB_GROUP
    model, parallel = plan.model, plan.best.parallel
    trained = model.num_hidden_layers * _largest_layer(plan) + 2 * model.vocab_size * model.hidden_size
    if model.adapter is not None:
        trained = trained * 2 * model.adapter.r // model.hidden_size
    return max(trained // (parallel.tp * parallel.cp * parallel.dp) // TILES, 1)


def _largest_layer(plan: Plan) -> int:
    """Return the elements of the matrices of the largest layer on one rank, experts over ep."""
    model, parallel = plan.model, plan.best.parallel
    hidden, matrices = model.hidden_size, 3 if model.gated_mlp else 2
    if model.latent is not None:
        latent = model.latent
        query = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        rank = latent.q_lora_rank or hidden
        attention = (
            hidden * rank
            + rank * model.num_attention_heads * query
            + hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim)
            + latent.kv_lora_rank * model.num_attention_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
            + model.num_attention_heads * latent.v_head_dim * hidden
        )
    else:
        heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
        attention = hidden * model.head_dim * heads
    widths = [model.intermediate_size]
    if model.experts is not None:
        widths.append(
            model.experts.num_experts * model.experts.moe_intermediate_size // parallel.ep
            + model.experts.shared_expert_intermediate_size
        )
    return attention + matrices * hidden * max(widths)


def _optimizer(plan: Plan) -> Json:
    """Return the optimizer that DeepSpeed makes, or its leave to run another one."""
    if own_optimizer(plan):
        training = plan.training
        params: Json = {
            "lr": training.lr,
            "betas": [training.adam_beta1, training.adam_beta2],
            "eps": training.adam_eps,
            "weight_decay": training.weight_decay,
        }
        if not plan.best.options.optimizer_offload:
            params |= {"torch_adam": True, "fused": True}
        return {"optimizer": {"type": "AdamW", "params": params}}
    return {"zero_allow_untested_optimizer": True}


def _parallel(plan: Plan) -> Json:
    parallel = plan.best.parallel
    data: Json = {}
    if parallel.tp > 1:
        data["tensor_parallel"] = {"autotp_size": parallel.tp}
    if parallel.cp > 1:
        data["sequence_parallel_size"] = parallel.cp
    if parallel.ep > 1:
        data["expert_parallel"] = {"enabled": True, "autoep_size": parallel.ep, "preset_model": plan.model.model_type}
    return data


def _text(data: Json) -> str:
    return json_text(data)

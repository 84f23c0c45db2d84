"""What the keys of Megatron-LM's YAML, Megatron-Bridge and NeMo 2 mean, as destinations of Megatron-LM's parser.

A key is looked up by the longest tail of its path that is here: "optim.name" before "name". A key that is nowhere here
and is itself a destination means that one. Sources: Megatron-LM megatron/training/yaml_arguments.py and
core_transformer_config_from_args in megatron/training/arguments.py; Megatron-Bridge training/{config,mixed_precision,
comm_overlap}.py; NeMo 2 lightning/pytorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.dialects.entry import Entry

Meaning: TypeAlias = tuple[str, Any]  # a destination and its value
Neighbours: TypeAlias = Callable[[str], Any]  # the value of a key in the same section
AS_WRITTEN = object()  # the value is what the words of the entry say

RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "sequence_parallelism": "sequence_parallel",
    "data.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "dataset.seq_length": "seq_length",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "rope_scaling": "use_rope_scaling",
    "ddp.bucket_size": "ddp_bucket_size",
    "ddp.average_in_collective": "ddp_average_in_collective",
    "lr_scheduler.warmup_steps": "lr_warmup_iters",
    "trainer.max_steps": "train_iters",
    "trainer.gradient_clip_val": "clip_grad",
    "trainer.val_check_interval": "eval_interval",
    "trainer.limit_val_batches": "eval_iters",
    "trainer.log_every_n_steps": "log_interval",
    "data.splits_string": "split",
    "tokenizer.model": "tokenizer_model",
    # Said by another key beside it, by World, or always so in Megatron-LM.
    **dict.fromkeys(
        words(
            """
            trainer.devices trainer.num_nodes params_dtype pipeline_dtype autocast_dtype enable_autocast
            autocast_enabled pre_process post_process gated_linear_unit _target_ cpu_offloading
            """
        ),
        "",
    ),
}
NEGATED = {  # true here is false there
    "share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
    "persist_layer_norm": "no_persist_layer_norm",
}
CHOICES: dict[str, dict[str, tuple[Meaning, ...]]] = {
    "normalization": {
        "rmsnorm": (("normalization", "RMSNorm"),),
        "layernorm": (("normalization", "LayerNorm"),),
    },
    # Megatron-LM reduces in fp32 with bf16, unless it is told otherwise.
    "grad_reduce_in_fp32": {
        "true": (("accumulate_allreduce_grads_in_fp32", True),),
        "false": (("grad_reduce_in_bf16", True),),
    },
}
# Sections that say nothing of the computation.
ASIDE = words(
    """
    logger profiling wandb callbacks inprocess_restart ft straggler nvrx_straggler tensor_inspect defaults hydra
    megatron_timer_kwargs env_vars source task_encoder
    """
)
# Keys and sections without an option of Megatron-LM that change what is trained, or where it lies in memory.
WEIGHTY = frozenset(("peft", "lora", "fsdp", "transformer_layer_spec", "drop_layers"))

_FP8_RECIPES: dict[str, tuple[Meaning, ...]] = {
    "": (),
    "fp8_delayed_scaling": (
        ("fp8", "hybrid"),
        ("fp8_recipe", "delayed"),
        ("fp8_amax_history_len", 1024),
        ("fp8_amax_compute_algo", "max"),
        ("fp8_param_gather", True),
    ),
    "mxfp8": (
        ("fp8", "e4m3"),
        ("fp8_recipe", "mxfp8"),
        ("fp8_param_gather", True),
        ("reuse_grad_buf_for_mxfp8_param_ag", True),
    ),
    "fp8_current_scaling": (
        ("fp8", "hybrid"),
        ("fp8_recipe", "tensorwise"),
        ("first_last_layers_bf16", True),
        ("num_layers_at_start_in_bf16", 1),
        ("num_layers_at_end_in_bf16", 1),
        ("fp8_param_gather", True),
    ),
    "fp8_subchannel_scaling": (("fp8", "hybrid"), ("fp8_recipe", "blockwise")),
    "nvfp4": (("fp4", "e2m1"), ("fp4_recipe", "nvfp4")),
}
_PRECISION = re.compile(r"(bf16|fp16|16)(?:_with_(\w+?))?(?:_(?:mixed|true))?")
_ACTIVATIONS: dict[str, tuple[Meaning, ...]] = {
    "gelu": (),
    "openai_gelu": (("openai_gelu", True),),
    "swiglu": (("swiglu", True),),
    "squared_relu": (("squared_relu", True),),
}


def _precision(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    """Read `bf16_mixed`, `bf16-mixed`; Megatron-Bridge's names say the recipe of FP8 too."""
    name = str(entry.value).replace("-", "_").lower()
    if name in ("32", "32_true", "fp32", "none"):
        return
    match = _PRECISION.fullmatch(name)
    if match is None or (match[2] or "") not in _FP8_RECIPES:
        raise ValueError("is no precision that is known here")
    yield "bf16" if match[1] == "bf16" else "fp16", True
    yield from _FP8_RECIPES[match[2] or ""]


def _activation(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    name = str(entry.value).rpartition(".")[2].replace("-", "_")
    if name in ("silu", "swish") and neighbours("gated_linear_unit"):
        name = "swiglu"
    if name not in _ACTIVATIONS or (name == "gelu" and neighbours("gated_linear_unit")):
        raise ValueError("is no activation that Megatron-LM has an option for")
    yield from _ACTIVATIONS[name]


def _query_groups(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    if neighbours("group_query_attention") is None:  # Megatron-LM's own YAML says both
        yield "group_query_attention", True
    yield "num_query_groups", AS_WRITTEN


def _fused_activation(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    gated = neighbours("gated_linear_unit") or "swiglu" in str(neighbours("activation_func"))
    if neighbours("bias_swiglu_fusion") is None:
        yield "bias_swiglu_fusion" if gated else "bias_gelu_fusion", entry.value


def _offloaded_layers(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    if neighbours("cpu_offloading"):
        yield "cpu_offloading_num_layers", AS_WRITTEN


def _weight_shards(of: str) -> Callable[[Entry, Neighbours], Iterator[Meaning]]:
    """Read as many shards of the weights as the degree itself has: nothing is split further."""

    def meaning(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
        if entry.value != neighbours(of):
            yield entry.path[-1], AS_WRITTEN

    return meaning


_LAYOUT = {"embedding": "E", "decoder": "t", "transformer": "t", "mtp": "m", "loss": "L"}


def _layout(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    """Read a list of the layers of each stage; Megatron-LM's option has a letter for each."""
    value = entry.value
    if isinstance(value, list):
        if not all(isinstance(stage, list) and all(layer in _LAYOUT for layer in stage) for stage in value):
            raise ValueError("is no layout that is known here")
        yield "pipeline_model_parallel_layout", "|".join("".join(_LAYOUT[one] for one in stage) for stage in value)
    else:
        yield "pipeline_model_parallel_layout", AS_WRITTEN


# They yield what the entry means; ValueError says why that is not known.
SPECIAL: dict[str, Callable[[Entry, Neighbours], Iterator[Meaning]]] = {
    "precision": _precision,
    "mixed_precision": _precision,
    "plugins": _precision,
    "activation_func": _activation,
    "num_query_groups": _query_groups,
    "bias_activation_fusion": _fused_activation,
    "cpu_offloading_num_layers": _offloaded_layers,
    "pipeline_model_parallel_layout": _layout,
    "tensor_parallel_num_weight_shards": _weight_shards("tensor_model_parallel_size"),
    "expert_tensor_parallel_num_weight_shards": _weight_shards("expert_tensor_parallel_size"),
}

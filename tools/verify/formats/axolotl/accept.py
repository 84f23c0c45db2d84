"""Axolotl's own schema on config.yaml, with the checks that it makes for eight GPUs of an H100 node, as the rank that
torchrun starts would read it; and the DeepSpeed JSON that launch.sh names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from accepting import Values, answer, lora, of_torchrun, ranks, started
from axolotl.utils.schemas.config import AxolotlConfigWCapabilities, AxolotlInputConfig
from deepspeed_words import of_trainer

GIVEN = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}
GPU = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_90"}


def accept(folder: Path) -> Values:
    words, _ = started(folder, "torchrun", **GIVEN)
    nodes, per_node = of_torchrun(words)
    start = words.index("axolotl.cli.train") + 1
    assert words[start - 2] == "-m", words
    said = yaml.safe_load(Path(words[start]).read_text())
    assert not (unknown := said.keys() - AxolotlInputConfig.model_fields.keys()), unknown  # it ignores them
    for word in words[start + 1 :]:
        name, value = word.removeprefix("--").split("=", 1)
        said[name] = value
    config = AxolotlConfigWCapabilities(**said, capabilities=GPU, env_capabilities={"torch_version": "2.12.0"})
    of_step = config.micro_batch_size * config.gradient_accumulation_steps * nodes * per_node
    return {
        **of_trainer(SimpleNamespace(**{**config.model_dump(), "lr_scheduler_type": config.lr_scheduler})),
        **(_of_deepspeed(config) if config.fsdp_config is None else _of_shards(config)),
        "precision": "fp16" if config.fp16 else "bf16",
        "micro": config.micro_batch_size,
        "global": of_step,
        "num_microbatches": config.gradient_accumulation_steps,
        "seq_length": config.sequence_len,
        "clip_grad": config.max_grad_norm,
        **ranks(nodes, per_node),
        "dp": nodes * per_node,
        **(_of_adapter(config) if config.adapter else {"adapter": None}),
    }


def _of_deepspeed(config: Any) -> Values:
    zero = json.loads(Path(config.deepspeed).read_text())["zero_optimization"]
    return {"zero_stage": zero["stage"]}


def _of_shards(config: Any) -> Values:
    shards = config.fsdp_config
    assert (config.fsdp_version, shards.reshard_after_forward, config.deepspeed) == (2, True, None)
    return {
        "zero_stage": 3,
        "param_offload": shards.offload_params,
        "recompute": "full" if shards.activation_checkpointing else "none",
        "instances": config.dp_replicate_size or 1,
    }


def _of_adapter(config: Any) -> Values:
    assert config.load_in_4bit == (config.adapter == "qlora")
    assert {config.lora_mlp_kernel, config.lora_qkv_kernel, config.lora_o_kernel} == {False}
    assert config.adapter in ("lora", "qlora"), config.adapter
    targets, quantised = config.lora_target_modules, config.adapter == "qlora"
    return lora(config.lora_r, config.lora_alpha, config.lora_dropout, targets, quantised=quantised)


answer(accept)

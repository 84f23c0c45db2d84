"""Megatron-Bridge's own classes read what is written for it: overrides.yaml, overrides.txt and train.py.

train.py builds its ConfigContainer, merges the YAML through Bridge's process_config_with_overrides, and the command
line's overrides over a second one, which must be the same. Then Bridge's runtime_config_update applies the mixed
precision and runs ConfigContainer.validate(), with TransformerConfig.__post_init__ of megatron-core below it. Of a plan
with adapters ranks are built and counted (built.py), and the adapters' collectives (collectives.py). Stood in
for: Transformer Engine, Triton, wandb and TensorBoard, which are imported and not used here; the world's size, and a
GPU's compute capability.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import types
from pathlib import Path
from typing import Any

import collectives
import torch
from absent import Inert, stand_in
from accepting import SHARDING, Values, answer, called, dry_run, lora, of_torchrun
from built import trained_by_stage

_ABSENT = ("transformer_engine", "triton", "wandb", "tensorboard")
_PRECISIONS = {"delayed": "fp8", "tensorwise": "fp8", "mxfp8": "mxfp8"}


def prepare() -> None:
    """megatron-core is imported first, and knows that there is no Transformer Engine; Bridge takes it for granted."""
    importlib.import_module("megatron.core.models.gpt")
    stand_in(*_ABSENT, bases=(torch.nn.Module,), version=None, first=False)
    importlib.import_module("megatron.bridge.training.config")
    # From here on megatron-core's checks of options ask for a version and a GPU that could run them.
    core: Any = importlib.import_module("megatron.core.utils")
    core._te_version = core.PkgVersion("2.12.0")
    rope: Any = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb_thd = Inert("transformer_engine.rope")
    capability = (10, 0)
    torch.cuda.get_device_capability = lambda *args: capability
    torch.cuda.get_device_properties = lambda *args: types.SimpleNamespace(major=10, minor=0, name="NVIDIA B200")


def accept(folder: Path) -> Values:
    program = _train(folder)
    command = dry_run(folder)
    written = command[command.index(next(word for word in command if word.endswith("train.py"))) + 1 :]
    by_file = _configuration(program, written)
    overrides = shlex.split((folder / "overrides.txt").read_text())
    by_words = _configuration(program, [*_without_config(written), *overrides])
    nodes, gpus = of_torchrun(command)
    utils: Any = importlib.import_module("megatron.bridge.training.config")
    utils.get_world_size_safe = lambda: nodes * gpus
    os.environ["NVTE_CPU_OFFLOAD_V1"] = "1"  # launch.sh sets it where it is wanted
    for config in (by_file, by_words):
        utils.runtime_config_update(config)
    if _plain(by_file) != _plain(by_words):
        raise ValueError("overrides.txt says something else than overrides.yaml")
    return _values(by_file)


def _train(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("train_of_the_plan", folder / "train.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _configuration(program: Any, words: list[str]) -> Any:
    return program.configuration(program.arguments_of(words))


def _without_config(words: list[str]) -> list[str]:
    at = words.index("--config")
    return [*words[:at], *words[at + 2 :]]


def _plain(config: Any) -> str:
    """Every field, as text."""
    omegaconf: Any = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
    return str(omegaconf.create_omegaconf_dict_config(config)[0])


def _values(config: Any) -> Values:
    """What Bridge understood, in the words of a plan."""
    model, train, ddp, optimizer = config.model, config.train, config.ddp, config.optimizer
    tp, pp, cp = called("tp pp cp", model).values()
    dp = config.data_parallel_size
    values: Values = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "world": tp * pp * cp * dp,
        **called("ep seq_length sequence_parallel recompute_method recompute_num_layers", model),
        **called("micro global", train),
        "num_microbatches": train.global_batch_size // (train.micro_batch_size * dp),
        "precision": _precision(model),
        "grad_bytes": 4 if ddp.grad_reduce_in_fp32 else 2,
        "recompute": model.recompute_granularity or "none",
        "optimizer_offload": optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0.0,
        "activation_offload": model.fine_grained_activation_offloading,
        "zero_stage": _zero(ddp),
        "overlap_grad_reduce": ddp.overlap_grad_reduce,
        "overlap_param_gather": ddp.overlap_param_gather,
        **called("account_for_embedding account_for_loss num_hidden_layers hidden_size num_attention_heads", model),
        "first_stage_layers": model.num_layers_in_first_pipeline_stage,
        "last_stage_layers": model.num_layers_in_last_pipeline_stage,
        **called("lr min_lr weight_decay adam_beta1 clip_grad", optimizer),
        "train_iters": train.train_iters,
        "lr_warmup_iters": config.scheduler.lr_warmup_iters,
        "seed": config.rng.seed,
    }
    if model.multi_latent_attention is False:
        values["num_key_value_heads"] = model.num_query_groups
    if model.recompute_granularity == "selective":
        values["recompute_modules"] = list(model.recompute_modules)
    if cp > 1:
        values["cp_comm"] = model.cp_comm_type
    if pp > 1:
        values["layers_by_stage"] = _layers(model)
        values["vpp"] = model.virtual_pipeline_model_parallel_size or 1
    if model.num_moe_experts:
        values |= {
            "num_experts": model.num_moe_experts,
            "num_experts_per_tok": model.moe_router_topk,
            "etp": model.expert_tensor_parallel_size,
            "moe_dispatcher": model.moe_token_dispatcher_type,
            "overlap_moe_a2a": model.overlap_moe_expert_parallel_comm,
        }
    if config.peft is not None:
        collectives.check()
        peft = config.peft
        values |= lora(peft.dim, peft.alpha, peft.dropout, _hugging_face(peft))
        values["trained_by_stage"] = trained_by_stage(config, tp * pp * cp * dp)
    return values


def _precision(model: Any) -> str:
    if model.fp8:
        return _PRECISIONS[model.fp8_recipe]
    return "nvfp4" if model.fp4 else "fp16" if model.fp16 else "bf16"


def _zero(ddp: Any) -> int:
    if ddp.use_megatron_fsdp:
        return SHARDING[ddp.data_parallel_sharding_strategy]
    return int(ddp.use_distributed_optimizer)


def _layers(model: Any) -> list[int]:
    """Transformer layers of each stage, as megatron-core counts them."""
    block: Any = importlib.import_module("megatron.core.transformer.transformer_block")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    state.set_pipeline_model_parallel_world_size(model.pipeline_model_parallel_size)
    chunks, found = model.virtual_pipeline_model_parallel_size, []
    state.set_virtual_pipeline_model_parallel_world_size(chunks)
    for stage in range(model.pipeline_model_parallel_size):
        state.set_pipeline_model_parallel_rank(stage)
        found.append(
            sum(
                block.get_num_layers_to_build(model, vp_stage=chunk, pp_rank=stage)
                for chunk in (range(chunks) if chunks else [None])
            )
        )
    state.destroy_model_parallel()
    return found


def _hugging_face(peft: Any) -> list[str]:
    """The names that PEFT has for what these modules are."""
    parts = {
        "linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj", "linear_proj": "o_proj",
        "linear_fc1_gate": "gate_proj", "linear_fc1_up": "up_proj", "linear_fc2": "down_proj",
        "linear_qkv": "qkv_proj", "linear_fc1": "gate_up_proj",
    }  # fmt: skip
    return [parts[name] for name in peft.target_modules]


if __name__ == "__main__":
    prepare()
    answer(accept)

"""torchtitan's ConfigManager on the words of launch.sh, then what its Trainer does with the result, without weights.

The process is the last rank of a group that sends nothing: ParallelDims builds its meshes over all ranks of the plan,
the model is built on the meta device, cut into pipeline stages and given to its parallelize function.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from accepting import Values, answer, started
from torch.testing._internal.distributed.fake_pg import FakeStore

with mock.patch("torch._utils._get_available_device_type", return_value="cpu"):  # it takes no device for cuda
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed import utils as dist_utils
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.trainer import Trainer


def accept(folder: Path) -> Values:
    words, environment = started(folder, "torchrun", NODE_RANK="0", MASTER_ADDR="10.0.0.1", MASTER_PORT="29517")
    nodes, per_node = (int(words[words.index(name) + 1]) for name in ("--nnodes", "--nproc-per-node"))
    assert words[words.index("-m") + 1] == "torchtitan.train", words
    sys.path.insert(0, environment["PYTHONPATH"].split(os.pathsep)[0])
    sys.modules.pop("plan_config", None)
    try:
        config = ConfigManager().parse_args(words[words.index("-m") + 2 :])
    finally:
        del sys.path[0]
    world = nodes * per_node
    dist.init_process_group("fake", rank=world - 1, world_size=world, store=FakeStore())
    try:
        last = _built(config, world)
    finally:
        dist.destroy_process_group()
    return {**_values(config, world), **last, "world": world, "nodes": nodes, "gpus_per_node": per_node}


def _built(config: Trainer.Config, world: int) -> Values:
    """The last rank's part of the model, as Trainer.__init__ makes it."""
    dims = ParallelDims.from_config(config.parallelism, world)
    dims.build_mesh()
    dist_utils.set_spmd_backend(config.parallelism.spmd_backend)
    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
    model.verify_module_protocol()
    whole = sum(parameter.numel() for parameter in model.parameters())
    common = {
        "parallel_dims": dims,
        "training": config.training,
        "parallelism": config.parallelism,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": "",
    }
    if dims.pp == 1:
        spec.parallelize_fn(model, **common)
        return {"parameters": whole}
    loss = config.loss.build(compile_config=config.compile)
    schedule, parts, first, last = spec.pipelining_fn(
        model,
        **common,
        device=torch.device("cpu"),
        model_config=spec.model,
        parallelize_fn=spec.parallelize_fn,
        loss_fn=loss,
    )
    assert (first, last) == (False, True), "the last rank has the head, and only it"
    micro = config.parallelism.pipeline_parallel_microbatch_size
    assert schedule._n_microbatches * micro == config.training.local_batch_size, schedule
    return {"parameters": whole, "vpp": len(parts), "layers_of_last_stage": sum(len(part.layers) for part in parts)}


def _values(config: Trainer.Config, world: int) -> Values:
    parallelism, training, optimizer = config.parallelism, config.training, config.optimizer.param_groups[0]
    shards, replicas = parallelism.data_parallel_shard_degree, parallelism.data_parallel_replicate_degree
    dp, pp = shards * replicas, parallelism.pipeline_parallel_degree
    micro = parallelism.pipeline_parallel_microbatch_size if pp > 1 else training.local_batch_size
    local = training.local_batch_size // micro
    schedule, given = config.lr_scheduler, optimizer.optimizer_kwargs
    assert config.activation_checkpoint is None or isinstance(config.activation_checkpoint, FullAC.Config)
    return {
        "tp": parallelism.tensor_parallel_degree,
        "pp": pp,
        "cp": parallelism.context_parallel_degree,
        "ep": parallelism.expert_parallel_degree,
        "dp": dp,
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "micro": micro,
        "global": training.global_batch_size,
        "seq_length": training.seq_len,
        "num_microbatches": local * training.global_batch_size // (training.local_batch_size * dp),
        "recompute": "none" if config.activation_checkpoint is None else "full",
        "param_offload": training.enable_cpu_offload,
        "overlap_tp_comm": config.compile.enable_async_tensor_parallel,
        **({"zero_stage": 3} if parallelism.fsdp_reshard_after_forward == "always" else {}),
        "clip_grad": training.max_norm,
        "train_iters": training.steps,
        "seed": config.debug.seed,
        "lr": given["lr"],
        "adam_beta1": given["betas"][0],
        "adam_beta2": given["betas"][1],
        "adam_eps": given["eps"],
        "weight_decay": given["weight_decay"],
        "lr_warmup_iters": schedule.warmup_steps,
        "min_lr": schedule.min_lr_factor * given["lr"],
        "log_interval": config.metrics.log_freq,
        "num_hidden_layers": len(config.model_spec.model.layers),
        "hidden_size": config.model_spec.model.dim,
        "vocab_size": config.model_spec.model.vocab_size,
    }


with mock.patch("torchtitan.tools.logging.logger.warning"):  # of the tokenizer's folder, which is not here
    answer(accept)

"""What Accelerate's launcher would start for a launch.sh, and its plugin for FSDP 2 in the words of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch
from accelerate.commands import launch
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from accepting import Values, started
from torch.distributed.fsdp import CPUOffloadPolicy


def launched(folder: Path, **given: str) -> tuple[list[str], dict[str, str], int, int]:
    """Return what Accelerate's launcher would start: words, environment, nodes and their GPUs."""
    words, _ = started(folder, "accelerate", NODE_RANK="0", **given)
    assert words[0] == "launch", words
    chosen: list[argparse.Namespace] = []
    with mock.patch.object(launch, "multi_gpu_launcher", chosen.append):
        launch.launch_command(launch.launch_command_parser().parse_args(words[1:]))
    (arguments,) = chosen  # it would start torchrun's agent, and no other
    address = {"MASTER_ADDR": arguments.main_process_ip, "MASTER_PORT": str(arguments.main_process_port)}
    environment = prepare_multi_gpu_env(arguments) | address  # as the agent gives them to its ranks
    script = [*["-m"] * bool(arguments.module), arguments.training_script, *arguments.training_script_args]
    return script, environment, arguments.num_machines, arguments.num_processes // arguments.num_machines


def of_plugin(environment: dict[str, str]) -> Values:
    """Return what an Accelerator makes of the launcher's environment."""
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])
    assert (plugin.fsdp_version, plugin.mixed_precision_policy.param_dtype) == (2, torch.bfloat16)
    mesh = ParallelismConfig() if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true" else None
    return {
        "zero_stage": 3 if plugin.reshard_after_forward else 2,
        "param_offload": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
        "recompute": "full" if plugin.activation_checkpointing else "none",
        "instances": mesh.dp_replicate_size if mesh else 1,
    }

"""Accelerate's launcher, up to the processes that it would start, whose environment is read as an Accelerator does."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from unittest import mock

from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env
from accepting import Values, answer, started
from deepspeed_words import of_adapter, of_config


def accept(folder: Path) -> Values:
    words, _ = started(folder, "accelerate", NODE_RANK="1", MASTER_ADDR="10.0.0.1", MASTER_PORT="29517")
    assert words[0] == "launch", words
    chosen: list[argparse.Namespace] = []
    with mock.patch.object(launch, "deepspeed_launcher", chosen.append):
        launch.launch_command(launch.launch_command_parser().parse_args(words[1:]))
    (arguments,) = chosen  # it would start DeepSpeed's launcher, and no other
    _, environment = prepare_deepspeed_cmd_env(arguments)
    config = load_config_from_file(str(folder / "accelerate_config.yaml"))
    assert (config.num_machines, config.num_processes) == (arguments.num_machines, arguments.num_processes)
    with mock.patch.dict(os.environ, environment, clear=True):
        plugin = DeepSpeedPlugin()
        parallel = ParallelismConfig() if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true" else None
        plugin.set_mixed_precision(environment["ACCELERATE_MIXED_PRECISION"])  # as AcceleratorState does
    values = of_config(plugin.deepspeed_config)
    cp = parallel.sp_size if parallel else 1
    dp = arguments.num_processes // cp // values["tp"]
    if parallel:
        assert parallel.data_parallel_size == dp, parallel  # the batch that DeepSpeed is given counts these
        values["seq_length"] = parallel.sp_handler.sp_seq_length
    assert plugin.zero3_init_flag == (values["zero_stage"] == 3)
    return {
        **values, **of_adapter(folder), "cp": cp, "dp": dp, "world": arguments.num_processes,
        "nodes": arguments.num_machines, "gpus_per_node": int(arguments.nproc_per_node),
    }  # fmt: skip


answer(accept)

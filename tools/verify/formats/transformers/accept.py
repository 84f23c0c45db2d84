"""HfArgumentParser with TrainingArguments, at the plan's world size, for which a process group stands in, or
Accelerate's launcher, with its plugin for FSDP.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from accelerate.parallelism_config import ParallelismConfig
from accepting import Values, answer, of_torchrun, ranks, started
from deepspeed_words import of_adapter, of_config, of_trainer
from ranks import as_rank_0
from shards import launched, of_plugin
from transformers import AutoConfig, HfArgumentParser, TrainingArguments


def accept(folder: Path) -> Values:
    address = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}
    sharded = (folder / "accelerate_config.yaml").exists()
    if sharded:
        words, environment, nodes, per_node = launched(folder, **address)
        given = words[1:]
    else:
        words, environment = started(folder, "torchrun", NODE_RANK="0", **address)
        nodes, per_node = of_torchrun(words)
        given = words[words.index(environment["SCRIPT"]) + 1 :]
    with as_rank_0(nodes, per_node, environment):
        parser = HfArgumentParser(TrainingArguments)
        (arguments,) = parser.parse_args_into_dataclasses(given)
        used = environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true"
        parallel = ParallelismConfig() if used else None
        values = _of_shards(arguments) if sharded else _values(folder, arguments, parallel)
        os.chdir(folder)
        (read,) = parser.parse_json_file("training_args.json")
        assert read.world_size == nodes * per_node
        different = {name for name, value in arguments.to_dict().items() if read.to_dict()[name] != value}
        assert different <= {"deepspeed"}, different
    return {**values, **of_adapter(folder), **ranks(nodes, per_node)}


def _of_shards(arguments: TrainingArguments) -> Values:
    micro, world = arguments.per_device_train_batch_size, arguments.world_size
    of_step = {"micro": micro, "global": micro * arguments.gradient_accumulation_steps * world, "dp": world}
    return {**of_trainer(arguments), **of_plugin(dict(os.environ)), **of_step}


def _values(folder: Path, arguments: TrainingArguments, parallel: ParallelismConfig | None) -> Values:
    """What Trainer fills in to the DeepSpeed JSON, as `deepspeed_init` does before it starts the engine."""
    holder = arguments.hf_deepspeed_config
    model = SimpleNamespace(config=AutoConfig.from_pretrained(str(folder / "model")))
    holder.trainer_config_finalize(arguments, model, arguments.max_steps)
    cp = parallel.sp_size if parallel else 1
    if parallel:  # as Accelerator._prepare_deepspeed does
        holder.config["train_batch_size"] = (
            arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * parallel.data_parallel_size
        )
    values = {**of_config(holder.config), **of_trainer(arguments), "cp": cp}
    if parallel:
        values["seq_length"] = parallel.sp_handler.sp_seq_length
    return {**values, "dp": arguments.world_size // cp // values["tp"]}


answer(accept)

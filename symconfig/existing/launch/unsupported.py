"""Training programs whose configurations are recognised by name and not read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.dialects.tuners import plain
from symconfig.existing.launch.reading import Reading, Setting, Tree

_INSTEAD = "symconfig plan --model M --cluster C --gpus N --global-batch-size B"
_JSON = "deepspeed"  # stands among the options for those that name a DeepSpeed JSON


@dataclass(frozen=True, slots=True)
class Program:
    """A training program. file: a pattern of its path. keys: of its YAML or overrides, of which any is its alone, with
    underscores. options: of its command line, which only it has together."""

    name: str
    file: str = ""
    keys: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()


PROGRAMS = (
    Program(
        "NeMo-Framework-Launcher",
        file=r"(.*/)?launcher_scripts/main\.py",
        keys=words("training.model training.trainer training.run launcher_scripts_path"),
    ),
    Program(
        "NeMo 1.x",
        file=r"(.*/)?megatron_\w+_(pretraining|continue_training|finetuning|sft|peft_tuning)\.py",
        keys=words(
            """
            exp_manager model.encoder_seq_length model.global_batch_size model.mcore_gpt model.megatron_amp_O2
            model.micro_batch_size model.optim model.activations_checkpoint_granularity
            model.activations_checkpoint_method model.activations_checkpoint_num_layers
            """
        ),
    ),
    Program(
        "GPT-NeoX",
        file=r"(.*/)?deepy\.py",
        keys=words("pipe_parallel_size pos_emb gpt_j_residual output_layer_parallelism no_weight_tying"),
    ),
    Program("Megatron-DeepSpeed", options=words(f"{_JSON} num_layers hidden_size num_attention_heads")),
)


def refuse_file(tree: Tree) -> None:
    """Raise InputError for a data file of one of these programs."""
    keys = set(_keys(tree.data))
    for each in PROGRAMS:
        if each.keys & keys:
            raise InputError(_what(each), file=tree.text.file, hint=_INSTEAD)


def refuse_command(reading: Reading, before: Sequence[Setting]) -> None:
    """Raise InputError for a command that starts one of these programs, or gives another one its file.

    before: the settings as they stand there, before the files that they name are followed.
    """
    path = reading.program.text if reading.program is not None else ""
    given = {word.text.partition("=")[0].lstrip("+~") for setting in before for word in setting.values}
    keys = {prefix for key in given for prefix in (key, ".".join(key.split(".")[:2]))}
    options = {plain(setting) for setting in reading.options}
    if reading.deepspeed is not None or any(name.startswith(_JSON) for name in options):
        options.add(_JSON)
    for each in PROGRAMS:
        started = each.file and re.fullmatch(each.file, path)
        if started or each.keys & keys or (each.options and each.options <= options):
            raise InputError(reading.start.problem(_what(each), got=path or None, hint=_INSTEAD))
    for tree in filter(None, (reading.tree, reading.deepspeed)):
        refuse_file(tree)


def _what(program: Program) -> str:
    return f"is a configuration of {program.name}, which symconfig does not read"


def _keys(data: Any) -> Iterator[str]:
    """Yield the keys of the first two levels, with underscores."""
    for key, value in data.items() if isinstance(data, dict) else ():
        name = str(key).replace("-", "_")
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{str(inner).replace('-', '_')}" for inner in value)

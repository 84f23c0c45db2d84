"""An existing configuration of whatever format -> what it says. Nothing of it is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.job import Job
from symconfig.errors import InputError
from symconfig.existing.launch.bash.read import COMMAND, read_bash
from symconfig.existing.launch.dialects.override import is_override
from symconfig.existing.launch.files import FileLookup, dialect_of, parse, read_document, syntax_of
from symconfig.existing.launch.follow import followed
from symconfig.existing.launch.reading import JSON_ALONE, Hides, Reading, Setting, Tree, Unread
from symconfig.existing.launch.text import Text, open_text
from symconfig.format import learn

# Top-level keys by which data are DeepSpeed's (deepspeed/runtime/constants.py has many more): one of its own, or of
# those that other programs have too, one that is a section.
_DEEPSPEED = words(
    """
    train_batch_size train_micro_batch_size_per_gpu zero_optimization steps_per_print wall_clock_breakdown
    zero_allow_untested_optimizer
    """
)
_DEEPSPEED_SECTIONS = frozenset(("bf16", "bfloat16", "fp16", "data_types", "tensor_parallel", "flops_profiler", "aio"))
# What is not read, by suffix.
UNREADABLE = {
    ".py": ("is a Python program, whose code is not read", "the script that starts it, with its options"),
    ".toml": ("is TOML, as torchtitan has it, which is not read", "a bash script, YAML or JSON"),
}
_LAUNCHERS = ("*.sh", "*.slurm", "*.sbatch", "*.yaml", "*.yml", "*.json")
ARGUMENTS = "<arguments>"  # the name of a line of arguments in messages
_IDLE = "is given from outside, and nothing in the file names it"
_NOTHING: Mapping[str, str] = MappingProxyType({})


def read(source: str, *, variables: Mapping[str, str] = _NOTHING, extra: Sequence[str] = ()) -> Reading:
    """Return the reading of a configuration: a file's path, or a line of arguments if there is no such file.

    variables: the environment; those that no file mentions are noted. extra: arguments that its script gets. Raises
    InputError if it cannot be read, or is no launch configuration of a supported program. Secrets are learned for
    masking.
    """
    learn(source)
    learn("\n".join(f"{name}={value}" for name, value in variables.items()))
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a line longer than a file name may be
        exists = False
    if not exists and is_arguments(source):
        return _bash(Text(ARGUMENTS, source.encode()), None, variables, extra)
    if exists and path.is_dir():
        raise folder_refused(path)
    text = open_text(path, root=path.parent)
    syntax, suffix = syntax_of(text), path.suffix.lower()
    if suffix in UNREADABLE:
        what, need = UNREADABLE[suffix]
        raise InputError(what, file=text.file, need=need)
    if syntax == "bash":
        return _bash(text, path.parent, variables, extra)
    if extra:
        raise InputError("takes no arguments", file=source, got=" ".join(extra), need="a script for them")
    tree = parse(text, syntax)
    refuse_file(tree)
    if is_deepspeed(tree.data):
        reading: Reading | None = Reading(JSON_ALONE, (text,), (), deepspeed=tree)
    elif (reading := read_document(tree, variables)) is not None:
        reading = followed(reading, FileLookup(path.parent, variables))
    if reading is None:
        raise refused(tree)
    return _unmentioned(reading, variables)


def is_arguments(source: str) -> bool:
    """Return whether the text is a line of arguments rather than the name of a file.

    True if it begins with a dash, has a line break, an override, or several words, one of them with a dash.
    """
    if source.startswith("-") or "\n" in source:
        return True
    words = source.split()
    return any(is_override(word) for word in words) or (len(words) > 1 and any(word[:1] == "-" for word in words))


def is_deepspeed(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    own = any(isinstance(data.get(key), dict) for key in _DEEPSPEED_SECTIONS) and dialect_of(data) is None
    return own or bool(_DEEPSPEED & data.keys())


def _unmentioned(reading: Reading, variables: Mapping[str, str]) -> Reading:
    """Return the reading with a note, which hides nothing, for each given variable whose name is in no text of it."""
    idle = [name for name in variables if not any(name.encode() in text.data for text in reading.texts)]
    return reading.noting(*(Unread(reading.texts[0].place(0, 0), name, _IDLE, Hides.NOTHING) for name in idle))


def _bash(text: Text, folder: Path | None, variables: Mapping[str, str], extra: Sequence[str]) -> Reading:
    """Return the reading of a script or line of arguments, with the files it names followed and its further `runs`.

    Raises InputError as `read_bash` does, for an unsupported program, and if a program without any options, data file,
    recipe or model is started although everything was understood.
    """
    bash = read_bash(text, folder=folder, variables=variables, extra=extra)
    written = {name: Text(f"{name} (written by {text.file})", data, made=True) for name, data in bash.virtual.items()}
    lookup = FileLookup(folder, variables, written)
    reading = followed(bash.reading, lookup)
    refuse_command(reading, bash.reading.settings)
    anything = reading.settings or reading.tree or reading.deepspeed or reading.recipe or reading.model_config
    if reading.program is not None and not anything and reading.complete:
        raise InputError(
            reading.program.place.problem(
                "starts no training program whose options say what is trained",
                got=reading.program.text,
                need=COMMAND,
                hint="name the script that holds the training command, or give its arguments as one line",
            )
        )
    runs = tuple(followed(run, lookup) for run in reading.runs)
    return _unmentioned(replace(reading, runs=runs, written=tuple(written.values())), variables)


def refused(tree: Tree) -> InputError:
    """Return the error for a data file that is no known launch configuration: a list, symconfig's, a model, a
    job, other."""
    data, what, hint = tree.data, "is no launch configuration that symconfig knows", None
    if not isinstance(data, dict):
        what = "is no launch configuration: it holds no keys at its top level"
    elif "cluster" in data and data.keys() <= {*Job.model_fields, "schema"}:
        what, hint = "is a job of symconfig and no launch configuration", f"symconfig plan {tree.text.file}"
    elif str(data.get("schema", "")).startswith("symconfig."):
        what, hint = f"is a file that symconfig wrote ({data['schema']})", "the script or ds_config.json that starts it"
    elif "model_type" in data or "architectures" in data:
        what = "describes a model and not how it is trained"
        hint = "the script that starts the training, with --model and this file"
    else:
        hint = "a bash script, YAML of Megatron-Bridge, NeMo 2, NeMo-RL or the Trainer, or DeepSpeed's JSON"
    return InputError(what, file=tree.text.file, hint=hint)


def folder_refused(path: Path) -> InputError:
    """Return an error that the path is a folder, whose hint names its first five launch files (scripts, YAML, JSON)."""
    names = sorted(match.name for pattern in _LAUNCHERS for match in path.glob(pattern))
    more = f" (and {len(names) - 5} more)" if len(names) > 5 else ""
    hint = f"one of its files: {', '.join(names[:5])}{more}" if names else "the file that starts the training"
    return InputError("is a folder", file=str(path), need="a file", hint=hint)


_INSTEAD = "symconfig plan --model M --cluster C --gpus N --global-batch-size B"
_JSON = "deepspeed"  # stands among the options for those that name a DeepSpeed JSON


@dataclass(frozen=True, slots=True)
class Program:
    """An unsupported training program and how it is recognised.

    file: pattern of its path. keys: of its YAML or overrides, any of which identifies it. options: all of which do.
    """

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
    Program("verl's fine-tuning", file=r"(.*/)?verl[./]trainer[./](fsdp_)?sft_trainer(_ray)?(\.py)?"),
    Program("Megatron-LM's --yaml-cfg", keys=words("language_model model_parallel"), options=words("yaml_cfg")),
    Program("Megatron-DeepSpeed", options=words(f"{_JSON} num_layers hidden_size num_attention_heads")),
)


def refuse_file(tree: Tree) -> None:
    """Raise InputError if a key ("a" or "a.b", of the first two levels) of a data file is an unsupported program's."""
    keys = set(_keys(tree.data))
    for each in PROGRAMS:
        if each.keys & keys:
            raise InputError(_what(each), file=tree.text.file, hint=_INSTEAD)


def refuse_command(reading: Reading, before: Sequence[Setting]) -> None:
    """Raise InputError if the command starts an unsupported program, or has one of its keys or all its options.

    before: the settings before files that they name were followed; their words give the keys.
    """
    path = reading.path
    given = {word.text.partition("=")[0].lstrip("+~") for setting in before for word in setting.values}
    keys = {prefix for key in given for prefix in (key, ".".join(key.split(".")[:2]))}
    options = {setting.key for setting in reading.options}
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
    """Yield the keys of the first two levels as "a" and "a.b", with `_` for `-`; none if the data are no mapping."""
    for key, value in data.items() if isinstance(data, dict) else ():
        name = str(key).replace("-", "_")
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{str(inner).replace('-', '_')}" for inner in value)

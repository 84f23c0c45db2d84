"""What kind of file it is, by what it holds and by its name only where that leaves it open; settings of YAML files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.dialects import nemo_rl
from symconfig.existing.launch.dialects.override import Entry, entries, interpolated, is_override
from symconfig.existing.launch.dialects.translate import by_path, table_with, translated
from symconfig.existing.launch.reading import JSON_ALONE, Reading, Setting, Tree, World
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_json, parse_yaml
from symconfig.formats.tuners import TUNERS

Dialect = Literal["overrides", "trainer", "nemo-rl"]
# Of a flat file of arguments of Transformers' Trainer, or of a program around it: two or more.
_TRAINER_KEYS = words(
    """
    per_device_train_batch_size model_name_or_path gradient_accumulation_steps dataset_name learning_rate
    num_generations max_length lora_rank template stage
    """
) | frozenset(name for tuner in TUNERS for name in tuner.own)


def dialect_of(data: Any) -> Dialect | None:
    """Return the dialect of a YAML file's data; None if none applies.

    "nemo-rl" by NeMo-RL's sections; "trainer" by two or more arguments of the Trainer or a program around it, without a
    section `model`; "overrides" by a section such as `model` or `train`, as Megatron-Bridge and NeMo 2 have.
    """
    if not isinstance(data, dict):
        return None
    sections = {key for key, value in data.items() if isinstance(value, dict)}
    if nemo_rl.is_own(data):
        return nemo_rl.FORMAT
    if sum(key in data for key in _TRAINER_KEYS) > 1 and not sections & {"model"}:
        return "trainer"
    return "overrides" if sections & {"model", "train", "trainer", "ddp", "mixed_precision"} else None


def sets_megatron(section: Any) -> bool:
    """Return whether a section is a mapping with at least three keys that are options of Megatron-LM."""
    if not isinstance(section, dict):
        return False
    plain = (key for key, value in section.items() if not isinstance(value, dict))
    return sum(table_with(key) is not None for key in plain) > 2


def read_document(tree: Tree, variables: Mapping[str, str]) -> Reading | None:
    """Return the reading of a YAML file by its dialect; None if it is in no known one.

    variables: the environment, for references. The Trainer's key a.b gives `--a.b`, a null one nothing. NeMo-RL's has
    no settings yet: they are added when the files that it inherits are followed.
    """
    match dialect_of(tree.data):
        case "overrides":
            return read_sections(tree, variables, ())
        case "trainer":  # a key a.b gives `--a.b`, a null one none
            by_key = interpolated(by_path(entries(tree)), variables).values()
            named = ((f"--{'.'.join(entry.path)}", entry) for entry in by_key if entry.value is not None)
            settings = tuple(Setting(name, entry.spelled, entry.words, entry.place) for name, entry in named)
            return Reading(JSON_ALONE, (tree.text,), settings, tree=tree, unread=tree.unread)
        case "nemo-rl":  # what it inherits is followed
            return Reading(nemo_rl.FORMAT, (tree.text,), (), tree=tree, unread=tree.unread)
    return None


def read_sections(tree: Tree | None, variables: Mapping[str, str], overrides: Sequence[Entry]) -> Reading:
    """Return the reading in the format "overrides" of a file's entries, with the overrides merged over them.

    Settings are Megatron-LM's options; keys without one are noted in `unread`. `environment` is from `env_vars`,
    `world` from trainer.num_nodes and trainer.devices. tree: None for overrides without a file. variables: for
    references.
    """
    filed = entries(tree) if tree is not None else ()
    by_key = interpolated(by_path((*filed, *overrides)), variables)
    environment = {path[-1]: entry.words[0] for path, entry in by_key.items() if path[0] == "env_vars" and entry.words}
    settings, unread = translated(by_key)
    texts = (tree.text,) if tree is not None else ()
    stated = [by_key.get(("trainer", key)) for key in ("num_nodes", "devices")]
    nodes, each = (e.value if e is not None and type(e.value) is int and e.value > 0 else None for e in stated)
    counted = tuple(word for entry in stated if entry is not None for word in entry.words)
    return Reading(
        "overrides",
        texts,
        settings,
        tree=tree,
        environment=environment,
        world=World(nodes * each if nodes and each else None, nodes, each, counted),
        unread=(*(tree.unread if tree is not None else ()), *unread),
    )


# Top-level keys by which data are DeepSpeed's (deepspeed/runtime/constants.py has many more): one of its own, or of
# those that other programs have too, one that is a section.
_DEEPSPEED = words(
    """
    train_batch_size train_micro_batch_size_per_gpu zero_optimization steps_per_print wall_clock_breakdown
    zero_allow_untested_optimizer
    """
)
_DEEPSPEED_SECTIONS = frozenset(("bf16", "bfloat16", "fp16", "data_types", "tensor_parallel", "flops_profiler", "aio"))
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".zsh", ".ksh")
_SHEBANG = re.compile(rb"#!.*\b(ba|z|k|da)?sh\b")
# What is not read, by suffix.
UNREADABLE = {
    ".py": ("is a Python program, whose code is not read", "the script that starts it, with its options"),
    ".toml": ("is TOML, as torchtitan has it, which is not read", "a bash script, YAML or JSON"),
}
_LAUNCHERS = ("*.sh", "*.slurm", "*.sbatch", "*.yaml", "*.yml", "*.json")


def is_arguments(source: str) -> bool:
    """Return whether the text is a line of arguments rather than the name of a file.

    True if it begins with a dash, has a line break, an override, or several words, one of them with a dash.
    """
    if source.startswith("-") or "\n" in source:
        return True
    words = source.split()
    return any(is_override(word) for word in words) or (len(words) > 1 and any(word[:1] == "-" for word in words))


def syntax_of(text: Text) -> Literal["bash", "json", "yaml"]:
    """Return "bash" (a shell's shebang or suffix), "yaml" (suffix), or "json" (suffix or a first `{`).

    Any other file is "yaml" if it is one of a known dialect, else "bash".
    """
    suffix = Path(text.file).suffix.lower()
    head = text.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _SHEBANG.match(head) or suffix in _SCRIPTS:
        return "bash"
    if suffix in (".yaml", ".yml"):
        return "yaml"
    if head[:1] == b"{" or suffix in (".json", ".hjson", ".jsonc"):
        return "json"
    try:
        return "yaml" if dialect_of(parse_yaml(text).data) else "bash"
    except InputError:
        return "bash"


def parse(text: Text, syntax: Literal["json", "yaml"]) -> Tree:
    """Return the tree of a data file. Raises InputError."""
    return parse_json(text) if syntax == "json" else parse_yaml(text)


def is_deepspeed(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    own = any(isinstance(data.get(key), dict) for key in _DEEPSPEED_SECTIONS) and dialect_of(data) is None
    return own or bool(_DEEPSPEED & data.keys())


def refused(tree: Tree) -> InputError:
    """Return the error for a data file that is no known launch configuration: a list, symconfig's, a model, other."""
    data, what, hint = tree.data, "is no launch configuration that symconfig knows", None
    if not isinstance(data, dict):
        what = "is no launch configuration: it holds no keys at its top level"
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

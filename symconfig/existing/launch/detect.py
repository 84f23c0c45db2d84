"""What kind of file it is: by what it holds, and by its name only where that leaves it open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.dialects.documents import dialect_of
from symconfig.existing.launch.dialects.override import is_override
from symconfig.existing.launch.json_tree import parse_json
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.yaml_tree import parse_yaml

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
_LAUNCHERS = ("*.sh", "*.slurm", "*.sbatch", "*.yaml", "*.yml", "*.json")


def is_arguments(source: str) -> bool:
    """Return whether the text is a line of arguments rather than the name of a file."""
    if source.startswith("-") or "\n" in source:
        return True
    words = source.split()
    return any(is_override(word) for word in words) or (len(words) > 1 and any(word[:1] == "-" for word in words))


def syntax_of(text: Text) -> Literal["bash", "json", "yaml"]:
    """Return the syntax by the first characters, then the suffix.

    Otherwise it is YAML if the data are in a known dialect, else bash.
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


def unreadable(text: Text) -> InputError | None:
    """Return an error with what to give instead for a Python program or TOML; None for other files."""
    suffix = Path(text.file).suffix.lower()
    if suffix == ".py" and not _SHEBANG.match(text.data):
        what, need = "is a Python program, whose code is not read", "the script that starts it, with its options"
        return InputError(what, file=text.file, need=need)
    if suffix == ".toml":
        what, need = "is TOML, as torchtitan has it, which is not read", "a bash script, YAML or JSON"
        return InputError(what, file=text.file, need=need)
    return None


def parse(text: Text, syntax: Literal["json", "yaml"]) -> Tree:
    """Return the tree of a data file; of several YAML documents the first that is a known configuration.

    Raises InputError.
    """
    if syntax == "json":
        return parse_json(text)
    return parse_yaml(text, lambda data: dialect_of(data) is not None or is_deepspeed(data))


def is_deepspeed(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    own = any(isinstance(data.get(key), dict) for key in _DEEPSPEED_SECTIONS) and dialect_of(data) is None
    return own or bool(_DEEPSPEED & data.keys())


def refused(tree: Tree) -> InputError:
    """Return an error that a data file is no known launch configuration, with what it seems to be instead."""
    data, what, hint = tree.data, "is no launch configuration that symconfig knows", None
    if not isinstance(data, dict):
        what = "is no launch configuration: it holds no keys at its top level"
    elif str(data.get("schema", "")).startswith("symconfig."):
        what, hint = f"is a file that symconfig wrote ({data['schema']})", "the script or ds_config.json that starts it"
    elif "model_type" in data or "architectures" in data:
        what = "describes a model and not how it is trained"
        hint = "the script that starts the training, with --model and this file"
    else:
        hint = "a bash script, YAML of Megatron-LM, Megatron-Bridge or NeMo 2, or DeepSpeed's JSON"
    return InputError(what, file=tree.text.file, hint=hint)


def folder_refused(path: Path) -> InputError:
    """Return an error that the path is a folder, with the launch files in it."""
    names = sorted(match.name for pattern in _LAUNCHERS for match in path.glob(pattern))
    more = f" (and {len(names) - 5} more)" if len(names) > 5 else ""
    hint = f"one of its files: {', '.join(names[:5])}{more}" if names else "the file that starts the training"
    return InputError("is a folder", file=str(path), need="a file", hint=hint)

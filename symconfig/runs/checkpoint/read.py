"""`read(folder)`: which kind of checkpoint it is, by what lies in it; weights alone are read here.

Names of weights' files as in transformers (utils/__init__.py: SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME)
and peft (utils/constants.py) of the releases 5.23 and 0.21.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from symconfig.errors import InputError
from symconfig.resources import missing
from symconfig.runs.checkpoint import folder_deepspeed as deepspeed
from symconfig.runs.checkpoint import folder_megatron as megatron
from symconfig.runs.checkpoint.folder import LOOKED_FOR, Checkpoint, Plain, demand, json_object, shown, size_bytes

CONFIG, ADAPTER = "config.json", "adapter_config.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WHOLE = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
STATED = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "torch_dtype", "dtype")
ADAPTER_STATED = ("peft_type", "r", "lora_alpha", "base_model_name_or_path")


def read_model(folder: Path) -> Checkpoint:
    """Return the checkpoint of a Hugging Face model's folder. The index's files count if there is an index, else
    model.safetensors or pytorch_model.bin. Raises InputError if weights are missing, truncated or outside of the
    folder, or a JSON file is broken.
    """
    config = json_object(folder / CONFIG)
    index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
    if index is not None:
        files = json_object(index).get("weight_map")
        named = sorted({str(name) for name in files.values()}) if isinstance(files, dict) else []
        if outside := [name for name in named if Path(name).is_absolute() or ".." in Path(name).parts]:
            what = "names files outside of its folder, which are none of this checkpoint's"
            raise InputError(what, file=str(index), got=shown(outside))
        missing = [name for name in named if not (folder / name).is_file()]
        if missing or not named:
            raise InputError("names files that are not there", file=str(index), got=f"no {shown(missing)}")
    else:
        named = [name for name in WHOLE if (folder / name).is_file()][:1]  # the first that is there is the one read
        if not named:
            need = " or ".join((*INDEXES, *WHOLE))
            raise InputError("has no weights", file=str(folder), got=f"{CONFIG} alone", need=need)
    demand(folder, [folder / name for name in named])
    return Checkpoint("huggingface", folder, folder, size_bytes(folder), says=_stated(config, STATED))


def read_adapter(folder: Path) -> Checkpoint:
    """Return the checkpoint of a PEFT adapter's folder; safetensors count before .bin. Raises InputError if weights are
    missing or truncated, or adapter_config.json is broken.
    """
    config = json_object(folder / ADAPTER)
    named = [name for name in ADAPTERS if (folder / name).is_file()][:1]
    if not named:
        raise InputError("has no weights", file=str(folder), got=f"{ADAPTER} alone", need=" or ".join(ADAPTERS))
    demand(folder, [folder / name for name in named])
    return Checkpoint("peft", folder, folder, size_bytes(folder), says=_stated(config, ADAPTER_STATED))


def _stated(config: dict[str, Any], names: tuple[str, ...]) -> dict[str, Plain]:
    return {name: config[name] for name in names if isinstance(config.get(name), str | int | float)}


# In this order: train.py's last folder has a model beside DeepSpeed's files, and each is the more special first.
KINDS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Checkpoint]], ...] = (
    (megatron.is_root, megatron.read_root),
    (deepspeed.is_root, deepspeed.read_root),
    (deepspeed.is_tag, lambda folder: deepspeed.read_tag(folder, folder)),
    (megatron.is_iteration, lambda folder: megatron.read_iteration(folder, folder)),
    (lambda folder: (folder / ADAPTER).is_file(), read_adapter),
    (lambda folder: (folder / CONFIG).is_file(), read_model),
)


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder, read by the first of KINDS that recognises it. Raises InputError if the folder
    is missing, unreadable, no checkpoint or incomplete.
    """
    try:
        if not folder.exists():
            raise InputError([missing(folder, "there is no such folder")])
        if not folder.is_dir():
            raise InputError("is a file, a checkpoint is a folder", file=str(folder))
        for fits, reader in KINDS:
            if fits(folder):
                return reader(folder)
        seen = shown(sorted(path.name for path in folder.iterdir())) or "an empty folder"
    except OSError as error:
        where = str(error.filename or folder)
        raise InputError(f"cannot be read: {error.strerror or error}", file=where) from None
    except ValueError as error:  # a name with a NUL
        raise InputError(f"cannot be read: {error}", file=repr(str(folder))) from None
    raise InputError("is no checkpoint", file=str(folder), got=seen, need=LOOKED_FOR)

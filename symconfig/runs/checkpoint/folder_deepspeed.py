"""DeepSpeed's checkpoints: a root with the file `latest`, one tag's folder, and universal checkpoints of either.

Names as in runtime/engine.py (_get_zero_ckpt_prefix, _get_ckpt_name) and checkpoint/ds_to_universal.py of 0.19.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from symconfig.errors import InputError
from symconfig.runs.checkpoint.folder import Checkpoint, archived, demand, numbers, shown, size_bytes

LATEST, LATEST_UNIVERSAL = "latest", "latest_universal"
# mp: a tensor-parallel rank; zero_pp_rank: a data-parallel one, which with ZeRO-3 has model states of its own.
MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_)?(?:expp_rank_\d+_|zero_pp_rank_(\d+)_)mp_rank_(\d+)_optim_states\.pt")
UNIVERSAL, GROUPS = "zero", "optimizer_state.pt"  # ds_to_universal.py writes the second after the tensors
NUMBER = re.compile(r"(\d+)$")
DEGREES = {"tp": "mp_world_size", "dp": "dp_world_size"}
STATED = (
    "global_steps", "global_samples", "skipped_steps", "zero_stage", "train_batch_size",
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "step", "sequences",
)  # fmt: skip
STAGE = "stage"  # of ds_config's zero_optimization
# What train.py hands to engine.save_checkpoint, which puts it behind all of its own (engine.py, _save_checkpoint).
CLIENT = ("step", "sequences")


def is_root(folder: Path) -> bool:
    return (folder / LATEST).is_file() or (folder / LATEST_UNIVERSAL).is_file()


def is_tag(folder: Path) -> bool:
    return any(MODEL.fullmatch(path.name) for path in folder.iterdir()) or (folder / UNIVERSAL).is_dir()


def read_root(root: Path) -> Checkpoint:
    """Return the checkpoint in the folder that `latest` names, or without that file `latest_universal`. Raises
    InputError if the named folder is missing, outside of the root, or incomplete.
    """
    pointer = root / (LATEST if (root / LATEST).is_file() else LATEST_UNIVERSAL)
    tag = pointer.read_text(encoding="utf-8", errors="replace").strip()
    data = root / tag
    if not tag or Path(tag).is_absolute() or ".." in Path(tag).parts or not data.is_dir():
        there = shown(sorted(path.name for path in root.iterdir() if path.is_dir() and is_tag(path)))
        what = f"names {tag[:60]!r}, which is not there: it was deleted, or its saving did not end"
        raise InputError(what, file=str(pointer), got=there or "no folder with a checkpoint")
    return read_tag(data, root)


def read_tag(data: Path, folder: Path) -> Checkpoint:
    """Return the checkpoint of kind "deepspeed", or "universal" with a folder zero/, whose files lie in `data`.

    `folder` is only recorded. since and until are the ds_version in the first file, degrees those in it or else of the
    file names. iteration: train.py's own `step` if the file has step and sequences, else the engine's global_steps
    (which also count batches of other sizes, from earlier runs), else the number at the end of the folder's name.
    Raises InputError without model states, for empty or truncated .pt files, missing ranks, an unfinished conversion.
    """
    names = sorted(path.name for path in data.iterdir())
    universal = (data / UNIVERSAL).is_dir()
    states = [name for name in names if MODEL.fullmatch(name)]
    if not states:
        got, need = shown(names) or "nothing", "mp_rank_00_model_states.pt"
        raise InputError("is not whole: it has no model states", file=str(data), got=got, need=need)
    demand(data, [data / name for name in names if name.endswith(".pt")])
    says = archived(data / states[0], CLIENT)
    wrote = version if isinstance(version := says.get("ds_version"), str) else None
    own, steps = numbers(says, {name: name for name in CLIENT}), says.get("global_steps")
    named = int(match[1]) if (match := NUMBER.search(data.name)) else None
    checkpoint = Checkpoint(
        kind="universal" if universal else "deepspeed",
        folder=folder,
        data=data,
        size_bytes=size_bytes(data),
        iteration=own["step"] if len(own) == 2 else steps if isinstance(steps, int) else named,
        since=wrote,
        until=wrote,
        degrees=numbers(says, DEGREES) or _degrees(names),
        says={name: says[name] for name in STATED if name in says},
    )
    if universal:
        if not (data / UNIVERSAL / GROUPS).is_file():
            got = f"no {UNIVERSAL}/{GROUPS}"
            raise InputError("is not whole: the conversion did not end", file=str(data), got=got, hint="convert again")
        demand(data, [data / UNIVERSAL / GROUPS])
    else:
        _whole(data, names, checkpoint, numbers(says, {STAGE: STAGE}).get(STAGE, 0) > 0)
    return checkpoint


def _degrees(names: Iterable[str]) -> dict[str, int]:
    """Return {"tp", "dp"}: the highest rank in the files' names plus 1; dp is left out if no name has one."""
    numbered = [match.groups() for name in names if (match := OPTIMIZER.fullmatch(name) or MODEL.fullmatch(name))]
    replicas = [int(replica) for replica, _ in numbered if replica is not None]
    ranks = [int(rank) for _, rank in numbered]
    return {name: max(places) + 1 for name, places in (("tp", ranks), ("dp", replicas)) if places}


def _whole(data: Path, names: Iterable[str], checkpoint: Checkpoint, sharded: bool) -> None:
    """Raise InputError for missing model or optimizer states of a rank, by the ranks that other files' numbers imply.
    sharded: with ZeRO all dp ranks that the checkpoint states must have optimizer states.
    """
    kept = (checkpoint.degrees.get("dp", 1), 1) if sharded else (0, 0)
    for what, pattern, least in (("model states", MODEL, (1, 1)), ("optimizer states", OPTIMIZER, kept)):
        there = {(int(match[1] or 0), int(match[2])) for name in names if (match := pattern.fullmatch(name))}
        replicas, ranks = (max([least[axis], *(place[axis] + 1 for place in there)]) for axis in (0, 1))
        if len(there) != replicas * ranks:
            got, need = f"{len(there)} files", f"{replicas} x {ranks} files"
            raise InputError(f"is not whole: {what} of some ranks are missing", file=str(data), got=got, need=need)

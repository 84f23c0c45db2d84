"""Megatron-LM's checkpoints: a root with a tracker file, or one iteration's folder, in any of its formats.

Names as in training/checkpointing.py (get_checkpoint_name, get_checkpoint_tracker_filename) and
core/dist_checkpointing (metadata.json, .metadata, common.pt) of core_v0.12 to core_v0.19.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from symconfig.errors import InputError
from symconfig.formats import megatron
from symconfig.runs.checkpoint.folder import (
    MAX_BYTES,
    Checkpoint,
    Plain,
    archived,
    demand,
    json_object,
    numbers,
    pairs,
    shown,
    size_bytes,
    text,
)
from symconfig.runs.checkpoint.table import table

TRACKER = "latest_checkpointed_iteration.txt"
ITERATION = re.compile(r"iter_(\d{7,})")
RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
FILE = re.compile(rb"__\d+_\d+\.distcp")
WEIGHTS = "model_optim_rng.pt"
# The common state: a file of its own, later an object among the tensors (serialization.py, save).
COMMON, OUTSIDE_UNTIL, INSIDE_SINCE = "common_state/shard_0_1", "core_v0.18.2", "core_v0.19.0"

DEGREES = {
    **megatron.DEGREES,
    "dp": "data_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "world": "world_size",
}
STATED = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_experts",
    "seq_length", "max_position_embeddings", "padded_vocab_size", "micro_batch_size", "global_batch_size",
    "train_iters", "lr", "consumed_train_samples", "bf16", "fp16", "use_distributed_optimizer", "ckpt_format",
    "untie_embeddings_and_output_weights", "swiglu", "position_embedding_type", "mtp_num_layers",
)  # fmt: skip
# Keys of the optimizer's state, and how they say that it is held.
BUFFERS, GATHERED, SCATTERED = b".gbuf_idx_", b".param_state", b"optimizer.distributed."
# Main weights: the distributed optimizer's from core_v0.15 on; before, and without it.
WHOLE, PIECES = b"optimizer.state.param.", b"optimizer.state.fp32_param."


def is_root(folder: Path) -> bool:
    return (folder / TRACKER).is_file() or any(True for _ in _iterations(folder))


def is_iteration(folder: Path) -> bool:
    """Return whether a folder has metadata.json, .metadata, a folder mp_rank_* or a file __*.distcp. Raises OSError."""
    return (
        (folder / "metadata.json").is_file()
        or (folder / ".metadata").is_file()
        or bool(_ranks(folder))
        or any(folder.glob("__*.distcp"))
    )


def _iterations(root: Path) -> Iterator[int]:
    for path in root.iterdir():
        if (match := ITERATION.fullmatch(path.name)) and path.is_dir():
            yield int(match[1])


def _ranks(folder: Path) -> dict[Path, list[int]]:
    """Return {folder: numbers in its name} of the folders mp_rank_*, sorted: tp, then as present pp and ep (two numbers
    may be either).
    """
    return {
        path: [int(part) for part in match.groups() if part is not None]
        for path in sorted(folder.iterdir())
        if (match := RANK.fullmatch(path.name)) and path.is_dir()
    }


def read_root(root: Path) -> Checkpoint:
    """Return the checkpoint that the tracker file names, an iteration or "release". Raises InputError if the tracker is
    missing or malformed, or the iteration is missing or incomplete.
    """
    there = sorted(_iterations(root))
    listed = shown([f"iter_{number:07d}" for number in reversed(there)]) or "no iter_* folder"
    tracker = root / TRACKER
    if not tracker.is_file():
        what = f"there is no {TRACKER}, so Megatron-LM would load nothing and start at random"
        hint = f"write the iteration that is whole, as {there[-1]}, into it"
        raise InputError(what, file=str(root), got=listed, hint=hint)
    word = text(tracker).strip()
    if word != "release" and not word.isdigit():
        need = "a whole number, or release"
        raise InputError("names no iteration", file=str(tracker), got=repr(word[:40]), need=need)
    data = root / ("release" if word == "release" else f"iter_{int(word):07d}")
    if not data.is_dir():
        what = f"names {data.name}, which is not there: it was deleted, or its saving did not end"
        advised = f"write {there[-1]} into it, if that one is whole" if there else None
        raise InputError(what, file=str(tracker), got=listed, hint=advised)
    return read_iteration(data, root)


def read_iteration(data: Path, folder: Path) -> Checkpoint:
    """Return the checkpoint of one iteration in `data`; `folder` is only recorded. The iteration is the
    saved one, else that of the folder's name, else None. Raises InputError if it is incomplete.
    """
    match = ITERATION.fullmatch(data.name)
    iteration = int(match[1]) if match else None
    if _ranks(data):
        kind, degrees, says = _by_rank(data)
    else:
        kind, says = _distributed(data)
        degrees = numbers(says, DEGREES)
    stated, (name, _, optimizer) = says.get("iteration"), kind.partition(":")
    entry = table().formats[name]
    span = entry.optimizer.get(optimizer, entry)
    since, until = span.since, span.until
    if name == "torch_dist":  # the common state moved among the tensors
        since, until = (since, until or OUTSIDE_UNTIL) if (data / "common.pt").is_file() else (INSIDE_SINCE, None)
    return Checkpoint(
        kind=kind,
        folder=folder,
        data=data,
        size_bytes=size_bytes(data),
        iteration=stated if isinstance(stated, int) else iteration,
        since=since,
        until=until,
        degrees=degrees,
        says={name: says[name] for name in STATED if name in says},
    )


def _distributed(data: Path) -> tuple[str, dict[str, Plain]]:
    """Return (kind, saved arguments) of a torch_dist, zarr, fsdp_dtensor or torch_dcp checkpoint; the last two have
    none, {}. torch_dist gets its optimizer's layout as suffix. Raises InputError for incomplete checkpoints.
    """
    config = json_object(data / "metadata.json") if (data / "metadata.json").is_file() else {}
    backend, common = config.get("sharded_backend"), data / "common.pt"
    if backend == "zarr":
        _common_there(data, common.is_file())
        return "zarr", archived(common)
    content = _index(data, whole=backend is not None or not config)
    if backend != "torch_dist":
        return ("fsdp_dtensor" if b"param_to_group_meta" in content else "torch_dcp"), {}
    says = {} if common.is_file() else _common(data, content)
    _common_there(data, common.is_file() or bool(says) or len(content) == MAX_BYTES)
    says = says or archived(common)
    return f"torch_dist:{_optimizer(content, says)}".rstrip(":"), says


def _index(data: Path, whole: bool) -> bytes:
    """Return the content of .metadata, at most MAX_BYTES. Raises InputError if .metadata or a file that it names is
    missing or truncated, if it names none, or if not `whole`: metadata.json names no format, as saving did not end.
    """
    index = data / ".metadata"
    if not index.is_file() or not whole:
        need = "metadata.json and .metadata, which are written last"
        raise InputError("is not whole: its saving did not end", file=str(data), got=_listed(data), need=need)
    demand(data, [index])
    with index.open("rb") as stream:
        content = stream.read(MAX_BYTES)
    named = sorted(name.decode() for name in set(FILE.findall(content)))
    missing = [name for name in named if not (data / name).is_file()]
    if missing or not named:
        what = "files that .metadata names are not there" if named else ".metadata names no file of tensors"
        got = f"no {shown(missing)}" if named else _listed(data)
        raise InputError(f"is not whole: {what}", file=str(data), got=got)
    demand(data, [data / name for name in named])
    return content


def _common_there(data: Path, there: bool) -> None:
    """Raise InputError if the common state does not exist (`there` is False), or common.pt exists and is truncated."""
    if not there:
        what = "is not whole: the state that all ranks share is missing or cut off"
        need = f"common.pt, or from {INSIDE_SINCE} on {COMMON} among the tensors"
        raise InputError(what, file=str(data), got=_listed(data), need=need)
    demand(data, [file for file in (data / "common.pt",) if file.is_file()])


def _optimizer(index: bytes, says: Mapping[str, Plain]) -> str:
    """Return the layout of the optimizer's state, a suffix of the kind, by its tensors' names in .metadata; "" if it
    was not saved. says: the saved arguments, which tell a whole state from a sharded one in old releases.
    """
    layouts = {
        "dp_reshardable": BUFFERS in index,
        "dp_zero_gather_scatter": SCATTERED in index and GATHERED in index,
        "fully_reshardable": WHOLE in index,
        "fully_sharded_model_space": PIECES in index and says.get("use_distributed_optimizer"),
        "whole": PIECES in index,
    }
    return next((name for name, there in layouts.items() if there), "")


def _common(data: Path, index: bytes) -> dict[str, Plain]:
    """Return the common state's entries from the tensors' file that .metadata locates (from core_v0.19); {} if there is
    none. index: the content of .metadata.
    """
    place: dict[str, Plain] = {}
    for key, value in pairs(index):
        if key == "fqn":
            place = {}
        place[key] = value
        if place.get("fqn") == COMMON and {"relative_path", "offset", "length"} <= place.keys():
            file, start, length = (place[name] for name in ("relative_path", "offset", "length"))
            if isinstance(start, int) and isinstance(length, int) and FILE.fullmatch(str(file).encode()):
                return archived(data / str(file), start=start, length=length)
    return {}


def _by_rank(data: Path) -> tuple[str, dict[str, int], dict[str, Plain]]:
    """Return ("torch", degrees, saved arguments) of folders mp_rank_TT[_PPP][_EEE]. Degrees come from the first rank's
    arguments, else from the folders' names (tp, and pp if all three numbers are there). Raises InputError if a rank's
    folder or file is missing or truncated.
    """
    ranks = _ranks(data)
    alike = len({len(row) for row in ranks.values()}) == 1
    extents = [max(column) + 1 for column in zip(*ranks.values(), strict=True)] if alike else []
    expected = prod(extents)
    empty = [path.name for path in ranks if not (path / WEIGHTS).is_file()]
    if empty or not extents or len(ranks) != expected:
        got = f"no {WEIGHTS} in {shown(empty)}" if empty else f"{len(ranks)} folders mp_rank_*"
        need = f"{expected} folders, one for every rank of tp, pp and ep" if extents else None
        raise InputError("is not whole: files of some ranks are missing", file=str(data), got=got, need=need)
    demand(data, [file for path in ranks for file in sorted(path.glob("*.pt"))])
    says = archived(next(iter(ranks)) / WEIGHTS)
    degrees = numbers(says, DEGREES)
    return "torch", degrees or {"tp": extents[0], **({"pp": extents[1]} if len(extents) == 3 else {})}, says


def _listed(folder: Path) -> str:
    return shown(sorted(path.name for path in folder.iterdir())) or "nothing"

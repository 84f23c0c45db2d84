"""`model.tensor_model_parallel_size=8` on a command line, as Megatron-Bridge, NeMo and hydra take it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from symconfig.descriptor.yaml_strict import plain
from symconfig.errors import InputError
from symconfig.launch.dialects.entry import Entry, spoken
from symconfig.launch.reading import Piece, Setting, Word
from symconfig.launch.text import Place, Text
from symconfig.launch.yaml_tree import parse_yaml

OVERRIDE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<path>[A-Za-z_][\w\-/@]*(?:\.[\w\-/@]+)*)(?P<equals>=)?")
_SECTIONS = frozenset(("model", "trainer", "train", "training", "optimizer", "optim", "ddp", "data", "dataset",
                       "scheduler", "checkpoint", "mixed_precision", "comm_overlap", "dist", "tokenizer", "rng",
                       "logger", "peft", "exp_manager", "validation", "profiling", "resume", "log"))
# Options of Megatron-Bridge's scripts/training/run_recipe.py and of its and NeMo's scripts/performance.
_SPELLINGS = {
    ("-tp", "--tensor_model_parallel_size"): "model.tensor_model_parallel_size",
    ("-pp", "--pipeline_model_parallel_size"): "model.pipeline_model_parallel_size",
    ("-cp", "--context_parallel_size"): "model.context_parallel_size",
    ("-vp", "--virtual_pipeline_model_parallel_size"): "model.virtual_pipeline_model_parallel_size",
    ("-ep", "--expert_model_parallel_size"): "model.expert_model_parallel_size",
    ("-etp", "-et", "--expert_tensor_parallel_size"): "model.expert_tensor_parallel_size",
    ("-gb", "--global_batch_size"): "train.global_batch_size",
    ("-mb", "--micro_batch_size"): "train.micro_batch_size",
    ("-sl", "--seq_length"): "dataset.seq_length",
    ("-ms", "--max_steps"): "train.train_iters",
    ("--lr",): "optimizer.lr",
    ("--min_lr",): "optimizer.min_lr",
    ("--warmup_iters",): "scheduler.lr_warmup_iters",
}
_SHORT = {spelling.replace("_", "-"): path for spellings, path in _SPELLINGS.items() for spelling in spellings}


def is_override(text: str) -> bool:
    """Whether a word sets or removes a key of a section that is known here."""
    match = OVERRIDE.match(text)
    if match is None or not (match["equals"] or match["mark"] == "~"):
        return False
    head, *below = match["path"].split(".")
    return head in _SECTIONS and bool(below or head in ("peft", "mixed_precision", "training", "data"))


def entries_of(words: Sequence[Word]) -> Iterator[Entry]:
    """An entry for each word that is an override."""
    for word in words:
        if is_override(word.text):
            yield _entry(word)


def _entry(word: Word) -> Entry:
    match = OVERRIDE.match(word.text)
    assert match is not None
    path = match["path"]
    parts = tuple(path.split("."))
    parts = parts[1:] if parts[0] == "training" and len(parts) > 1 else parts  # NeMo-Framework-Launcher's own level
    if match["mark"] == "~" and not match["equals"]:
        return Entry(parts, None, (), word.place, path, removed=True)
    said = after(word, match.end())
    value = _value(said)
    if isinstance(value, list) and not said.unknown:
        words = tuple(Word((Piece(spoken(item)),), said.place) for item in value if not isinstance(item, list | dict))
    elif value is None and not said.unknown:
        words = ()
    else:
        bare = said.text[:1] in "\"'" and isinstance(value, str)
        words = (Word((Piece(value),), said.place) if bare else said,)
    return Entry(parts, value, words, word.place, path, removed=match["mark"] == "~")


def _value(word: Word) -> Any:
    """A value as hydra reads it; quotes, lists and maps are those of YAML's flow style."""
    if word.unknown:
        return None
    try:
        if word.text[:1] in ("[", "{", '"', "'"):
            return parse_yaml(Text("value", word.text.encode())).data
        return plain(word.text)
    except (InputError, ValueError):
        return word.text


def after(word: Word, count: int) -> Word:
    """The word without its first characters."""
    pieces: list[Piece] = []
    place = word.place
    for piece in word.pieces:
        cut = min(count, len(piece.text))
        count -= cut
        if cut == len(piece.text) and cut:
            continue
        pieces.append(_cut(piece, cut) if cut else piece)
    if pieces and pieces[0].place is not None:
        first = pieces[0].place
        if place.start <= first.start and first.end <= place.end:
            place = replace(first, end=place.end)
    return Word(tuple(pieces), place, word.unknown)


def _cut(piece: Piece, count: int) -> Piece:
    where = piece.place
    skipped = piece.text[:count]
    if where is not None:
        same = where.end - where.start == len(piece.text.encode()) and "\n" not in skipped
        start = where.start + len(skipped.encode())
        where = Place(where.file, start, where.end, where.line, where.column + count) if same else None
    return replace(piece, text=piece.text[count:], place=where)


def short(setting: Setting) -> str | None:
    """The key that an option of a recipe runner stands for."""
    return _SHORT.get(setting.name.replace("_", "-"))


def entries_of_options(settings: Sequence[Setting]) -> Iterator[Entry]:
    """Options of recipe runners that stand for an override, and the overrides among all the words."""
    for setting in settings:
        path = short(setting)
        if path is not None and setting.values:
            first = setting.values[0]
            yield Entry(tuple(path.split(".")), _value(first), (first,), setting.place, setting.spelled)
    # What is said in full goes before what is said by an option: run_recipe.py's help says so.
    for setting in settings:
        yield from entries_of(setting.values)

"""`model.tensor_model_parallel_size=8` on a command line, as Megatron-Bridge, NeMo and hydra take it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from symconfig.descriptor.yaml_strict import plain
from symconfig.errors import InputError
from symconfig.launch.dialects.entry import Entry, spoken
from symconfig.launch.reading import Piece, Setting, Word
from symconfig.launch.text import Text
from symconfig.launch.yaml_tree import parse_yaml

_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_]\w*)((?:\.[\w\-/@]+)*)=")
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
    """Whether a word sets a key of a section that is known here."""
    match = _OVERRIDE.match(text)
    return match is not None and match[2] in _SECTIONS and bool(match[3] or match[1])


def short(setting: Setting) -> str | None:
    """The key that an option of a recipe runner stands for."""
    return _SHORT.get(setting.name.replace("_", "-"))


def is_key(setting: Setting) -> bool:
    """Whether a word of a command line was read as `key=value` or `~key`."""
    return bool(setting.name) and setting.name[0] != "-"


def entries_of(settings: Sequence[Setting], runner: bool) -> Iterator[Entry]:
    """What overrides say. runner: options of a recipe runner stand for overrides too; what is said in full goes before
    them, as run_recipe.py's help says.
    """
    for setting in settings:
        key = short(setting) if runner else None
        if key is not None and setting.values:
            yield _entry(key, setting)
    for setting in settings:
        if is_key(setting):
            yield _entry(setting.name.lstrip("~"), setting)


def _entry(key: str, setting: Setting) -> Entry:
    path = tuple(key.split("."))
    removed = setting.spelled.startswith("~")
    if removed or not setting.values:
        return Entry(path, None, (), setting.place, setting.spelled, removed=removed)
    word = setting.values[-1]
    value = _value(word)
    words: tuple[Word, ...] = (word,)
    if isinstance(value, list):
        words = tuple(Word((Piece(spoken(item)),), word.place) for item in value if not isinstance(item, list | dict))
    elif value is None and not word.unknown:
        words = ()
    elif word.text[:1] in ("'", '"') and isinstance(value, str):
        words = (Word((Piece(value),), word.place),)
    return Entry(path, value, words, setting.place, setting.spelled)


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

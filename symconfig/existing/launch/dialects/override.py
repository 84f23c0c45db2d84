"""Values of a configuration that is a tree: from its file, and from `model.tensor_model_parallel_size=8` on a command
line, as Megatron-Bridge, NeMo 2 and hydra take it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.yaml_strict import plain
from symconfig.errors import InputError
from symconfig.existing.launch.reading import Piece, Setting, Tree, Word
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.launch.yaml_tree import parse_yaml


@dataclass(frozen=True, slots=True)
class Entry:
    """A leaf of a configuration tree, or a list of leaves.

    Args:
        path: as in ("model", "tensor_model_parallel_size").
        value: as in JSON; None: null or not known.
        words: one, or one per item of a list.
        place: from the key to the end of the value.
        spelled: the key as it is written.
        removed: whether the key is removed (hydra's `~`).
    """

    path: tuple[str, ...]
    value: Any
    words: tuple[Word, ...]
    place: Place
    spelled: str
    removed: bool = False

    @property
    def unknown(self) -> str | None:
        return next((word.unknown for word in self.words if word.unknown), None)


def entries(tree: Tree, at: KeyPath = ()) -> Iterator[Entry]:
    """Yield the leaves of a tree, or of its part at the path `at`, in order; paths are relative to `at`."""
    yield from _entries(tree, at, (), tree.get(*at))


def _entries(tree: Tree, at: KeyPath, path: tuple[str, ...], value: Any) -> Iterator[Entry]:
    """Yield the leaves below a value. A `_target_` with `_call_: false` counts as a leaf."""
    if isinstance(value, dict) and not (value.get("_call_") is False and isinstance(value.get("_target_"), str)):
        for key, inner in value.items():
            yield from _entries(tree, at, (*path, key), inner)
        return
    here = (*at, *path)
    if isinstance(value, dict):
        here, value = (*here, "_target_"), value["_target_"]
    span = tree.spans[here]
    start = span.key or span.value
    place = Place(start.file, start.start, max(start.end, span.value.end), start.line, start.column)
    yield Entry(path, value, tuple(_words(tree, here, value)), place, ".".join(str(part) for part in (*at, *path)))


def _words(tree: Tree, path: KeyPath, value: Any) -> Iterator[Word]:
    """Yield a word for the value, or for each scalar in a list; none for null."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, list | dict):
                yield word(tree, (*path, index))
    elif value is not None:
        yield word(tree, path)


def word(tree: Tree, path: KeyPath) -> Word:
    """Return a scalar as the program gets it: numbers and switches as written, text without quotes."""
    place = tree.spans[path].value
    value, written = tree.get(*path), tree.text.at(place)
    text = written if not isinstance(value, str) and written[:1] not in "*&!\"'|>" else spoken(value)
    if text == written:
        return Word.of(text, place, literal=True)
    if written[:1] in "\"'" and written[1:-1] == text:
        inner = Place(place.file, place.start + 1, place.end - 1, place.line, place.column + 1)
        return Word((Piece(text, inner),), place)
    return Word.of(text, place)


def spoken(value: Any) -> str:
    """Return a value as a word of a command line: true and false in lower case, lists in brackets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(spoken(item) for item in value) + "]"
    return str(value)


_OVERRIDE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<path>(?P<head>[A-Za-z_]\w*)(?P<below>(?:\.[\w\-/@]+)*))(?P<equals>=)?")
_SECTIONS = words(
    """
    model trainer train optimizer optim ddp data dataset scheduler checkpoint mixed_precision comm_overlap
    dist tokenizer rng logger peft env_vars validation profiling resume log actor_rollout_ref
    """
)
# Options of Megatron-Bridge's scripts/training/run_recipe.py and of its and NeMo 2's scripts/performance.
_SHORT = {
    **{short: f"model.{name}" for name, shorts in {
        "tensor_model_parallel_size": ("-tp",), "pipeline_model_parallel_size": ("-pp",),
        "virtual_pipeline_model_parallel_size": ("-vp",), "context_parallel_size": ("-cp",),
        "expert_model_parallel_size": ("-ep",), "expert_tensor_parallel_size": ("-etp", "-et"),
    }.items() for short in (*shorts, f"--{name.replace('_', '-')}")},
    **dict.fromkeys(("-gb", "--global-batch-size"), "train.global_batch_size"),
    **dict.fromkeys(("-mb", "--micro-batch-size"), "train.micro_batch_size"),
    **dict.fromkeys(("-sl", "--seq-length"), "dataset.seq_length"),
    **dict.fromkeys(("-ms", "--max-steps"), "train.train_iters"),
    "--lr": "optimizer.lr", "--min-lr": "optimizer.min_lr", "--warmup-iters": "scheduler.lr_warmup_iters",
}  # fmt: skip
RECIPE = ("--recipe", "--factory", "--model-recipe-name", "-mr", "--recipe-name")  # options that name one


def is_override(text: str) -> bool:
    """Return whether a word sets or removes a key of a known section."""
    return _match(text, whole_sections=False) is not None


def _match(text: str, *, whole_sections: bool, any_section: bool = False) -> re.Match[str] | None:
    """Return the match of an override; None if it is none.

    Args:
        whole_sections: whether `mixed_precision=bf16_mixed`, which sets a section, counts.
        any_section: whether unknown sections count, for programs that take only overrides.
    """
    match = _OVERRIDE.match(text)
    if match is None or not (match["equals"] or match["mark"] == "~"):
        return None
    if any_section:
        return match
    known = match["head"] in _SECTIONS
    return match if known and (match["below"] or match["mark"] or whole_sections) else None


def key_of(setting: Setting, runner: bool = False) -> str | None:
    """Return the dotted key that an override sets or removes; None if the setting is an ordinary option.

    runner: options of recipe runners in `_SHORT` also give a key: -tp stands for model.tensor_model_parallel_size.
    """
    if setting.name and setting.name[0] != "-":
        return setting.name.lstrip("~")
    return _SHORT.get(setting.name.replace("_", "-")) if runner else None


def parted(settings: Sequence[Setting], *, any_section: bool = False) -> Iterator[Setting]:
    """Yield the settings with each override among their words as a setting of its own, named by its key.

    any_section: whether overrides of unknown sections count.
    """
    for setting in settings:
        rest: list[Word] = []
        apart: list[Setting] = []
        names_one = setting.name.replace("_", "-") in RECIPE
        for index, word in enumerate(setting.values):
            whole = not setting.name or (names_one and index > 0)
            match = _match(word.text, whole_sections=whole, any_section=any_section)
            if match is None:
                rest.append(word)
            else:
                values = (word.after(match.end()),) if match["equals"] else ()
                mark = match["mark"] or ""
                apart.append(Setting(match["path"], mark + match["path"], values, word.place, joined=bool(values)))
        if not apart:
            yield setting
        elif setting.name:
            end = rest[-1].place.end if rest and rest[-1].place.file == setting.place.file else setting.place.end
            yield replace(setting, values=tuple(rest), place=replace(setting.place, end=end))
        elif rest:
            yield replace(setting, values=tuple(rest))
        yield from apart


def entries_of(settings: Sequence[Setting], runner: bool) -> Iterator[Entry]:
    """Yield the entries that overrides set; ordinary options are skipped.

    runner: short options of recipe runners count too; they come first, so that overrides by full key win.
    """
    for setting in sorted(settings, key=lambda setting: key_of(setting) is not None):
        if (key := key_of(setting, runner)) and (setting.values or key_of(setting)):
            yield _entry(key, setting)


def _entry(key: str, setting: Setting) -> Entry:
    """Return the entry that a setting sets at a dotted key; without a value it is null, or removed with `~`."""
    path = tuple(key.split("."))
    removed = setting.spelled.startswith("~")
    if removed or not setting.values:
        return Entry(path, None, (), setting.place, setting.spelled, removed=removed)
    word = setting.values[-1]
    value = _value(word)
    words: tuple[Word, ...] = (word,)
    if isinstance(value, list):
        words = tuple(Word.of(spoken(item), word.place) for item in value if not isinstance(item, list | dict))
    elif value is None and not word.unknown:
        words = ()
    elif word.text[:1] in ("'", '"') and isinstance(value, str):
        words = (Word.of(value, word.place),)
    return Entry(path, value, words, setting.place, setting.spelled)


def _value(word: Word) -> Any:
    """Return a word's value as hydra parses it; None if it is unknown, its text if it is malformed."""
    if word.unknown:
        return None
    try:
        if word.text[:1] in ("[", "{", '"', "'"):
            return parse_yaml(Text("value", word.text.encode())).data
        return plain(word.text)
    except (InputError, ValueError):
        return word.text

"""Values of a configuration that is a tree: from its file, and from `model.tensor_model_parallel_size=8` on a command
line, as Megatron-Bridge, NeMo 2 and hydra take it; with OmegaConf's references such as `${model.hidden_size}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath, plain, shorten
from symconfig.errors import InputError
from symconfig.existing.launch.reading import Piece, Setting, Tree, Word, cut
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.launch.trees import parse_yaml
from symconfig.formats.megatron import DEGREES
from symconfig.formats.renamed import SECTIONS


@dataclass(frozen=True, slots=True)
class Entry:
    """A leaf of a configuration tree, or a list of leaves.

    path: as in ("model", "tensor_model_parallel_size"). value: as in JSON; None: null or not known. words: one, or one
    per item of a list. place: from the key to the end of the value. spelled: the key as written. removed: by hydra's
    `~`.
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
    """Yield an Entry for each leaf below a value: each scalar, null or list, by its path relative to `at`.

    A mapping with `_call_: false` and a `_target_` of text is one leaf with the target's value and place.
    """
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
    yield Entry(
        path, value, tuple(_words_of_value(tree, here, value)), place, ".".join(str(part) for part in (*at, *path))
    )


def _words_of_value(tree: Tree, path: KeyPath, value: Any) -> Iterator[Word]:
    """Yield a word for a scalar, or for each scalar item of a list (null too; no nested ones); none for null."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, list | dict):
                yield word(tree, (*path, index))
    elif value is not None:
        yield word(tree, path)


def word(tree: Tree, path: KeyPath) -> Word:
    """Return the scalar at a path as a word, text without its quotes; without a place if it is spelled otherwise."""
    place = tree.spans[path].value
    value, written = tree.get(*path), tree.text.at(place)
    text = written if not isinstance(value, str) and written[:1] not in "*&!\"'|>" else as_text(value)
    if text == written:
        return Word.of(text, place, literal=True)
    if written[:1] in "\"'" and written[1:-1] == text:
        return Word((Piece(text, place.inner(written, 1, len(written) - 1)),), place)
    return Word.of(text, place)


def as_text(value: Any) -> str:
    """Return a value as text: "true" or "false", lists as "[a,b]" (also nested ones), else `str(value)`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(as_text(item) for item in value) + "]"
    return str(value)


_OVERRIDE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<path>(?P<head>[A-Za-z_]\w*)(?P<below>(?:\.[\w\-/@]+)*))(?P<equals>=)?")
_SECTIONS = words(
    f"""{" ".join(SECTIONS)} trainer optim data dataset comm_overlap peft env_vars validation profiling resume log
    actor_rollout_ref"""
)
_DEGREES = DEGREES | {"vp": "virtual_pipeline_model_parallel_size", "et": DEGREES["etp"]}
# Options of Megatron-Bridge's scripts/training/run_recipe.py and of its and NeMo 2's scripts/performance.
_SHORT = {
    **{short: f"model.{name}" for degree, name in _DEGREES.items()
       for short in (f"-{degree}", f"--{name.replace('_', '-')}")},
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
    """Return the match of an override `[+|++|~]section.key=...` of a known section; None for other text.

    whole_sections: a bare section, as `mixed_precision=x`, counts, too. any_section: any name counts.
    """
    match = _OVERRIDE.match(text)
    if match is None or not (match["equals"] or match["mark"] == "~"):
        return None
    if any_section:
        return match
    known = match["head"] in _SECTIONS
    return match if known and (match["below"] or match["mark"] or whole_sections) else None


def key_of(setting: Setting, runner: bool = False) -> str | None:
    """Return the dotted key that a setting sets, without `~`; None for options, but if `runner` those of `_SHORT`."""
    if setting.name and setting.name[0] != "-":
        return setting.name.lstrip("~")
    return _SHORT.get(setting.name.replace("_", "-")) if runner else None


def overrides_apart(settings: Sequence[Setting], *, any_section: bool = False) -> Iterator[Setting]:
    """Yield the settings, with each override among a setting's values as a further setting behind it.

    The new one is named by the key without `+`, its value is the text after `=`. A setting without name and values is
    dropped. any_section: whether overrides of unknown sections count.
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
    """Yield the entry that each override sets or removes; with `runner` first those of short options."""
    for setting in sorted(settings, key=lambda setting: key_of(setting) is not None):
        if (key := key_of(setting, runner)) and (setting.values or key_of(setting)):
            yield _entry(key, setting)


def _entry(key: str, setting: Setting) -> Entry:
    """Return the entry that a setting's last value sets at a dotted key; for `~key` one with `removed`.

    Words are one per scalar item of a list, none for null, and without quotes for quoted text.
    """
    path = tuple(key.split("."))
    removed = setting.spelled.startswith("~")
    if removed or not setting.values:
        return Entry(path, None, (), setting.place, setting.spelled, removed=removed)
    word = setting.values[-1]
    value = _value(word)
    words: tuple[Word, ...] = (word,)
    if isinstance(value, list):
        words = tuple(Word.of(as_text(item), word.place) for item in value if not isinstance(item, list | dict))
    elif value is None and not word.unknown:
        words = ()
    elif word.text[:1] in ("'", '"') and isinstance(value, str):
        words = (Word.of(value, word.place),)
    return Entry(path, value, words, setting.place, setting.spelled)


def _value(word: Word) -> Any:
    """Return a word's value by YAML's rules; None if it is unknown, its text if it cannot be parsed."""
    if word.unknown:
        return None
    try:
        if word.text[:1] in ("[", "{", '"', "'"):
            return parse_yaml(Text("value", word.text.encode())).data
        return plain(word.text)
    except (InputError, ValueError):
        return word.text


Path = tuple[str, ...]
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MISSING = "???"  # OmegaConf's mark of a value that must be given
# NeMo-RL, nemo_rl/utils/config.py, registers these.
_FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "mul": math.prod,
    "add": sum,
    "max": max,
    "div": lambda numbers: numbers[0] // numbers[1],
}
_MOST_STEPS = 20  # of references that lead to references
_MOST_CHARACTERS = 10_000  # of a text with references in it


def interpolated(entries: Mapping[Path, Entry], variables: Mapping[str, str]) -> dict[Path, Entry]:
    """Return the entries with `${...}` replaced; a reference that cannot be resolved makes its word unknown."""
    resolver = _Resolver(entries, variables)
    return {path: resolver.entry(path) for path in entries}


class _Resolver:
    """Resolver of references that caches each entry's result, so that nested references do not multiply."""

    def __init__(self, entries: Mapping[Path, Entry], variables: Mapping[str, str]) -> None:
        self.entries = entries
        self.variables = variables
        self.done: dict[Path, Entry] = {}
        self.under_way: set[Path] = set()

    def entry(self, path: Path) -> Entry:
        """Return the entry at a path with references resolved, cached in `done`. Raises KeyError."""
        if path not in self.done:
            self.under_way.add(path)
            self.done[path] = self._resolved(self.entries[path])
            self.under_way.discard(path)
        return self.done[path]

    def _resolved(self, entry: Entry) -> Entry:
        """Return the entry with references in its words replaced, and its value parsed again from the text.

        An entry that is exactly one reference takes the value and words of what it refers to.
        """
        if not any("${" in word.text or word.text == _MISSING for word in entry.words):
            return entry
        if len(entry.words) == 1 and (whole := _REFERENCE.fullmatch(entry.words[0].text)):
            other = self._target(whole[1], entry)
            words = tuple(_through(word, (whole[0],), entry.words[0].place) for word in other.words)
            return replace(entry, value=other.value, words=words)
        words = tuple(self._word(word, entry) for word in entry.words)
        value = entry.value if isinstance(entry.value, list) else _value(words[0])
        return replace(entry, value=value, words=words)

    def _word(self, word: Word, entry: Entry) -> Word:
        """Return the word with references replaced, innermost first.

        An unknown word without text if it is `???`, a reference is unknown or refers to an entry without exactly one
        word, the text exceeds 10,000 characters, or 20 replacements do not suffice.
        """
        if word.text == _MISSING:
            return Word.dark("must be given on the command line and is not", word.place)
        pieces: tuple[Piece, ...] = (Piece(word.text), *(piece for piece in word.pieces if piece.unknown))
        for _ in range(_MOST_STEPS):  # the innermost first: ${mul:${a},${b}}
            text = "".join(piece.text for piece in pieces)
            match = _REFERENCE.search(text)
            if match is None:
                return Word(pieces, word.place)
            if len(text) > _MOST_CHARACTERS:
                break
            other = self._target(match[1], entry)
            if len(other.words) != 1:
                return Word.dark(f"depends on {match[0]}, which is no single value", word.place)
            if other.unknown:
                return Word.dark(other.unknown, word.place)
            inside = _through(other.words[0], (match[0],), word.place).pieces
            pieces = (*cut(pieces, 0, match.start()), *inside, *cut(pieces, match.end()))
        return Word.dark(f"depends on {shorten(word.text)}, which is not worked out", word.place)

    def _target(self, reference: str, entry: Entry) -> Entry:
        """Return what a reference (the text inside `${}`) of an entry stands for; of an unknown word if it is unknown.

        That is the resolved entry at its path, relative to `entry` with leading dots; for `oc.env:NAME,default` and
        `env:` the variable's value, for `mul:`, `add:`, `max:` and `div:` the number.
        """
        kind, colon, rest = reference.partition(":")
        place, shown = entry.words[0].place, f"${{{shorten(reference)}}}"
        if colon:
            made = Word.dark(f"depends on {shown}, which is not worked out", place)
            name, has_default, default = (part.strip() for part in rest.partition(","))
            if kind in ("oc.env", "env"):
                made = Word.dark(f"depends on the environment variable {name}", place)
                if name in self.variables or has_default:
                    made = Word((Piece(self.variables.get(name, default.strip("'\"")), None, (name,)),), place)
            with suppress(KeyError, ValueError, ZeroDivisionError, IndexError):
                made = Word.of(str(_FUNCTIONS[kind]([int(part) for part in rest.split(",")])), place)
            return replace(entry, value=_value(made), words=(made,))
        bare = reference.strip().lstrip(".")
        up = len(reference.strip()) - len(bare)  # `.x` is a sibling of the entry, `..x` one level above
        path = (*(entry.path[: len(entry.path) - up] if up else ()), *bare.split("."))
        if path not in self.entries:
            why = "which nothing in this file says"
        elif path in self.under_way:
            why = "which leads in a circle"
        elif len(self.under_way) > _MOST_STEPS:
            why = "after too many references to references"
        else:
            return self.entry(path)
        return replace(entry, value=None, words=(Word.dark(f"depends on {shown}, {why}", place),))


def _through(word: Word, names: Path, place: Place) -> Word:
    pieces = tuple(replace(piece, variables=(*names, *piece.variables)) for piece in word.pieces)
    return Word(pieces, place)

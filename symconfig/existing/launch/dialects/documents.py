"""YAML files of Megatron-LM, Megatron-Bridge and NeMo 2: which dialect one speaks, and what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath
from symconfig.existing.launch.dialects import nemo_rl
from symconfig.existing.launch.dialects.interpolation import Path, expanded, interpolated
from symconfig.existing.launch.dialects.override import Entry, entries, word
from symconfig.existing.launch.dialects.translate import by_path, table_with, translated
from symconfig.existing.launch.reading import JSON_ALONE, Format, Hides, Reading, Setting, Tree, Unread, Word, World
from symconfig.existing.launch.text import Place
from symconfig.formats.tuners import TUNERS

Dialect = Literal["model args yaml", "megatron yaml", "overrides", "trainer", "nemo-rl"]
_ENOUGH_KEYS = 3  # of Megatron-LM's, for a section to be Megatron-LM's or of those who build on it
# Of a flat file of arguments of Transformers' Trainer, or of a program around it: two or more.
_TRAINER_KEYS = words(
    """
    per_device_train_batch_size model_name_or_path gradient_accumulation_steps dataset_name learning_rate
    num_generations max_length lora_rank template
    """
) | frozenset(name for tuner in TUNERS for name in tuner.own)


def dialect_of(data: Any) -> Dialect | None:
    """Return the dialect; None: nothing of these."""
    if not isinstance(data, dict):
        return None
    sections = {key for key, value in data.items() if isinstance(value, dict)}
    if SECTION in sections:
        return "model args yaml"
    if nemo_rl.is_own(data):
        return nemo_rl.FORMAT
    if sum(key in data for key in _TRAINER_KEYS) > 1 and not sections & {"model"}:
        return "trainer"
    if sections & {"language_model", "model_parallel"}:
        return "megatron yaml"
    if sections & {"model", "train", "trainer", "ddp", "mixed_precision"}:
        return "overrides"
    return "megatron yaml" if sets_megatron(data) else None


def sets_megatron(section: Any) -> bool:
    """Return whether enough keys of a section, those of sections in it aside, are Megatron-LM's options."""
    if not isinstance(section, dict):
        return False
    plain = (key for key, value in section.items() if not isinstance(value, dict))
    return sum(table_with(key) is not None for key in plain) >= _ENOUGH_KEYS


def read_document(tree: Tree, variables: Mapping[str, str]) -> Reading | None:
    """Read what the file says; None where it speaks none of the dialects."""
    match dialect_of(tree.data):
        case "model args yaml":
            return read_model_args(tree, variables)
        case "megatron yaml":
            by_key = by_path(_expanded(tree, variables))
            settings, unread = translated(by_key)
            return Reading("megatron yaml", (tree.text,), settings, tree=tree, unread=(*tree.unread, *unread))
        case "overrides":
            return read_sections(tree, variables, ())
        case "trainer":
            return _trainer(tree, variables)
        case "nemo-rl":  # what it inherits is followed
            return Reading(nemo_rl.FORMAT, (tree.text,), (), tree=tree, unread=tree.unread)
    return None


def _trainer(tree: Tree, variables: Mapping[str, str]) -> Reading:
    """Read a flat file of arguments of Transformers' Trainer and of those who build on it: its keys are the options."""
    settings = tuple(
        Setting("--" + ".".join(entry.path), entry.spelled, entry.words, entry.place)
        for entry in _expanded(tree, variables)
        if entry.value is not None
    )
    return Reading(JSON_ALONE, (tree.text,), settings, tree=tree, unread=tree.unread)


def _expanded(tree: Tree, variables: Mapping[str, str]) -> list[Entry]:
    top = tree.spans[()].value
    given = {name: Word.of(value, top) for name, value in variables.items()}
    return [expanded(entry, given) for entry in entries(tree)]


def read_sections(tree: Tree | None, variables: Mapping[str, str], overrides: Sequence[Entry]) -> Reading:
    """Read what Megatron-Bridge and NeMo 2 are given: a file with sections, overrides, or both."""
    filed = entries(tree) if tree is not None else ()
    by_key = interpolated(by_path((*filed, *overrides)), variables)
    environment = {path[-1]: entry.words[0] for path, entry in by_key.items() if path[0] == "env_vars" and entry.words}
    settings, unread = translated(by_key)
    texts = (tree.text,) if tree is not None else ()
    return Reading(
        "overrides",
        texts,
        settings,
        tree=tree,
        environment=environment,
        world=_world(by_key),
        unread=(*(tree.unread if tree is not None else ()), *unread),
    )


def _world(by_key: Mapping[Path, Entry]) -> World:
    given = [by_key.get(("trainer", key)) for key in ("num_nodes", "devices")]
    nodes, devices = (e.value if e is not None and type(e.value) is int and e.value > 0 else None for e in given)
    words = tuple(word for entry in given if entry is not None for word in entry.words)
    return World(nodes * devices if nodes and devices else None, nodes, devices, words)


SECTION = "MODEL_ARGS"
_QUOTED = re.compile(r"\\\\(.)")


def read_model_args(tree: Tree, variables: Mapping[str, str]) -> Reading:
    """Return the options of MODEL_ARGS, with the variables of ENV_VARS and those that are given put in."""
    own = tree.get("ENV_VARS")
    environment = {
        name: word(tree, ("ENV_VARS", name))
        for name, value in (own or {}).items()
        if value is not None and not isinstance(value, dict | list)
    }
    top = tree.spans[()].value
    given = {name: Word.of(value, top) for name, value in variables.items()}
    known = {**given, **environment}
    settings: list[Setting] = []
    overrides: list[Entry] = []
    for entry in entries(tree, (SECTION,)):
        name = next((part for part in reversed(entry.path) if part.startswith("-")), None)
        if name is not None:
            settings += _setting(name, expanded(entry, known))
        else:
            overrides.append(expanded(entry, known))
    dotted = by_path(replace(entry, path=tuple(".".join(entry.path).split("."))) for entry in overrides)
    translation, unread = translated(dotted)
    dialect: Format = "model args yaml" if settings or not translation else "overrides"  # of NeMo 2's own names
    return Reading(
        dialect,
        (tree.text,),
        (*settings, *translation),
        tree=tree,
        environment=environment,
        unread=(*tree.unread, *unread, *_later_runs(tree)),
    )


def _setting(name: str, entry: Entry) -> Iterator[Setting]:
    if entry.value is False or (entry.value is None and not entry.unknown):
        return
    switch = entry.value is True or entry.value == "true"
    words = () if switch else entry.words
    if len(words) == 1 and not words[0].unknown:
        words = tuple(_spoken(name, words[0]))
    yield Setting(name, entry.spelled, words, entry.place)


def _spoken(name: str, whole: Word) -> Iterator[Word]:
    """Yield the words that the text of one value stands for."""
    text = whole.text
    if text[:1] == "[" and text[-1:] == "]":
        items = text[1:-1].replace(",", " ").split()
    elif " " in text and _takes_several(name):
        items = text.split()
    elif "\\\\" in text:
        items = [_QUOTED.sub(r"\1", text)]
    else:
        yield whole
        return
    for item in items:
        yield Word.of(item, whole.place)


def _takes_several(name: str) -> bool:
    table = table_with(name.lstrip("-").replace("-", "_"))
    flag = table.flags.get(name) if table is not None else None
    return flag is not None and flag.nargs in ("+", "*")


def _later_runs(tree: Tree) -> Iterator[Unread]:
    for key in tree.data:
        if key.startswith(SECTION + "_"):
            path: KeyPath = (key,)
            place: Place = tree.spans[path].key or tree.spans[path].value
            yield Unread(place, key, f"is of another run of the same test; {SECTION} is read", Hides.NOTHING)

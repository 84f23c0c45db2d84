"""YAML files of Megatron-Bridge, NeMo 2, NeMo-RL and Transformers' Trainer: which format one has, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.dialects import nemo_rl
from symconfig.existing.launch.dialects.interpolation import Path, interpolated
from symconfig.existing.launch.dialects.override import Entry, entries
from symconfig.existing.launch.dialects.translate import by_path, table_with, translated
from symconfig.existing.launch.reading import JSON_ALONE, Reading, Setting, Tree, World
from symconfig.formats.tuners import TUNERS

Dialect = Literal["overrides", "trainer", "nemo-rl"]
_ENOUGH_KEYS = 3  # of Megatron-LM's, for a section to be Megatron-LM's or of those who build on it
# Of a flat file of arguments of Transformers' Trainer, or of a program around it: two or more.
_TRAINER_KEYS = words(
    """
    per_device_train_batch_size model_name_or_path gradient_accumulation_steps dataset_name learning_rate
    num_generations max_length lora_rank template
    """
) | frozenset(name for tuner in TUNERS for name in tuner.own)


def dialect_of(data: Any) -> Dialect | None:
    """Return the dialect of a YAML file's data; None if it is none of the known ones."""
    if not isinstance(data, dict):
        return None
    sections = {key for key, value in data.items() if isinstance(value, dict)}
    if nemo_rl.is_own(data):
        return nemo_rl.FORMAT
    if sum(key in data for key in _TRAINER_KEYS) > 1 and not sections & {"model"}:
        return "trainer"
    return "overrides" if sections & {"model", "train", "trainer", "ddp", "mixed_precision"} else None


def sets_megatron(section: Any) -> bool:
    """Return whether at least three keys of a section, without those of nested sections, are options of Megatron-LM."""
    if not isinstance(section, dict):
        return False
    plain = (key for key, value in section.items() if not isinstance(value, dict))
    return sum(table_with(key) is not None for key in plain) >= _ENOUGH_KEYS


def read_document(tree: Tree, variables: Mapping[str, str]) -> Reading | None:
    """Return the reading of a YAML file; None if it is in no known dialect.

    NeMo-RL's settings are empty at first, as the files that it inherits are read later.
    """
    match dialect_of(tree.data):
        case "overrides":
            return read_sections(tree, variables, ())
        case "trainer":
            return _trainer(tree, variables)
        case "nemo-rl":  # what it inherits is followed
            return Reading(nemo_rl.FORMAT, (tree.text,), (), tree=tree, unread=tree.unread)
    return None


def _trainer(tree: Tree, variables: Mapping[str, str]) -> Reading:
    """Return the reading of a flat file of arguments for Transformers' Trainer.

    Its keys become options, null ones are left out.
    """
    given = (entry for entry in interpolated(by_path(entries(tree)), variables).values() if entry.value is not None)
    settings = tuple(Setting("--" + ".".join(entry.path), entry.spelled, entry.words, entry.place) for entry in given)
    return Reading(JSON_ALONE, (tree.text,), settings, tree=tree, unread=tree.unread)


def read_sections(tree: Tree | None, variables: Mapping[str, str], overrides: Sequence[Entry]) -> Reading:
    """Return the reading of a file with sections, of overrides, or of both, as for Megatron-Bridge and NeMo 2."""
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

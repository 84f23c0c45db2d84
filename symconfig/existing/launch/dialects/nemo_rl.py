"""NeMo-RL's configuration: a YAML file over those that its `defaults` name, and overrides of a command line.

Source: NeMo-RL 0.7.0, nemo_rl/utils/config.py (load_config_with_inheritance, merge_with_override).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from posixpath import basename
from typing import Any, Final

from symconfig.existing.launch.dialects.override import Entry, entries
from symconfig.existing.launch.reading import Reading, Setting, Tree, World
from symconfig.existing.launch.world import stated_numbers
from symconfig.formats.keys import unset
from symconfig.formats.nemo_rl import RUN

FORMAT: Final = "nemo-rl"  # the format of a reading of it
DEFAULTS: Final = "defaults"  # the key of the files that are inherited
# What is done, by the section that only its configuration has; the first that is there.
METHODS: Final = ("distillation", "ppo", "grpo", "dpo", "rm", "sft")
_SECTIONS = frozenset(
    (*METHODS, "policy", "loss_fn", "checkpointing", "cluster", "env", "data", "logger", "data_plane")
)
_PROGRAM = re.compile(r"run_(?:vlm_)?(distillation|ppo|grpo|dpo|rm|sft)\w*\.py")
_USUAL = {"grpo": "grpo_math_1B", "ppo": "ppo_math_1B"}
_OWN = re.compile(r"(vlm_|audio_|gdpo_)?(grpo|ppo|dpo|sft|rm|distillation)(_\w+)?\.yaml")
_OVERRIDE = "_override_"  # a mark of a section that replaces the inherited one


def is_own(data: Mapping[str, Any]) -> bool:
    """Return whether data are NeMo-RL's.

    That is: they have a section `policy` beside a method, `loss_fn` or `cluster`, or one of its sections beside
    `defaults` that name a .yaml file.
    """
    inherits = any(str(name).endswith(".yaml") for name in bases(data))
    policy = isinstance(data.get("policy"), dict) and any(name in data for name in (*METHODS, "loss_fn", "cluster"))
    return policy or (inherits and bool(_SECTIONS & data.keys()))


def bases(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the files that a configuration inherits; empty if none."""
    named = data.get(DEFAULTS)
    return tuple(str(each) for each in (named if isinstance(named, list) else [named] if named else []))


def applies(reading: Reading) -> bool:
    """Return whether the program's file name is one of NeMo-RL's, or the reading's format is NeMo-RL's."""
    return reading.format == FORMAT or usual(reading) is not None


def usual(reading: Reading) -> str | None:
    """Return the name of the configuration that NeMo-RL's program uses without --config; None for other programs."""
    match = _PROGRAM.fullmatch(basename(reading.path))
    return f"{_USUAL.get(match[1], match[1])}.yaml" if match else None


def comes_with_it(name: str) -> bool:
    """Return whether a configuration has the name of one that NeMo-RL ships."""
    return _OWN.fullmatch(basename(name)) is not None


def inherited(trees: Iterable[Tree]) -> Iterator[Entry]:
    """Yield the entries of files without `defaults`, the files in order.

    Before those of a section with `_override_: true` stands one with `removed`, for what earlier files say of it.
    """
    for tree in trees:
        own = [each for each in entries(tree) if each.path[0] != DEFAULTS]
        marks = (each for each in own if each.path[-1] == _OVERRIDE and each.value is True)
        yield from (replace(each, path=each.path[:-1], removed=True) for each in marks)
        yield from (each for each in own if each.path[-1] != _OVERRIDE)


def world(settings: Sequence[Setting]) -> World:
    """Return nodes (default 1), GPUs per node (1) and all GPUs of `cluster`; all None without any of them."""
    numbers, known = stated_numbers(settings, unset(RUN, "cluster.num_nodes", "cluster.gpus_per_node"))
    nodes, each = numbers.values()
    return replace(known, gpus=nodes * each, nodes=nodes, gpus_per_node=each) if known.words else known

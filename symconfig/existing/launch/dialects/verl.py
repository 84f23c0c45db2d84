"""verl's command line: Hydra overrides of its trainer's configuration, which stay as they are.

Source: verl 0.9.1, verl/trainer/config/ppo_trainer.yaml and ppo_megatron_trainer.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from symconfig.existing.launch.reading import Reading, Setting, World
from symconfig.existing.launch.world import stated_numbers
from symconfig.formats.keys import unset
from symconfig.formats.verl import KEYS

FORMAT: Final = "verl"  # the format of a reading of it
_OWN = re.compile(r"(\w+_)?(ppo|dapo)_(megatron_)?trainer(\.yaml)?")  # whose values are verl's defaults
# By default. `rollout` is of main_ppo's relatives that generate beside: -1 is 1 node, and as many GPUs per node.
_ROLLOUT: Final = {"rollout.nnodes": -1, "rollout.n_gpus_per_node": -1}
_GPUS: Final = unset(KEYS["fsdp"], "trainer.nnodes", "trainer.n_gpus_per_node") | _ROLLOUT
_MEGATRON: Final = "actor_rollout_ref.actor.megatron."
_ACTOR = re.compile(r"(\+\+|\+|~)?actor_rollout_ref\.[a-z]")


def applies(reading: Reading) -> bool:
    """Return whether overrides of verl's actor are among the words."""
    return any(_ACTOR.match(word.text) for setting in reading.settings for word in setting.values)


def own(configuration: str) -> bool:
    """Return whether a configuration has the name of one that verl ships."""
    return _OWN.fullmatch(configuration) is not None


def workers(settings: Sequence[Setting]) -> str:
    """Return the training engine by its strategy and options: "megatron", "fsdp" (default), or another's name."""
    stated = {setting.name: setting.values for setting in settings if setting.values}
    named = (word.text for name in ("--config-name", "defaults", "model_engine") for word in stated.get(name, ()))
    if any("megatron" in text for text in named) or any(name.startswith(_MEGATRON) for name in stated):
        return "megatron"
    engine = next(
        (stated[name][-1].text for name in ("actor_rollout_ref.actor.strategy", "model_engine") if name in stated),
        "fsdp",
    )
    return "fsdp" if engine.startswith(("fsdp", "dp")) else engine


def world(settings: Sequence[Setting]) -> World:
    """Return the trainer's GPUs (default: 1 node of 8), plus those of `rollout` if it has GPUs of its own."""
    numbers, known = stated_numbers(settings, _GPUS)
    nodes, each, served, per_node = numbers.values()
    if known.dark:
        return known
    alone = 0 if max(served, per_node) < 0 else abs(served) * (per_node if per_node >= 0 else each)
    return replace(known, gpus=nodes * each + alone, nodes=None if alone else nodes, gpus_per_node=each)

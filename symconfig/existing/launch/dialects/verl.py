"""verl's command line: Hydra overrides of its trainer's configuration, which stay as they are.

Source: verl 0.9.1, verl/trainer/config/ppo_trainer.yaml and ppo_megatron_trainer.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from symconfig.existing.launch.reading import Reading, Setting, World

FORMAT: Final = "verl"  # the format of a reading of it
RELEASE: Final = "0.9.1"  # whose defaults hold where nothing is stated
_OWN = re.compile(r"(\w+_)?(ppo|dapo)_(megatron_)?trainer(\.yaml)?")  # whose values are verl's defaults
_TRAINER: Final = {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 8}
_ENGINE: Final = ("rollout.nnodes", "rollout.n_gpus_per_node")  # of main_ppo's relatives that generate beside
_MEGATRON: Final = "actor_rollout_ref.actor.megatron."
_KINDS: Final = {"fsdp": "fsdp", "dp": "fsdp"}  # of workers, by how the word for an engine begins
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
    return next((kind for start, kind in _KINDS.items() if engine.startswith(start)), engine)


def world(settings: Sequence[Setting]) -> World:
    """Return the trainer's GPUs (default: 1 node of 8), plus those of `rollout` if it has GPUs of its own.

    Only `dark`, the words of such numbers, is set if a number is unknown or not decimal digits.
    """
    stated = {setting.name: setting.values[-1] for setting in settings if setting.values}
    words = [stated[name] for name in (*_TRAINER, *_ENGINE) if name in stated]
    if dark := tuple(word for word in words if word.unknown or not word.text.isdecimal()):
        return World(dark=dark)
    nodes, each = (int(stated[name].text) if name in stated else usual for name, usual in _TRAINER.items())
    served = [
        int(stated[name].text) if name in stated else usual for name, usual in zip(_ENGINE, (1, each), strict=True)
    ]
    alone = served[0] * served[1] * any(name in stated for name in _ENGINE)
    return World(nodes * each + alone, None if alone else nodes, each, tuple(words))

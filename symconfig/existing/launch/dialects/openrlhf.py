"""OpenRLHF's command line: options by section since 0.10; those of one level before are read under the same names.

Source: OpenRLHF 0.8.0 to 0.11.2, openrlhf/cli/train_{ppo_ray,sft,dpo,rm}.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from symconfig.existing.launch.reading import Reading, Setting, World
from symconfig.existing.launch.world import stated_numbers
from symconfig.formats.keys import unset
from symconfig.formats.openrlhf import OLD, OPENRLHF, ROLES

RAY: Final = "train_ppo_ray"  # which trains beside engines; the others train alone
_PROGRAM = re.compile(r"openrlhf[./]cli[./](train_\w+?)(\.py)?")
_ALONE = ("model.", "actor.")  # the trained model's section of the programs that train alone; read as the actor's
_NUMBERS = ("num_gpus_per_node", "num_nodes")
_GPUS = unset(OPENRLHF.keys, *(f"{role}.{number}" for role in sorted(ROLES) for number in _NUMBERS))


def program(reading: Reading) -> str | None:
    """Return the name of OpenRLHF's program, such as "train_ppo_ray"; None for other programs."""
    match = _PROGRAM.fullmatch(reading.path)
    return match[1] if match else None


def applies(reading: Reading) -> bool:
    """Return whether one of OpenRLHF's programs is started."""
    return program(reading) is not None


def started(reading: Reading) -> Reading:
    """Return the reading with names of options since 0.10; for train_ppo_ray with the GPUs of all roles."""
    settings = tuple(replace(each, name=_named(each.name)) for each in reading.settings)
    possible = tuple(replace(each, name=_named(each.name)) for each in reading.possible)
    world = _world(settings) if program(reading) == RAY else reading.world
    return replace(reading, settings=settings, possible=possible, world=world)


def pools(settings: Sequence[Setting]) -> dict[str, int]:
    """Return the number of GPUs by key, of "actor", "ref", "critic", "reward" and "vllm".

    Roles that share GPUs are one key with the largest number, the actor's or critic's; "vllm" is absent if it shares
    all, and a critic or reference if the algorithm has none. A role has 1 node of 8 GPUs by default, and where
    its option has no value. Raises ValueError if a number is malformed.
    """
    stated = _first_values(settings)
    together = stated.keys() & {"train.colocate_all"}
    roles = dict.fromkeys(ROLES, True)
    roles["critic"] = critic = stated.get("algo.advantage.estimator", "gae") == "gae"
    roles["ref"] = stated.get("algo.kl.init_coef", "0.01").strip("0.") != ""
    roles["reward"] = not stated.keys() & {"reward.remote_url", "train.agent_func_path"}
    sharing = {"ref": "actor"} if together or "train.colocate_actor_ref" in stated else {}
    if together:
        sharing |= {"critic": "actor", "reward": "actor"}
    elif critic and "train.colocate_critic_reward" in stated:
        sharing |= {"reward": "critic"}
    result: dict[str, int] = {}
    for role in (role for role in ROLES if roles[role]):
        number = prod(int(stated.get(name) or _GPUS[name]) for name in (f"{role}.{each}" for each in _NUMBERS))
        head = sharing.get(role, role)
        result[head] = max(result.get(head, 0), number)
    if not together or "train.async_enable" in stated:
        served = int(stated.get("vllm.num_engines") or 0) * int(stated.get("vllm.tensor_parallel_size") or 1)
        result |= {"vllm": served} if served else {}
    return result


def _first_values(settings: Sequence[Setting]) -> Mapping[str, str]:
    """Return each option's first value by name without dashes; an empty string for switches."""
    return {each.name.removeprefix("--"): each.values[0].text if each.values else "" for each in settings}


def _named(name: str) -> str:
    """Return the option's name since 0.10; `model.` becomes `actor.`. Other names without dashes are unchanged."""
    plain = name.lstrip("-").replace("-", "_")
    if plain.startswith(_ALONE[0]):
        return f"--{_ALONE[1]}{plain.removeprefix(_ALONE[0])}"
    return f"--{OLD.get(plain, plain)}" if name.startswith("-") else name


def _world(settings: Sequence[Setting]) -> World:
    """Return the total GPUs of all pools, and the actor's GPUs per node (8 by default); `dark` if one is unknown."""
    numbers, known = stated_numbers(settings, _GPUS | {"vllm.num_engines": 0, "vllm.tensor_parallel_size": 0})
    if known.dark:
        return known
    return replace(known, gpus=sum(pools(settings).values()), gpus_per_node=numbers["actor.num_gpus_per_node"])

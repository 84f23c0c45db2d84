"""MindSpeed-LLM, which runs Megatron-LM on Ascend: its options beside those of the one release that it rests on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from symconfig.frameworks.megatron.flags import Flag, FlagTable, first_with, flags
from symconfig.resources import json_data

DATA = Path(__file__).with_name("mindspeed.json")
MEGATRON = "core_v0.12.1"  # the only release of Megatron-LM that MindSpeed 2.2 to 26.1 run with (README)
# By --cp-comm-type. All-gather and two levels are MindSpeed's, too, but not with local layers, or with a degree more.
CP_ALGORITHMS: Mapping[str, str] = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo"}
# MindSpeed's own value of --context-parallel-algo -> Megatron-LM's --cp-comm-type; what an audit reads.
CP_READ: Mapping[str, str] = {
    **{algorithm: kind for kind, algorithm in CP_ALGORITHMS.items()},
    "kvallgather_cp_algo": "all_gather",
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "--tokenizer-type": ("PretrainedFromHF", "MagistralTokenizer"),
    "--position-embedding-type": ("alibi", "deepseek4"),
    "--moe-router-load-balancing-type": (
        "group_limited_greedy",
        "softmax_topk",
        "sparsemixer_topk",
        "pai_megatron_aux_loss",
    ),
}
_ALIKE = 2  # so many of its options make a script one of MindSpeed


@cache
def own() -> Mapping[str, Flag]:
    """Return MindSpeed's own options by name; cached.

    An option that Megatron-LM has, too, is as in the first release with it; the others have neither type nor choices.
    """
    shapes = {"switches": ("true", 0), "values": ("store", None), "lists": ("store", "*")}
    by_name = {}
    for shape, (kind, nargs) in shapes.items():
        for word in " ".join(json_data(DATA)[shape]).split():
            name, dest = f"--{word}", word.replace("-", "_")
            later = first_with(name)
            by_name[name] = (
                flags(later).flags[name]
                if later is not None
                else Flag(name=name, dest=dest, kind=kind, type=None, nargs=nargs, choices=(), default="None")
            )
    return by_name


def indifferent() -> frozenset[str]:
    """Return the destinations of MindSpeed's own options on which neither time nor memory depends."""
    return frozenset(" ".join(json_data(DATA)["indifferent"]).replace("-", "_").split())


def refused() -> Mapping[str, str]:
    """Return what MindSpeed's own options do that is not predicted, in words by destination."""
    words: Mapping[str, str] = json_data(DATA)["refused"]
    return words


def uses(names: Collection[str]) -> bool:
    """Return whether options are those of MindSpeed: two or more that no release of Megatron-LM has."""
    return sum(name in own() and first_with(name) is None for name in set(names)) >= _ALIKE


@cache
def table(version: str) -> FlagTable:
    """Return a release's options with MindSpeed's besides, and with the choices that MindSpeed adds to some. Cached."""
    known = flags(version)
    wider = {
        name: replace(flag, choices=(*flag.choices, *more))
        for name, more in _CHOICES.items()
        if (flag := known.flags.get(name)) is not None and flag.choices
    }
    return FlagTable(known.version, {**own(), **known.flags, **wider})

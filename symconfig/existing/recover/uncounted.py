"""Options that the prediction knows nothing of: some are refused, and the prediction is made without the others.

destinations.json sorts every destination of every version of Megatron-LM that no link reads: `read` has those that the
prediction counts; `undescribed` those of models that no descriptor describes; `refused` and `without` what the others
are, or what is counted in their place; `indifferent` those that neither memory nor time depends on, by the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Assumed
from symconfig.formats.megatron import DEGREES, LINKED
from symconfig.formats.megatron_run import DECIDED
from symconfig.frameworks.megatron import mindspeed
from symconfig.frameworks.megatron.flags import Value, defaults, first_with, versions
from symconfig.resources import json_data

DATA = Path(__file__).with_name("destinations.json")
_EXPERT_SHARDS = "expert_tensor_parallel_num_weight_shards"
_NOTHING: tuple[Value, ...] = (None, False, 0, "", ())  # a switch that is off, however a version says it


def destinations() -> dict[str, Any]:
    """Return destinations.json: refused and left out destinations with the reason, others by kind."""
    return json_data(DATA)


@cache
def counted() -> frozenset[str]:
    """Return the destinations on which the prediction depends. Cached."""
    data = destinations()
    ignored = set(data["without"]).union(*data["indifferent"].values())
    return frozenset(data["read"]).union(data["undescribed"]) | LINKED | (DECIDED - ignored)


def refused(names: Namespace, kind: str = "refused", experts: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (destination, reason) of each option of a kind with another value than its default.

    "refused": of runs that are not predicted; "undescribed": of models that no descriptor describes. experts: whether
    the model has any; without them, or up to their degree of tensor parallelism, shards of their weights split nothing.
    """
    own = mindspeed.refused() if kind == "refused" else {}
    for dest, what in (*destinations()[kind].items(), *own.items()):
        if dest == _EXPERT_SHARDS and not (experts and _splits_experts(names)):
            continue
        if not _equal(names[dest], _default(dest, names.table.version)):
            yield dest, what


def _splits_experts(names: Namespace) -> bool:
    """Return whether the experts' weights have more shards than tensor-parallel ranks: Megatron-LM's own default."""
    etp = names.whole(DEGREES["etp"], names.whole(DEGREES["tp"]))
    return names.whole(_EXPERT_SHARDS, etp) > etp


def left_out(names: Namespace) -> Iterator[Assumed]:
    """Yield an assumption for each given option that may change memory or time but is ignored by the prediction.

    Options at their default are skipped. Those of MindSpeed without a price share an assumption, as do unknown ones.
    """
    without = destinations()["without"]
    for dest, setting in names.written.items():
        if dest not in without:
            continue
        if dest in names.dark or not _equal(names[dest], _default(dest, names.table.version)):
            yield Assumed("predicted without", setting.spelled, without[dest], setting.place)
    own = [setting.spelled for dest, setting in names.written.items() if dest in _unpriced_of_mindspeed()]
    if own:
        why = "options of MindSpeed that have no price here"
        yield Assumed("predicted without", ", ".join(own), why, names.settings[0].place)
    if names.unknown:
        spelled = dict.fromkeys(setting.spelled for setting in names.unknown)
        yield Assumed(
            "predicted without",
            ", ".join(spelled),
            "options of no release of Megatron-LM: what they change is not known",
            names.unknown[0].place,
        )


@cache
def _unpriced_of_mindspeed() -> frozenset[str]:
    dests = {flag.dest for flag in mindspeed.own().values() if first_with(flag.name) is None}
    return frozenset(dests - mindspeed.indifferent() - mindspeed.refused().keys())


def _default(dest: str, version: str) -> Value:
    """Return the default in this version, else in the newest version that has the destination; None if none has it."""
    return next((defaults(each)[dest] for each in (version, *reversed(versions())) if dest in defaults(each)), None)


def _equal(one: Value, other: Value) -> bool:
    return one == other or (one in _NOTHING and other in _NOTHING)

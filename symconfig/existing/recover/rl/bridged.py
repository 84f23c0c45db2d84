"""A model that Megatron-Bridge, or mcore-bridge, trains by adapters beside the layers of Megatron-LM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects.override import entries_of
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.recover import megatron
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Described, Run, Supplied
from symconfig.formats.renamed import MS_SWIFT
from symconfig.frameworks.megatron.adapters import FUSED, PARTS, refusals

# What Megatron-Bridge switches on by itself for experts (0.3.1 to 0.6.0, models).
EXPERTS = ("--moe-grouped-gemm", "--moe-permute-fusion")


def modules(given: Iterable[str]) -> tuple[str, ...]:
    """Return the adapted layers by the descriptor's names; all linear layers if the list is empty or says "all"."""
    named = tuple(given)
    if not named or {"all-linear", "all", ""} & {*named}:
        return tuple(FUSED.values())
    known: Mapping[str, str] = {**FUSED, **PARTS}
    return tuple(known.get(name, name) for name in named)


def options(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Return keys of Megatron-Core's configuration or ms-swift as Megatron-LM's options; others are left out."""
    own = MS_SWIFT.keys()
    given = ((each, Word.of("true", each.place)) for each in settings)
    keys = (
        replace(each, name=f"model.{own.get(each.key, each.key)}", values=each.values or (on,)) for each, on in given
    )
    return translated(by_path(entries_of(tuple(keys), False)))[0]


def run(
    names: Namespace,
    gpus: int,
    cluster: ClusterDescriptor,
    supplied: Supplied,
    model: Described,
    problem: Callable[[str], Problem],
    target: str | None = None,
) -> Run:
    """Return the run of a model with adapters by Megatron-LM's options. Raises InputError.

    gpus: all that train. model: with its adapter; a given mtp_num_layers replaces its own. problem: makes a problem
    about
    the adapters. target: program that adds them; None means Megatron-Bridge.
    """
    # Megatron-LM's own options know no adapters. An option says how many layers predict further tokens, also of a
    # published model whose Transformers class has none (Qwen3.5, Qwen3-Next); without it config.json does.
    update: dict[str, object] = {"adapter": None}
    if names.given("mtp_num_layers"):
        update["num_nextn_predict_layers"] = names.whole("mtp_num_layers", 0)
    assumption = replace(supplied, model=model.model.model_copy(update=update))
    made = megatron.run(names, gpus, cluster, assumption)
    if refused := [reason for _, reason in refusals(model.model, target)]:
        raise InputError([problem(reason) for reason in refused])
    adapted = made.described.model.model_copy(update={"adapter": model.model.adapter})
    described = replace(made.described, model=adapted, assumed=(*model.assumed, *made.described.assumed))
    return replace(made, described=described, program=target)


def split(names: Namespace, degrees: Sequence[str] = ("tensor_model", "pipeline_model", "context")) -> int:
    """Return the GPUs per replica: the product of `degrees`."""
    return math.prod(names.whole(f"{each}_parallel_size") for each in degrees)

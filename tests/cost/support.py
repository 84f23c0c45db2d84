"""One plan's cost, part by part, without the search around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.cost.framework import Hide
from symconfig.cost.machine import machine
from symconfig.cost.table import Choice, block_costs, resolve, table
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import derived, sequence
from symconfig.graph.scheme import Scheme
from symconfig.plans.configuration import Configuration
from symconfig.solve.costed import Costed, costed, detailed, sizes
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.run import request
from symconfig.solve.search import resolved
from symconfig.solve.split import splits
from symconfig.solve.stages import Layouts
from tests.sample_models import sample_cluster
from tests.solve.naive import job


def cost(
    model: ModelDescriptor,
    *,
    tp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    dp: int = 1,
    micro: int = 1,
    microbatches: int = 1,
    seq_length: int = 2048,
    zero: int = 0,
    modules: frozenset[str] = frozenset(),
    offload: frozenset[str] = frozenset(),
    backend: str = "megatron",
    cluster: ClusterDescriptor | None = None,
    hide: bool = True,
    overlap: dict[str, float] | None = None,
    habits: dict[str, Any] | None = None,
    **fields: Any,
) -> Costed:
    """Seconds and bytes by part; sequence parallelism with tp, as the search does it for Megatron."""
    cluster = cluster or sample_cluster()
    asked = job(tp * pp * cp * dp, dp * micro * microbatches, seq_length, backend=backend, **fields)
    asked = resolved(model, cluster, asked)
    wanted = request(model, cluster, asked, str(asked.precision))
    if not hide:
        wanted = replace(wanted, framework=replace(wanted.framework, hide=Hide()))
    if overlap is not None:
        shares = replace(wanted.framework.hide, **overlap)  # type: ignore[arg-type]  # a count is whole
        wanted = replace(wanted, framework=replace(wanted.framework, hide=shares))
    if habits:
        wanted = replace(wanted, framework=replace(wanted.framework, **habits))
    kinds = sequence(model)
    split = splits(kinds, pp, vpp, dict.fromkeys(kinds, 1.0), Layouts(any_cut=False))[0]
    megatron = backend == "megatron"
    found = Prospect(
        request=wanted,
        machine=machine(cluster, wanted.precision),
        scheme=Scheme(megatron and tp > 1, "p2p" if megatron or cp == 1 else "a2a"),
        split=split,
        configuration=Configuration(
            tp=tp,
            pp=pp,
            vpp=vpp,
            cp=cp,
            ep=ep,
            etp=etp,
            dp=dp,
            micro=micro,
            global_batch=wanted.global_batch,
            seq_length=wanted.seq_length,
            zero_stage=zero,  # type: ignore[arg-type]
            **recomputing(Choice(modules)),
        ),
    )
    if not offload:
        return costed(found)
    where, choices = sizes(found, 1), (Choice(modules, offload),)
    of_kind = derived(model, wanted.framework.implementation, found.scheme)
    costs = block_costs(of_kind, where, found.machine, wanted.framework)
    return detailed(found, table(costs, choices, resolve(of_kind, choices), found.machine, wanted.framework))


def seconds(parts: Costed) -> dict[str, float]:
    return {name: float(part.max()) for name, part in parts.cost.time.items()}


def stage_bytes(parts: Costed, name: str) -> list[float]:
    """Of every pipeline stage."""
    part = parts.cost.memory[name]
    return [float(part[min(stage, part.shape[0] - 1)].max()) for stage in range(parts.setting.pipelines.only.pp)]

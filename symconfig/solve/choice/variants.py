"""Plainer variants of a plan: the same split of the model with less that is unusual inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.cost.device import device_bytes
from symconfig.cost.stages import Offload
from symconfig.cost.step import HOST_SHARE, host_bytes
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.graph.model import sequence
from symconfig.solve.budget import peak_budget
from symconfig.solve.choice.simplicity import FEW_CHUNKS
from symconfig.solve.costed import costed
from symconfig.solve.extras import EXTRAS, switched_on
from symconfig.solve.pieces import recompute_choices
from symconfig.solve.prospect import Prospect
from symconfig.solve.split import Split, equal, uneven
from symconfig.solve.stages.content import layers
from symconfig.solve.stages.problem import Layouts
from symconfig.solve.timeline import refined_s

# What is tried of each plan, so that the choice takes a part of a second.
MOST_SPLITS, MOST_MANY, MOST_CHOICES = 4, 2, 2
LOST = 1.06  # of the plan's step: a variant whose formula takes longer is not simulated


def variants(prospect: Prospect) -> tuple[Prospect, ...]:
    """Return plainer plans of the same degrees but for chunks: fewer chunks, equal stages or the customary ones, less
    recompute, no states in host memory, a micro-batch that is a power of two; those that fit, with their simulated
    steps."""
    base, result = [prospect, *_round(prospect)], []
    if any((prospect.offload.optimizer, prospect.offload.weights)) and prospect.request.pins.fraction is None:
        base.append(replace(prospect, offload=Offload()))
    for plain in base:
        splits = [prospect.split, *_splits(prospect)]
        for split in splits:
            other = replace(plain, split=split, degrees=replace(plain.degrees, vpp=split.vpp))
            for choice in _less(other, first=split is prospect.split and plain is prospect):
                if (tried := _priced(choice, prospect)) is not None:
                    result.append(tried)
                    break
    return tuple(result)


def with_less(prospect: Prospect, cluster: ClusterDescriptor) -> Iterator[Prospect]:
    """Yield the plan with one option beside its degrees left off, where its pins let it be and it fits.

    What a plan has without any price stays on (`extras.Extra.alone`).
    """
    request = prospect.request
    for extra in EXTRAS:
        if extra.alone or request.pins.fixes(extra.pin) or getattr(prospect.extras, extra.name) == extra.usual:
            continue
        less = replace(prospect.extras, **{extra.name: extra.usual})
        other = replace(prospect, request=switched_on(request, less, cluster.gpu.architecture))
        if (priced := _priced(other, prospect)) is not None:
            yield priced


def _round(prospect: Prospect) -> Iterator[Prospect]:
    """Yield the plan with the powers of two on both sides of a micro-batch that is none, where it runs with them."""
    request, micro = prospect.request, prospect.micro
    below = 1 << (micro.bit_length() - 1)
    for other in () if micro == below else (below, 2 * below):
        changed = replace(prospect, micro=other)
        divides = request.global_batch % (prospect.degrees.dp * other) == 0
        if divides and request.pins.allows("mbs", other) and not changed.refused():
            yield changed


def _splits(prospect: Prospect) -> list[Split]:
    """Return layouts that are plainer than its own, the fewest changes first: as many chunks or fewer."""
    request, pp = prospect.request, prospect.degrees.pp
    if pp == 1 or request.pins.layout is not None:
        return []
    counts = range(prospect.split.vpp, max(request.limits.least_chunks, 1) - 1, -1)
    kinds, layouts = sequence(request.model), request.limits.layouts
    every = [
        split
        for vpp in counts
        if request.pins.allows("vpp", vpp)
        for split in _usual(kinds, pp, vpp, layouts)
        if split != prospect.split
    ]
    many = [split for split in every if split.vpp > FEW_CHUNKS][:MOST_MANY]
    return [*many, *(split for split in every if split.vpp <= FEW_CHUNKS)][:MOST_SPLITS]


def _usual(kinds: tuple[str, ...], pp: int, vpp: int, layouts: Layouts) -> Iterator[Split]:
    """Return equal stages, those with the ends as layers, and a layer of each chunk moved from the last stage to the
    first.
    """
    each, left = divmod(layers(kinds), pp)
    ends = ((False, False), (True, True), (True, False), (False, True)) if layouts.account else ((False, False),)
    splits = [equal(kinds, pp, vpp, *end) for end in ends]
    if layouts.first_last and not left:
        splits.append(uneven(kinds, pp, vpp, each + vpp, each - vpp if pp > 2 else None))
    yield from (split for split in splits if split is not None)


def _less(prospect: Prospect, first: bool) -> Iterator[Prospect]:
    """Yield the candidate with less and less of its recompute; first: without its own, which is known."""
    choices = sorted(
        (
            choice
            for choice in recompute_choices(prospect.request)
            if not choice.offload and not prospect.block_layers and choice.modules < prospect.choice.modules
        ),
        key=lambda choice: (len(choice.modules), sorted(choice.modules)),
    )
    for choice in choices[:MOST_CHOICES]:
        yield replace(prospect, choice=choice)
    if not first:
        yield prospect


def _priced(prospect: Prospect, reference: Prospect) -> Prospect | None:
    """Return the candidate with its simulated step; None where it does not fit or is clearly slower."""
    parts = costed(prospect)
    machine, request = prospect.machine, prospect.request
    peak = max(parts.peaks)
    if peak > peak_budget(request, machine) or float(parts.cost.step_s[0, 0, 0]) > LOST * reference.step_s:
        return None
    if host_bytes(parts.sums, parts.points, parts.setting).max() > HOST_SHARE * machine.host_memory_bytes_per_gpu:
        return None
    step = refined_s(prospect, parts)
    return replace(prospect, step_s=step, score=step, device_bytes=device_bytes(peak, machine, request.framework))

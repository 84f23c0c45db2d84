"""How plain a plan is: what decides between plans that the cost model cannot tell apart, in a written order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from symconfig.frameworks.tables import options
from symconfig.graph.operator import LAYER
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.solve.choice.published import Split
from symconfig.solve.found import Found

# Published recipes in model_zoo/recipes and in frameworks' guides: chunks a stage are mostly 4 or 5; where there is
# context parallelism, ranks have 8,192 tokens or more.
FEW_CHUNKS = 5
ENOUGH_TOKENS = 8192
FEW_NODES = 4  # over which experts are spread at most, where one node is too small

Simplicity = tuple[float, ...]


def simplicity(found: Found, near: int, published: Collection[Split] = ()) -> Simplicity:
    """Return what is unusual about a plan, less is plainer; what stands first decides first.

    offload of activations, optimizer and weights; options that are not stable; a split of the model that no published
    layout has (1), where any are known for such a job; stages: equal (0), with the ends as
    layers or with a count on the ends (1), cut freely (2); chunks a stage beyond a few; tp beyond the GPUs that fast
    links join; cp with fewer tokens a rank than recipes have; ep beyond those GPUs (1), beyond a few nodes (2); etp;
    recompute: none, of modules, of layers; micro-batches that are no power of two; options beside their defaults; then
    the number of chunks and of recomputed modules. near: GPUs that fast links join.
    """
    p, seq_length = found.degrees, found.request.seq_length
    offloads = bool(found.choice.offload) + found.offload.optimizer + found.offload.weights
    full = bool(found.block_layers) or LAYER in found.choice.modules
    spread = p.ep * p.etp
    return (
        offloads,
        _not_stable(found),
        bool(published) and (p.tp, p.pp, p.cp, p.ep) not in published,
        _stages(found),
        p.vpp if p.vpp > FEW_CHUNKS else 0,
        p.tp if p.tp > near else 1,
        p.cp if p.cp > 1 and seq_length < ENOUGH_TOKENS * p.cp else 1,
        (spread > near) + (spread > FEW_NODES * near),
        p.etp,
        2 if full else 1 if found.choice.modules else 0,
        found.micro & (found.micro - 1) > 0,
        len(found.extras.on),
        p.vpp,
        len(found.choice.modules),
    )


def _stages(found: Found) -> int:
    split = found.split
    if split.layout is not None:
        return 2
    counted = split.account_for_embedding or split.account_for_loss
    return int(counted or split.first_layers is not None or split.last_layers is not None)


def _not_stable(found: Found) -> int:
    """Count the options of a plan that are not stable in its release."""
    request = found.request
    point = replace(
        found.columns().at(0),
        zero=int(found.zero),
        optimizer_offload=found.offload.optimizer,
        param_offload=found.offload.weights,
        activation_offload=bool(found.choice.offload),
        modules=tuple(sorted(found.choice.modules)),
        empty_chunks=not all(found.split.chunks),
        uneven_chunks=found.split.vpp > 1 and is_uneven(found.split.chunks),
    )
    known = (one for one in options(request.job.backend) if one.standing(request.version) is not None)
    return sum(option.used(request.limits.fixed, point) for option in known)

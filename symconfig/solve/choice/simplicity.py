"""How plain a plan is: what decides between plans that the cost model cannot tell apart, in a written order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from symconfig.frameworks.tables import options
from symconfig.graph.block import LAYER
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.solve.choice.published import Split
from symconfig.solve.prospect import Prospect

# Published recipes in model_zoo/recipes and in frameworks' guides: chunks a stage are mostly 4 or 5; where there is
# context parallelism, ranks have 8,192 tokens or more. What fewer of them have decides before what more have: of 295 on
# NVIDIA's GPUs 3 have tp beyond joined GPUs, none etp, 21 recompute whole layers. Of the 199 with a pipeline 9 do, and
# without that 44 have stages of a string (7 of them cut freely) and 42 many chunks; of the 171 with experts 12 do, and
# without that 40 have experts beyond joined GPUs.
FEW_CHUNKS = 5
ENOUGH_TOKENS = 8192
FEW_NODES = 4  # over which experts are spread at most, where one node is too small

Simplicity = tuple[float, ...]


def simplicity(prospect: Prospect, joined: int, published: Collection[Split] = ()) -> Simplicity:
    """Return what is unusual about a plan, less is plainer; what stands first decides first.

    offload of activations, optimizer and weights; options that are not stable; a split of the model that no published
    layout has (1), where any are known for such a job; tp beyond the GPUs that fast links join; etp; recompute of whole
    layers; stages: equal (0), with the ends as layers or with a count on the ends (1), cut with other ends (2), cut
    freely (3); chunks a stage beyond a few; cp with fewer tokens a rank than recipes have; ep beyond joined GPUs (1),
    beyond a few nodes (2); recompute of modules; micro-batches that are no power of two; options beside their
    defaults; then the number of chunks and of recomputed modules. joined: GPUs that fast links join.
    """
    p, seq_length = prospect.degrees, prospect.request.seq_length
    offloads = bool(prospect.choice.offload) + prospect.offload.optimizer + prospect.offload.weights
    full = bool(prospect.block_layers) or LAYER in prospect.choice.modules
    spread = p.ep * p.etp
    return (
        offloads,
        _not_stable(prospect),
        bool(published) and (p.tp, p.pp, p.cp, p.ep) not in published,
        p.tp if p.tp > joined else 1,
        p.etp,
        full,
        _stages(prospect),
        p.vpp if p.vpp > FEW_CHUNKS else 0,
        p.cp if p.cp > 1 and seq_length < ENOUGH_TOKENS * p.cp else 1,
        (spread > joined) + (spread > FEW_NODES * joined),
        bool(prospect.choice.modules),
        prospect.micro & (prospect.micro - 1) > 0,
        len(prospect.extras.on),
        p.vpp,
        len(prospect.choice.modules),
    )


def _stages(prospect: Prospect) -> int:
    split = prospect.split
    if split.layout is not None:
        return 3 if is_uneven(split.chunks) else 2
    counted = split.account_for_embedding or split.account_for_loss
    return int(counted or split.first_layers is not None or split.last_layers is not None)


def _not_stable(prospect: Prospect) -> int:
    """Count the options of a plan that are not stable in its release."""
    request = prospect.request
    point = replace(
        prospect.columns().at(0),
        zero=int(prospect.zero),
        optimizer_offload=prospect.offload.optimizer,
        param_offload=prospect.offload.weights,
        activation_offload=bool(prospect.choice.offload),
        modules=tuple(sorted(prospect.choice.modules)),
        empty_chunks=not all(prospect.split.chunks),
        uneven_chunks=prospect.split.vpp > 1 and is_uneven(prospect.split.chunks),
    )
    known = (one for one in options(request.job.backend) if one.standing(request.version) is not None)
    return sum(option.used(request.limits.fixed, point) for option in known)

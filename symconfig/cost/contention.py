"""What work loses to a collective beside it, and what of the collective shows then."""

from __future__ import annotations

from typing import Any

import numpy as np

from symconfig.cost import compiled, either
from symconfig.cost.lattice import Array
from symconfig.cost.machine import Number

# Share of the time of a hidden collective that the work beside it loses: NCCL's kernels hold compute units (24 to 32 of
# 108 to 132), so that a matrix product needs another wave, and both want memory. Fitted: FSDP of 13B with 4,096 tokens
# a GPU, where most is hidden, on A100 and H100 alike; it holds for the backward of arXiv 2205.05198, table 4, too.
CONTENTION = 0.45
# The same of compute units alone, where what the network brings is little beside the memory's rate: replicas of a stage
# are on different nodes. An all-to-all's kernels hold 20 to 32 of 132 to 152 units (DeepEP's and HybridEP's defaults;
# moe_hybridep_num_sms in Megatron-Bridge's performance scripts).
UNITS_TAKEN = 0.2
# What each byte of a collective moves in memory: it arrives in a buffer, is read from there and written to its place.
_TOUCHED = 3.0


def taken(amount: Array | float, seconds: Array | float, hbm_bytes_per_s: Number) -> Array:
    """Return the share of a collective's time that the work beside it loses: compute units, and what the collective's
    own traffic takes of the memory's rate; as fitted, where the links are the fastest.
    """
    traffic = _TOUCHED * amount / np.where(seconds > 0, seconds, 1.0) / hbm_bytes_per_s
    result: Array = either.minimum(UNITS_TAKEN + traffic, CONTENTION)
    return result


def shown_s(seconds: Any, work_s: Any, hide: Any, share: Any) -> Any:
    """Return what of a collective shows beside work, with what the work loses to it. hide: the share of the work that
    it may hide behind. share: of the hidden time, lost.
    """
    slowed = compiled.slowed_s(seconds, work_s, hide, share)
    return compiled.exposed_s(seconds, work_s + slowed, hide) + slowed

"""Many configurations at once: the names of `Degrees` and `Batch`, each an array with one value a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from symconfig.plans.degrees import Degrees

Values = NDArray[Any]  # [n]: int64 where they are tested for division, float64 where they are priced


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Configurations of one pipeline and one scheme. Arrays [n]; what all of them share is one plain value.

    tp: tensor, pp: pipeline, vpp: chunks of each stage, cp: context, ep: expert, etp: tensor parallelism inside an
    expert, dp: data parallelism; tp * cp * dp * pp = GPUs. micro: sequences of a microbatch on one data rank.
    num_microbatches: that each data rank runs in a step; like dp rounded down where it does not divide.
    cp_comm: p2p (keys travel), a2a (Ulysses) or all_gather.
    """

    tp: Values
    pp: int
    vpp: int = 1
    cp: Values
    ep: Values
    etp: Values
    dp: Values
    micro: Values
    num_microbatches: Values
    seq_length: int
    sequence_parallel: bool
    cp_comm: str
    precision: str

    def at(self, chosen: NDArray[Any] | slice) -> Columns:
        """Take some of the configurations, by their places or by a mask."""
        return Columns(
            tp=self.tp[chosen],
            pp=self.pp,
            vpp=self.vpp,
            cp=self.cp[chosen],
            ep=self.ep[chosen],
            etp=self.etp[chosen],
            dp=self.dp[chosen],
            micro=self.micro[chosen],
            num_microbatches=self.num_microbatches[chosen],
            seq_length=self.seq_length,
            sequence_parallel=self.sequence_parallel,
            cp_comm=self.cp_comm,
            precision=self.precision,
        )

    def row(self, place: int, vpp: int) -> Degrees:
        """Take the degrees of one configuration, with so many chunks a stage."""
        tp, cp, ep, etp, dp = (int(column[place]) for column in (self.tp, self.cp, self.ep, self.etp, self.dp))
        return Degrees(tp=tp, pp=self.pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp)

    @property
    def size(self) -> int:
        """Count the configurations."""
        return int(self.tp.size)

    @property
    def degrees(self) -> dict[str, Values]:
        """The degrees that divide a stage, by name."""
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "ep": self.ep, "etp": self.etp}

    @property
    def shards(self) -> Values:
        """Count the ranks with the same dense weights: the parts into which ZeRO cuts them."""
        return self.dp * self.cp

    @property
    def edp(self) -> Values:
        """Count the replicas of each expert within a pipeline stage."""
        replicas: Values = self.tp * self.cp * self.dp / (self.ep * self.etp)
        return replicas

"""Many configurations at once, or one: the names of `Degrees`, `Batch` and `Options`, each a column.

Costs take columns as numbers, constraints as facts of which any may be UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from symconfig.format import picked
from symconfig.plans.degrees import Degrees
from symconfig.plans.options import extras_of
from symconfig.plans.plan import Candidate
from symconfig.plans.unknown import UNKNOWN

# Columns that `Options` has under the same name.
_SAME = ("sequence_parallel", "precision", "optimizer_offload", "param_offload", "activation_offload")
Values = NDArray[Any]  # [n]: int64 where they are tested for division, float64 where they are priced


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Columns of configurations: each an array [n], or one plain value that all share.

    UNKNOWN: nobody decided or wrote it.

    tp to dp: as in `Degrees`. micro: sequences of a microbatch on one data rank. num_microbatches: that each data rank
    runs in a step; like dp rounded down where it does not divide. group: microbatches of an interleaved schedule's
    round. cp_comm: p2p (keys travel), a2a (Ulysses) or all_gather; where layers differ, words with blanks between.
    instances: groups of ranks that each have all parts of what ZeRO cuts. recompute: none, selective or full; modules:
    those that selective recompute runs again. moe_overlap: the experts' all-to-all runs beside another microbatch;
    flex_backend: whose kernels are in its place, deepep or hybridep. tp_comm: products and their collectives run in
    pieces. graphs: what CUDA graphs replay.
    """

    gpus: Any = UNKNOWN
    tp: Any = UNKNOWN
    pp: Any = UNKNOWN
    vpp: Any = UNKNOWN
    cp: Any = UNKNOWN
    ep: Any = UNKNOWN
    etp: Any = UNKNOWN
    dp: Any = UNKNOWN
    micro: Any = UNKNOWN
    global_batch: Any = UNKNOWN
    num_microbatches: Any = UNKNOWN
    group: Any = UNKNOWN
    seq_length: Any = UNKNOWN
    sequence_parallel: Any = UNKNOWN
    cp_comm: Any = UNKNOWN
    precision: Any = UNKNOWN
    zero: Any = UNKNOWN
    instances: Any = UNKNOWN
    grad_bytes: Any = UNKNOWN
    optimizer_offload: Any = UNKNOWN
    param_offload: Any = UNKNOWN
    activation_offload: Any = UNKNOWN
    recompute: Any = UNKNOWN
    recompute_method: Any = UNKNOWN
    recompute_layers: Any = UNKNOWN
    modules: Any = UNKNOWN
    moe_overlap: Any = UNKNOWN
    moe_dispatcher: Any = UNKNOWN
    flex_backend: Any = UNKNOWN
    tp_comm: Any = UNKNOWN
    graphs: Any = UNKNOWN
    fused_loss: Any = UNKNOWN
    fp8_param_gather: Any = UNKNOWN

    @classmethod
    def of(cls, candidate: Candidate) -> Self:
        """Return the columns of one candidate, each a plain value; defaults stand for options that are None.

        Those are: group pp, cp_comm p2p, recompute_method and moe_dispatcher "", recompute_layers 1, and those of
        EXTRAS.
        """
        batch, options = candidate.batch, candidate.options
        return cls(
            gpus=candidate.parallel.world_size,
            **picked(candidate.parallel, *DEGREES),
            **picked(options, *_SAME),
            **extras_of(options),
            micro=batch.micro,
            global_batch=batch.global_,
            num_microbatches=batch.num_microbatches,
            group=options.microbatch_group_size or candidate.parallel.pp,
            seq_length=batch.seq_length,
            cp_comm=options.cp_comm or "p2p",
            zero=options.zero_stage,
            recompute=options.recompute.granularity,
            recompute_method=options.recompute.method or "",
            recompute_layers=options.recompute.num_layers or 1,
            modules=options.recompute.modules,
            moe_dispatcher=options.moe_dispatcher or "",
        )

    def at(self, chosen: NDArray[Any] | slice | int) -> Self:
        """Return the selected configurations: indices, mask or slice; an int gives one, with scalars.

        Columns that are plain values or UNKNOWN stay as they are.
        """
        return self._each(lambda column: column[chosen])

    def as_floats(self, chosen: NDArray[Any] | slice = slice(None), **given: Values | int) -> Self:
        """Return the selected configurations with arrays of numbers as float64; integers' products could overflow.

        given: columns that replace these, not converted.
        """
        return self._each(lambda column: _priced(column[chosen]), **given)

    def _each(self, change: Callable[[Values], Values], **given: Values | int) -> Self:
        columns = zip(COLUMNS, _of_all(self), strict=True)
        changed = {name: change(column) if isinstance(column, np.ndarray) else column for name, column in columns}
        return type(self)(**changed | given)

    def row(self, place: int, vpp: int) -> Degrees:
        """Return the degrees of the configuration at an index, with the given vpp."""
        columns = {name: getattr(self, name) for name in DEGREES if name != "vpp"}
        values = {name: column[place] if isinstance(column, np.ndarray) else column for name, column in columns.items()}
        return Degrees(vpp=vpp, **{name: int(number) for name, number in values.items()})

    @property
    def size(self) -> int:
        """Return the number of configurations; tp must be an array."""
        return int(self.tp.size)

    @property
    def degrees(self) -> dict[str, Values]:
        """Return the degrees that divide a stage, by name."""
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "ep": self.ep, "etp": self.etp}

    @property
    def shards(self) -> Values:
        """Return the number of ranks that hold the same dense weights, dp * cp, over which ZeRO shards them."""
        ranks: Values = self.dp * self.cp
        return ranks

    @property
    def edp(self) -> Values:
        """Return the number of replicas of each expert within a pipeline stage."""
        replicas: Values = self.tp * self.cp * self.dp / (self.ep * self.etp)
        return replicas


def _priced(column: Values) -> Values:
    """Return a column as float64; a column of objects as it is."""
    return column if column.dtype.hasobject else column.astype(np.float64)


DEGREES = tuple(one.name for one in fields(Degrees))
COLUMNS = tuple(one.name for one in fields(Columns))
_of_all = attrgetter(*COLUMNS)

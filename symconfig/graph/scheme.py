"""Which dims each mesh axis may split: the structure of a strategy, without its degrees.

A new parallel axis is a rule here; a new building block never is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from symconfig.graph import dims as d
from symconfig.graph.layout import PARTIAL, Layout, Place
from symconfig.graph.operator import Operator, Use
from symconfig.graph.parts import parts

CpComm = Literal["p2p", "a2a", "all_gather"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """Describe the structure of a strategy, without its degrees.

    sequence_parallel: the sequence is split over tp between the tensor-parallel regions. cp_comm: inside attention
    keys are exchanged (p2p, all_gather), or heads are split instead (a2a, Ulysses). If an operator needs the whole
    sequence, its block says which of its dims are split instead, if any. shared_heads: tensor-parallel ranks share
    key/value heads, since there are fewer heads than ranks. weight_shards: linear weights are stored in parts over gtp,
    an axis inside data parallelism, and gathered before each use.
    """

    sequence_parallel: bool
    cp_comm: CpComm = "p2p"
    shared_heads: bool = False
    weight_shards: bool = False

    def assign(self, op: Operator) -> dict[str, tuple[str, ...]]:
        """Return, for each axis, the loops of `op` that it splits; axes that split none are absent. tp and cp skip
        loops in `op.whole`, except for heads under a2a.

        dp: batch. cp: the exchanged dims of the parts if the operator needs the sequence undivided; under a2a, query
        and key/value heads of an operator with a keys loop; else the sequence. tp: all dims of `parts().tensor_dims`;
        if there are none, the sequence with sequence_parallel, but not beside a loop WHOLE_VOCAB or GATHERED. With slot
        loops, etp, ep and edp: all the slots if the sequence is a loop, too (a permutation), else expert widths,
        experts and slots.
        """
        loops, free = set(op.loops), set(op.loops).difference(op.whole)
        axes: dict[str, tuple[str, ...]] = {"dp": _present(loops, (d.BATCH,))}
        core = d.KEYS in loops
        split = _present(free, parts().tensor_dims)
        heads = _present(loops, (d.HEADS, d.KV_HEADS))
        if d.SEQUENCE in op.whole:
            axes["cp"] = _present(free, parts().exchanged_dims)
        else:
            axes["cp"] = heads if core and self.cp_comm == "a2a" else _present(free, (d.SEQUENCE,))
        if split:
            axes["tp"] = split
        elif self.sequence_parallel and not loops & {d.WHOLE_VOCAB, d.GATHERED}:
            axes["tp"] = _present(free, (d.SEQUENCE,))
        if slots := _present(loops, d.SLOT_DIMS):
            axes.update(self._expert_axes(loops, slots))
        return {axis: dims for axis, dims in axes.items() if dims}

    def _expert_axes(self, loops: set[str], slots: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if d.SEQUENCE in loops:  # a permutation of tokens into slots: slots lie where the tokens lie
            return dict.fromkeys(("etp", "ep", "edp"), slots)
        return {"etp": _present(loops, d.EXPERT_TENSOR_DIMS), "ep": (d.EXPERTS,), "edp": slots}

    def layout(self, op: Operator, use: Use, produced: bool = False) -> Layout:
        """Return the layout of a tensor as `op` reads it or, if `produced`, produces it. Each axis is placed at the
        tensor's dim along the first loop that it splits there. An axis that splits no loop of the tensor is absent; if
        `produced`, it is partial where it splits a contracted loop.
        """
        dim_of = dict(zip(use.loops, use.tensor.dims, strict=True))
        places: dict[str, Place] = {}
        for axis, splits in self.assign(op).items():
            mine = [loop for loop in splits if loop in dim_of]
            if mine:
                places[axis] = dim_of[mine[0]]
            elif produced and any(dim in op.contracted for dim in splits):
                places[axis] = PARTIAL
        return Layout.of(places)

    def parts(self, op: Operator) -> dict[str, tuple[str, ...]]:
        """Return, for each loop that is split, the axes that split it."""
        result: dict[str, list[str]] = {}
        for axis, splits in self.assign(op).items():
            for dim in splits:
                result.setdefault(dim, []).append(axis)
        return {dim: tuple(axes) for dim, axes in result.items()}


def _present(loops: set[str], candidates: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return tuple(dim for dim in candidates if dim in loops)

"""Seconds and bytes of one block for every point of a lattice of (tp, cp, ep, etp, micro-batch).

The graph's monomials become arrays [points]; the formulas run once per kind of work on all operators stacked
[operators, points]. A recompute policy is then a 0/1 vector over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import formulas
from symconfig.cost.framework import Framework
from symconfig.cost.lattice import Array, Lattice, Uneven, at_busiest, busiest_collectives_s, busiest_work_s
from symconfig.cost.machine import Machine, Number
from symconfig.cost.tape import first_axis_max, maximum
from symconfig.cost.weights import weights
from symconfig.cost.work import (
    PAIRED_HOST,
    collective_s,
    exposed,
    graphed,
    host_seconds,
    inside_experts,
    is_dispatch,
    paired_collectives_s,
    work_seconds,
)
from symconfig.graph.derived import DerivedBlock, Phase, Policy
from symconfig.graph.layout import Kind
from symconfig.graph.operator import ELEMENT_BYTES, Element

PASSES = ("forward", "backward", "forward_comm", "backward_comm", "rerun", "away", "kept", "transient")
SECONDS = slice(PASSES.index("rerun"))  # what runs again is part of the backward
KEPT, TRANSIENT = PASSES.index("kept"), PASSES.index("transient")


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Costs of a derived block at the points of a lattice, by operator and phase, collective and kept tensor."""

    derived: DerivedBlock
    work_s: dict[tuple[str, Phase], Array]
    host_s: dict[tuple[str, Phase], Array]  # of the thread that launches it, without what graphs launch
    full_host_s: dict[tuple[str, Phase], Array]  # with it
    comm_s: tuple[Array, ...]  # exposed, per collective
    full_comm_s: tuple[Array, ...]  # before any overlap
    held_bytes: tuple[Array, ...]
    workspace_bytes: Array  # of the operator that needs most
    weights: Array  # [WEIGHTS, points]
    boundary_bytes: Array
    hidden_s: Array  # [2, points], forward and backward: how much longer they take with no other microbatch beside
    paired: bool  # another microbatch goes forward through a layer beside this one backward
    uneven: Uneven | None  # None: every rank's experts have the mean load

    def at(self, chosen: NDArray[np.intp]) -> BlockCost:
        """Return the costs at the points with these indices: every array is cut along its points; `derived` is kept."""
        return replace(
            self,
            work_s={key: t[chosen] for key, t in self.work_s.items()},
            host_s={key: t[chosen] for key, t in self.host_s.items()},
            full_host_s={key: t[chosen] for key, t in self.full_host_s.items()},
            comm_s=tuple(t[chosen] for t in self.comm_s),
            full_comm_s=tuple(t[chosen] for t in self.full_comm_s),
            held_bytes=tuple(t[chosen] for t in self.held_bytes),
            workspace_bytes=self.workspace_bytes[chosen],
            weights=self.weights[:, chosen],
            boundary_bytes=self.boundary_bytes[chosen],
            hidden_s=self.hidden_s[:, chosen],
            uneven=self.uneven and self.uneven.at(chosen),
        )

    def uneven_bytes(self, policies: Policies, *, least: bool) -> Array:
        """Return the bytes that the busiest rank keeps on the GPU beyond the mean rank: [policies, points].

        They are per microbatch in flight, with a single stage; 0 if loads are even. least: only of tensors that every
        policy keeps, in one row, [1, points].
        """
        if self.uneven is None:
            return np.zeros((1 if least else len(policies), self.boundary_bytes.size))
        beyond = self.uneven.beyond(np.array(self.held_bytes))
        return (policies.always[None] if least else policies.staying) @ beyond

    def passes(self, policies: Policies, host_bytes_per_s: Number, framework: Framework) -> Array:
        """Return one microbatch's costs under each policy, in the order of PASSES: [PASSES, policies, points].

        forward, backward: seconds, with the GPU's waits for a host that launches kernels more slowly; what is
        recomputed is part of the backward, its communication included. forward_comm, backward_comm: exposed seconds,
        also of copies of offloaded tensors, which overlap with forward and backward; each takes the launching thread as
        long as an operator. rerun: what of the backward is recomputed. away (in host memory), kept: bytes per
        microbatch in flight. transient: bytes alive only while the block runs backward.
        """
        forward = {op: t for (op, phase), t in self.work_s.items() if phase is Phase.FORWARD}
        ops = tuple(forward)
        works = np.array([forward[op] for op in ops])
        backward = sum(t for (_, phase), t in self.work_s.items() if phase is not Phase.FORWARD)
        ahead = [(c, t) for c, t in zip(self.derived.collectives, self.comm_s, strict=True) if c.phase is Phase.FORWARD]
        forward_comm = sum((t for _, t in ahead), np.zeros_like(self.boundary_bytes))
        backward_comm = sum(self.comm_s, np.zeros_like(self.boundary_bytes)) - forward_comm
        rerun = policies.rerun(ops)
        repeated = rerun @ works
        again_comm = np.zeros_like(repeated)
        if ahead:
            again_comm = policies.rerun(tuple(c.owner for c, _ in ahead)) @ np.array([t for _, t in ahead])
        held = np.array(self.held_bytes)
        moved, staying = policies.offloaded, policies.staying
        away = moved @ held
        copied, copies_s = away / host_bytes_per_s, moved.sum(axis=1)[:, None] * framework.host_kernel_s
        kept = staying @ held
        working, returned, other = held, away, kept
        if self.uneven is not None:
            working = self.uneven.busiest(held)
            returned, other = moved @ working, staying @ working
        # What waits in host memory is back on the GPU while its block runs backward.
        transient = self.workspace_bytes + policies.recomputed_working_set(working) + returned + other * self.paired
        total_forward = works.sum(axis=0)
        host = np.array([self.host_s[op, Phase.FORWARD] for op in ops])
        lead = maximum(total_forward + forward_comm - host.sum(axis=0), 0.0)
        wait = self._forward_wait() + maximum(copies_s - lead, 0.0)
        host_again = rerun @ host
        busy = backward + repeated + backward_comm + again_comm
        wait_backward = maximum(self._host_backward_s() + host_again + copies_s - busy, 0.0)
        result: Array = np.stack(
            np.broadcast_arrays(
                total_forward + wait,
                backward + repeated + again_comm + wait_backward,
                forward_comm + formulas.exposed_s(copied, total_forward, framework.hide.host),
                backward_comm + formulas.exposed_s(copied, backward, framework.hide.host),
                repeated + again_comm,
                away,
                kept,
                transient,
            )
        )
        return result

    def seconds(self) -> Array:
        """Return [4, points]: seconds of forward, of backward, exposed communication of forward, of backward.

        They are the first four of PASSES, without offload and recompute; seconds include the GPU's waits for the host.
        """
        result = np.zeros((4, self.boundary_bytes.size), dtype=self.boundary_bytes.dtype)
        for (_, phase), t in self.work_s.items():
            result[int(phase is not Phase.FORWARD)] += t
        for c, t in zip(self.derived.collectives, self.comm_s, strict=True):
            result[2 + int(c.phase is not Phase.FORWARD)] += t
        result[0] += self._forward_wait()
        result[1] += maximum(self._host_backward_s() - result[1] - result[3], 0.0)
        return result

    def _host_backward_s(self) -> Array | int:
        """Return the host's seconds in the backward pass, [points]; 0 without any."""
        return sum(t for (_, phase), t in self.host_s.items() if phase is not Phase.FORWARD)

    def _forward_wait(self) -> Array:
        """Return the seconds for which the GPU waits for the host in the forward pass, at least 0: [points].

        The host's lag behind the GPU is summed operator by operator, exposed forward communication as GPU time. Without
        experts the lag after the last operator counts. With experts the host waits for each expert's count of tokens
        and loses its lead there, so operators are taken from one layer's experts to the next one's, and the largest lag
        at any of them counts.
        """
        among = inside_experts(self.derived)
        forward = list(dict.fromkeys(work.op for work in self.derived.work if work.phase is Phase.FORWARD))
        first = next((place for place, op in enumerate(forward) if op in among), 0)
        order = (*forward[first:], *forward[:first])
        busy = {op: self.work_s[op, Phase.FORWARD] for op in order}
        for c, t in zip(self.derived.collectives, self.comm_s, strict=True):
            if c.phase is Phase.FORWARD:
                busy[c.owner] = busy[c.owner] + t
        most = behind = self.host_s[order[0], Phase.FORWARD] - busy[order[0]]
        for op in order[1:]:
            behind = behind + (self.host_s[op, Phase.FORWARD] - busy[op])
            most = maximum(most, behind) if among else behind
        result: Array = maximum(most, 0.0)
        return result


def evaluate(
    block: DerivedBlock,
    lattice: Lattice,
    machine: Machine,
    framework: Framework,
    known: dict[object, Array] | None = None,
) -> BlockCost:
    """Return all costs of `block` at every point of `lattice`, overlap and CUDA graphs included.

    Operators and collectives are those of the rank that all wait for, workspaces the busiest rank's, kept tensors the
    mean rank's. With blocking launches the host's seconds are added to each operator, and one launch to each collective
    that takes time.

    known: a cache of collectives' seconds, shared by the blocks of this lattice; it is filled. None: no cache.
    """
    known, full = {} if known is None else known, tuple[Array, ...]()
    for c in block.collectives:
        same = (c.axes, c.elements, c.element, c.times, c.copies, c.groups, c.chosen_groups)
        key = (c.kind if c.kind is Kind.ALL_TO_ALL else c.kind.passes, *same)  # tensor and phase cost nothing
        if key not in known:
            known[key] = collective_s(c, lattice, machine, framework)
        full = (*full, known[key])
    held = lattice.stack([held.elements for held in block.held])
    inputs = machine.quantised_bytes if framework.engine else ELEMENT_BYTES[Element.ACTIVATION]
    element_bytes = ELEMENT_BYTES | {Element.MATMUL_INPUT: inputs}
    sizes = np.array([[element_bytes[held.element]] for held in block.held]).reshape(-1, 1)
    uneven, busiest = Uneven.of(block, lattice), at_busiest(lattice)
    spaces = []  # bytes that are alive only while an operator's backward runs
    for space in block.workspaces:
        moved = (busiest.value(size) * ELEMENT_BYTES[element] for size, element in space.moved)
        spaces.append(sum(moved, np.zeros(lattice.points)))
        if space.weight is not None and not (space.layer and framework.kept_gradient_buffers):
            spaces[-1] = spaces[-1] + ELEMENT_BYTES[Element.ACTIVATION] * busiest.value(space.weight)
    work, host = (each(block, lattice, machine, framework) for each in (work_seconds, host_seconds))
    work, full = busiest_work_s(work, block, lattice), busiest_collectives_s(full, block, lattice)
    if framework.blocking_launches:
        work = {key: t + host[key] for key, t in work.items()}
        full = tuple(t + framework.host_kernel_s * (t > 0) for t in full)
    own = framework.torch_workspace
    own = machine.torch_workspace_bytes if own is None else own
    bare = BlockCost(
        derived=block,
        work_s=work,
        host_s=host,
        full_host_s=host,
        comm_s=full,
        full_comm_s=full,
        held_bytes=tuple(held * sizes),
        workspace_bytes=first_axis_max(np.array(spaces))
        + (own + framework.engine * machine.engine_workspace_bytes + framework.mask_bytes),
        weights=weights(block, lattice, machine, framework),
        boundary_bytes=lattice.value(block.boundary) * ELEMENT_BYTES[Element.ACTIVATION],
        hidden_s=np.zeros((2, lattice.points)),
        paired=False,
        uneven=uneven,
    )
    return with_overlap(bare, framework)


def with_overlap(cost: BlockCost, framework: Framework) -> BlockCost:
    """Return a copy of a block's costs with this framework's overlap and CUDA graphs applied.

    cost: evaluated for a framework that differs in overlap and graphs alone. If it overlaps experts' all-to-alls with
    another microbatch and the block has some, `paired` is set, their exposed seconds are those beside it, `hidden_s` is
    what that saves in forward and backward (else 0), and without graphs the host takes PAIRED_HOST times as long.
    Operators that CUDA graphs replay cost the host nothing.
    """
    collectives, work = cost.derived.collectives, cost.work_s
    paired = framework.hide.experts > 0 and any(is_dispatch(c) for c in collectives)
    replayed = graphed(cost.derived, framework) if framework.graphed else frozenset[str]()
    longer = PAIRED_HOST if paired and not replayed else 1.0
    host = {key: t * (0.0 if key[0] in replayed else longer) for key, t in cost.full_host_s.items()}
    shown = tuple(exposed(c, t, work, framework) for c, t in zip(collectives, cost.full_comm_s, strict=True))
    alone = replace(cost, host_s=host, comm_s=shown, hidden_s=np.zeros_like(cost.hidden_s), paired=paired)
    if not paired:
        return alone
    hidden = replace(alone, comm_s=paired_collectives_s(cost.derived, shown, work, framework.hide.experts))
    less = alone.seconds() - hidden.seconds()
    return replace(hidden, hidden_s=maximum(less[:2] + less[2:], 0.0))


@dataclass(frozen=True)
class Policies:
    """What a block recomputes, keeps and offloads under each of some policies. repeats: a cache of `rerun`."""

    each: Sequence[Policy]
    repeats: dict[tuple[str, ...], Array] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.each)

    def rerun(self, operators: tuple[str, ...]) -> Array:
        """Return 1 for each operator that a policy recomputes, else 0; cached: [policies, operators]."""
        if operators not in self.repeats:
            rows = [[op in policy.rerun for op in operators] for policy in self.each]
            self.repeats[operators] = np.array(rows, dtype=np.float64)
        return self.repeats[operators]

    @cached_property
    def offloaded(self) -> Array:
        """Return 1 for each tensor that a policy keeps in host memory, else 0: [policies, held]."""
        return np.array([policy.offloaded for policy in self.each], dtype=np.float64)

    @cached_property
    def staying(self) -> Array:
        """Return 1 for each tensor that a policy keeps on the GPU, else 0: [policies, held]."""
        kept: Array = np.array([policy.kept for policy in self.each], dtype=np.float64)
        return kept - self.offloaded

    @cached_property
    def always(self) -> Array:
        """Return 1 for each tensor that every policy keeps on the GPU, else 0: [held]."""
        return np.asarray((self.staying > 0).all(axis=0), dtype=np.float64)

    def recomputed_working_set(self, held: Array) -> Array:
        """Return the bytes of the largest recomputed module's tensors: [policies, points]; 0 if none is recomputed.

        held: bytes of each tensor, [held, points].
        """
        sums = {unit: held[list(unit)].sum(axis=0) for unit in {unit for policy in self.each for unit in policy.units}}
        zero = np.zeros(held.shape[1])
        most = {
            units: first_axis_max(np.array([zero, *(sums[unit] for unit in units)]))
            for units in dict.fromkeys(policy.units for policy in self.each)
        }
        return np.array([most[policy.units] for policy in self.each])

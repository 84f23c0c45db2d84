"""Seconds and bytes of one block for every point of a lattice of (tp, cp, ep, etp, micro-batch).

The graph's monomials become arrays [points]; the formulas run once per kind of work on all operators stacked
[operators, points]. A recompute policy is then a 0/1 vector over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from symconfig.cost import compiled
from symconfig.cost.framework import CONTENTION, Framework
from symconfig.cost.host import host_seconds, inside_experts, is_dispatch
from symconfig.cost.machine import Machine
from symconfig.graph.derived import (
    AttentionWork,
    Collective,
    DerivedBlock,
    Matmul,
    Phase,
    Traffic,
    WeightShard,
    Workspace,
)
from symconfig.graph.layout import Kind
from symconfig.graph.monomial import Monomial
from symconfig.graph.operator import Element
from symconfig.graph.recompute import Policy

Array = NDArray[np.float64]
_VOCABULARY = ("word_embedding.weight", "lm_head.weight")
ELEMENT_BYTES = {
    Element.ACTIVATION: 2.0,
    Element.MATMUL_INPUT: 2.0,  # but where a framework keeps it in the matmul's precision
    Element.FP32: 4.0,
    Element.MASK: 1.0,
    Element.INDEX: 8.0,
}
# Per element of a step's result: of each step, and once at the end.
MERGE_BYTES = (2.0 + 4.0 + 4.0, 4.0 + 2.0)
ADD_BYTES = (2.0 + 2.0 + 2.0, 0.0)


@dataclass(frozen=True, slots=True)
class Lattice:
    """Numbers for every symbol: constants as numbers, degrees as arrays of one length."""

    numbers: Mapping[str, float | Array]
    points: int

    def value(self, monomial: Monomial) -> Array:
        """[points]"""
        result = np.full(self.points, float(monomial.coefficient))
        for name, power in monomial.powers:
            number = self.numbers[name]
            result = result * number**power if power > 0 else result / number ** (-power)
        return result

    def stack(self, monomials: list[Monomial]) -> Array:
        """[len(monomials), points]; equal monomials are evaluated once."""
        cache: dict[Monomial, Array] = {}
        rows = []
        for monomial in monomials:
            if monomial not in cache:
                cache[monomial] = self.value(monomial)
            rows.append(cache[monomial])
        return np.array(rows).reshape(len(rows), self.points)


@dataclass(frozen=True, slots=True)
class KeptLattice(Lattice):
    """A small lattice on which blocks are evaluated again and again: every size is evaluated once."""

    known: dict[Monomial, Array] = field(default_factory=dict)

    def value(self, monomial: Monomial) -> Array:
        if monomial not in self.known:
            self.known[monomial] = Lattice.value(self, monomial)
        return self.known[monomial]


PASSES = ("forward", "backward", "forward_comm", "backward_comm", "again", "kept", "transient")
SECONDS = slice(PASSES.index("again"))  # what runs again is part of the backward
KEPT, TRANSIENT = PASSES.index("kept"), PASSES.index("transient")


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of one block on one rank, [points] each."""

    dense: Array
    expert: Array
    frozen: Array
    quantised: Array
    frozen_expert: Array
    buffers: Array  # elements of weight-gradient buffers that the framework keeps, one for each shape
    vocabulary: Array  # of `dense`, those of the look-up or of the head
    frozen_vocabulary: Array  # of `frozen`, the same
    workspaces: Array  # bytes that the libraries of its kernels keep, beside those that every block's have


@dataclass(frozen=True, slots=True)
class BlockCost:
    """A derived block on a lattice: rows by operator, collective and tensor."""

    derived: DerivedBlock
    work_s: dict[tuple[str, Phase], Array]
    host_s: dict[tuple[str, Phase], Array]  # of the thread that launches it
    comm_s: tuple[Array, ...]  # exposed, per collective
    full_comm_s: tuple[Array, ...]  # before hiding
    held_bytes: tuple[Array, ...]
    workspace_bytes: Array  # of the operator that needs most
    weights: Weights
    boundary_bytes: Array

    def at(self, chosen: NDArray[np.intp]) -> BlockCost:
        """Some of the points."""
        weights = Weights(*(getattr(self.weights, name)[chosen] for name in Weights.__slots__))
        return BlockCost(
            self.derived,
            {key: t[chosen] for key, t in self.work_s.items()},
            {key: t[chosen] for key, t in self.host_s.items()},
            tuple(t[chosen] for t in self.comm_s),
            tuple(t[chosen] for t in self.full_comm_s),
            tuple(t[chosen] for t in self.held_bytes),
            self.workspace_bytes[chosen],
            weights,
            self.boundary_bytes[chosen],
        )

    def lean_bytes(self, policies: Sequence[Policy]) -> Array:
        """[points]: what every policy keeps; no policy keeps less."""
        kept = np.array([policy.kept for policy in policies]) & ~np.array([policy.offloaded for policy in policies])
        always: Array = kept.all(axis=0).astype(np.float64)
        return always @ np.array(self.held_bytes)

    def passes(self, policies: Sequence[Policy], host_bytes_per_s: float, hide_host: float) -> Array:
        """[PASSES, policies, points]: each policy is a 0/1 vector over the rows.

        Seconds of one microbatch; the forward that is run again counts as backward. Offloaded tensors leave beside the
        forward and return beside the backward; what does not fit shows. Bytes kept for each microbatch in flight, and
        bytes alive only while the block runs backward. Where the host takes longer to launch a block's kernels than the
        GPU to run them, the GPU waits for it.
        """
        forward = {op: t for (op, phase), t in self.work_s.items() if phase is Phase.FORWARD}
        ops = tuple(forward)
        works = np.array([forward[op] for op in ops])
        backward = sum(t for (_, phase), t in self.work_s.items() if phase is not Phase.FORWARD)
        ahead = [(c, t) for c, t in zip(self.derived.collectives, self.comm_s, strict=True) if c.phase is Phase.FORWARD]
        forward_comm = sum((t for _, t in ahead), np.zeros_like(self.boundary_bytes))
        backward_comm = sum(self.comm_s, np.zeros_like(self.boundary_bytes)) - forward_comm
        again = _rows([[op in policy.again for op in ops] for policy in policies]) @ works
        again_comm = np.zeros_like(again)
        if ahead:
            again_comm = _rows([[c.owner in policy.again for c, _ in ahead] for policy in policies]) @ np.array(
                [t for _, t in ahead]
            )
        held = np.array(self.held_bytes)
        moved = _rows([policy.offloaded for policy in policies])
        away = moved @ held / host_bytes_per_s
        kept = (_rows([policy.kept for policy in policies]) - moved) @ held
        # What waits in host memory is back on the GPU while its block runs backward.
        transient = self.workspace_bytes + _revived(policies, held) + moved @ held
        total_forward = works.sum(axis=0)
        wait = self._forward_wait(ops, works)
        host = np.array([self.host_s[op, Phase.FORWARD] for op in ops])
        host_backward = sum(t for (_, phase), t in self.host_s.items() if phase is not Phase.FORWARD)
        host_again = _rows([[op in policy.again for op in ops] for policy in policies]) @ host
        busy = backward + again + backward_comm + again_comm
        wait_backward = np.maximum(host_backward + host_again - busy, 0.0)
        result: Array = np.stack(
            np.broadcast_arrays(
                total_forward + wait,
                backward + again + wait_backward,
                forward_comm + compiled.exposed_s(away, total_forward, hide_host),
                backward_comm + again_comm + compiled.exposed_s(away, backward, hide_host),
                again + again_comm,
                kept,
                transient,
            )
        )
        return result

    def _forward_wait(self, ops: Sequence[str], works: Array) -> Array:
        """[points]: seconds for which the GPU waits for the host in the forward.

        Before the experts the host waits for the GPU's count of each expert's tokens and so loses its lead: what it
        launches slowly among them, nothing outside them makes up for.
        """
        among = inside_experts(self.derived)
        wait = np.zeros_like(self.boundary_bytes)
        for inside in (True, False):
            mine = [op for op in ops if (op in among) is inside]
            host = sum((self.host_s[op, Phase.FORWARD] for op in mine), np.zeros_like(wait))
            busy = _rows([[(op in among) is inside for op in ops]]) @ works
            busy = busy[0] + sum(
                t
                for c, t in zip(self.derived.collectives, self.comm_s, strict=True)
                if c.phase is Phase.FORWARD and is_dispatch(c) is inside
            )
            wait = wait + np.maximum(host - busy, 0.0)
        return wait


def _rows(bits: Sequence[Sequence[bool]]) -> Array:
    return np.array(bits, dtype=np.float64)


def _revived(policies: Sequence[Policy], held: Array) -> Array:
    """[policies, points]: bytes of the recomputed module that brings back most."""
    sums = {unit: held[list(unit)].sum(axis=0) for unit in {unit for policy in policies for unit in policy.units}}
    zero = np.zeros(held.shape[1])
    return np.array([np.max([zero, *(sums[unit] for unit in policy.units)], axis=0) for policy in policies])


def evaluate(block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework) -> BlockCost:
    """All costs of `block` at every point of `lattice`."""
    work = _work_seconds(block, lattice, machine, framework)
    full = tuple(collective_s(c, lattice, machine, framework) for c in block.collectives)
    exposed = tuple(_exposed(c, t, work, framework) for c, t in zip(block.collectives, full, strict=True))
    if framework.hide.experts:
        exposed = _beside_another(block.collectives, exposed, work, framework.hide.experts)
    held = lattice.stack([held.elements for held in block.held])
    inputs = machine.quantised_bytes if framework.engine else ELEMENT_BYTES[Element.ACTIVATION]
    element_bytes = ELEMENT_BYTES | {Element.MATMUL_INPUT: inputs}
    sizes = np.array([[element_bytes[held.element]] for held in block.held]).reshape(-1, 1)
    spaces = [_space(space, lattice, framework) for space in block.workspaces]
    return BlockCost(
        block,
        work,
        host_seconds(block, lattice, machine, framework),
        exposed,
        full,
        tuple(held * sizes),
        np.max(np.array(spaces), axis=0) + _libraries(machine, framework),
        _weights(block.weights, lattice, _buffers(block, framework), _grouped(block, machine, framework)),
        lattice.value(block.boundary) * ELEMENT_BYTES[Element.ACTIVATION],
    )


def _libraries(machine: Machine, framework: Framework) -> float:
    """Bytes of the libraries' workspaces, which are allocated as tensors are."""
    own = framework.torch_workspace
    return (machine.torch_workspace_bytes if own is None else own) + framework.engine * machine.engine_workspace_bytes


def _grouped(block: DerivedBlock, machine: Machine, framework: Framework) -> float:
    """Bytes of the workspaces of the experts' grouped products: one for each stream that they run on."""
    return framework.grouped_streams * machine.engine_workspace_bytes * bool(inside_experts(block))


def _space(space: Workspace, lattice: Lattice, framework: Framework) -> Array:
    """[points]: bytes alive while the operator's backward runs, beside what is kept."""
    result: Array = sum((lattice.value(m) * ELEMENT_BYTES[e] for m, e in space.moved), np.zeros(lattice.points))
    if space.weight is not None and not (space.layer and framework.kept_gradient_buffers):
        result = result + ELEMENT_BYTES[Element.ACTIVATION] * lattice.value(space.weight)
    return result


def _buffers(block: DerivedBlock, framework: Framework) -> set[Monomial]:
    """Sizes of the weight gradients' buffers that stay: layers of one shape share theirs."""
    if not framework.kept_gradient_buffers:
        return set()
    return {space.weight for space in block.workspaces if space.layer and space.weight is not None}


def _work_seconds(
    block: DerivedBlock, lattice: Lattice, machine: Machine, framework: Framework
) -> dict[tuple[str, Phase], Array]:
    result: dict[tuple[str, Phase], Array] = {}

    def add(op: str, phase: Phase, seconds: Array) -> None:
        result[op, phase] = result.get((op, phase), 0.0) + seconds

    pieces = framework.hide.tp_pieces
    chunked = {c.beside for c in block.collectives if c.chunked and c.axes[0] == "tp"} if pieces > 1 else set()
    matmuls = [work for work in block.work if isinstance(work, Matmul)]
    if matmuls:
        batch, m, n, k = (
            lattice.stack([getattr(work, field) for work in matmuls]) for field in ("batch", "m", "n", "k")
        )
        low = np.array([[work.low_precision] for work in matmuls])
        peak = np.where(low, machine.peak_flops, machine.high_peak_flops)
        cast = low & (machine.cast_bytes > 0)
        element = np.where(cast, 1.0, 2.0)
        # A weight's gradient meets operands that the forward and the input's gradient have cast already; the second
        # copy of the output's gradient is written in its cast. It is read and written where gradients are summed,
        # instead of written once, unless a kernel of its own sums.
        weight = np.array([[work.phase is Phase.WEIGHT] for work in matmuls])
        fused = weight & (framework.accumulated_bytes == 0)
        added = np.where(fused, 2 * framework.bytes.gradient - ELEMENT_BYTES[Element.ACTIVATION], 0.0)
        # A product that is cut up to run beside its collective is as many small ones, one after the other.
        cut = np.array([[pieces if (work.op, work.phase) in chunked else 1.0] for work in matmuls])
        cut = np.where(lattice.numbers["tp"] > 1, cut, 1.0)
        seconds = cut * compiled.matmul_s(
            batch,
            m / cut,
            n,
            k,
            peak,
            np.where(cast, machine.low_efficiency, machine.efficiency),
            machine.k_half * peak / machine.high_peak_flops,  # prologue and epilogue are no faster at low precision
            machine.compute_units,
            machine.hbm_bytes_per_s,
            element,
            np.where(cast, np.where(weight, machine.transpose_bytes + n / m, machine.cast_bytes), 0.0),
            added,
            machine.launch_s * (1 + cast),  # the cast is a kernel, too
        )
        for index, (matmul, row) in enumerate(zip(matmuls, seconds, strict=True)):
            add(matmul.op, matmul.phase, row)
            if matmul.phase is Phase.WEIGHT and framework.accumulated_bytes:
                moved = framework.accumulated_bytes * batch[index] * m[index] * n[index]
                add(matmul.op, matmul.phase, compiled.traffic_s(moved, machine.hbm_bytes_per_s, machine.launch_s))
    for work in block.work:
        if isinstance(work, AttentionWork):
            add(work.op, work.phase, _attention(work, lattice, machine) / framework.attention_rate)
        elif isinstance(work, Traffic):
            moved = sum((lattice.value(m) * ELEMENT_BYTES[e] for m, e in work.moved), np.zeros(lattice.points))
            add(work.op, work.phase, compiled.traffic_s(moved, machine.hbm_bytes_per_s, machine.launch_s))
    return result


_CHANNELS = 128.0  # at which the attention's rates are given


def _attention(work: AttentionWork, lattice: Lattice, machine: Machine) -> Array:
    """Two products forward; five backward, since the scores are made again.

    A ring's steps leave partial results: forward each is read, rescaled and added to a sum in fp32, which is cast at
    the end; backward the queries' gradients of the steps are added up (AttnFuncWithCPAndKVP2P in Transformer Engine's
    context_parallel.py).
    """
    forward = work.phase is Phase.FORWARD
    steps, queries = lattice.value(work.steps), lattice.value(work.queries)
    channels = sum(float(np.max(lattice.numbers[name])) for name in work.channels) / 2
    rate = machine.attention_flops if forward else machine.attention_backward_flops
    result: Array = compiled.attention_s(
        queries,
        lattice.numbers[work.keys],
        (channels + machine.softmax_channels) * _CHANNELS / (_CHANNELS + machine.softmax_channels),
        2.0 if forward else 5.0,
        rate,
        machine.launch_s * steps,
    )
    each, last = MERGE_BYTES if forward else ADD_BYTES
    merged = queries * float(np.max(lattice.numbers[work.channels[1]])) * (each * steps + last)
    merging = compiled.traffic_s(merged, machine.hbm_bytes_per_s, machine.launch_s * steps)
    return result + np.where(steps > 1, merging, 0.0)


def collective_s(c: Collective, lattice: Lattice, machine: Machine, framework: Framework) -> Array:
    """[points], before any overlap; 0 where the group has one rank."""
    ranks = lattice.value(Monomial.of(*c.axes))
    stride = framework.stride(c.axes, lattice.numbers)
    amount = lattice.value(c.elements) * ELEMENT_BYTES[c.element]
    if c.kind is Kind.ALL_TO_ALL:
        copies = lattice.numbers["num_experts_per_tok"] if "ep" in c.axes else 1.0
        once = float("ep" in c.axes and framework.implementation.dispatcher != "alltoall")
        seconds = compiled.all_to_all_s(amount, ranks, stride, copies, once, **machine.levels)
    else:
        seconds = compiled.ring_s(amount, 2.0 if c.kind is Kind.ALL_REDUCE else 1.0, ranks, stride, **machine.levels)
    return np.where(ranks > 1, seconds * c.times, 0.0)


def _exposed(c: Collective, seconds: Array, work: dict[tuple[str, Phase], Array], framework: Framework) -> Array:
    axis = c.axes[0]
    # What is cut into pieces in the forward is in the backward, too: the gradient's gather before the input's gradient.
    direction = "forward" if c.phase is Phase.FORWARD or c.chunked else "backward"
    hide: float = getattr(framework.hide, f"{axis}_{direction}", 0.0)
    if c.beside is None or hide == 0.0:
        return seconds
    pieces = framework.hide.tp_pieces if axis == "tp" else 1
    edge = 1 / pieces if pieces > 1 else 0.0
    beside, slowed = work[c.beside], 0.0
    if axis == "tp" and pieces == 1:
        slowed = compiled.slowed_s(seconds, beside, hide, CONTENTION)
    result: Array = compiled.chunked_s(seconds, beside + slowed, hide, edge) + slowed
    return result


def _beside_another(
    collectives: tuple[Collective, ...], seconds: tuple[Array, ...], work: dict[tuple[str, Phase], Array], hide: float
) -> tuple[Array, ...]:
    """The experts' all-to-all of a microbatch's forward runs beside the work of another one's backward and vice versa
    (Megatron-LM, overlap_moe_expert_parallel_comm): all of it together beside both passes of the layer."""
    mine = [is_dispatch(c) for c in collectives]
    whole = sum((t for t, yes in zip(seconds, mine, strict=True) if yes), np.zeros_like(seconds[0]))
    left = np.maximum(compiled.exposed_s(whole, sum(work.values()), hide) / np.maximum(whole, _NOTHING_S), _TAKEN)
    return tuple(t * left if yes else t for t, yes in zip(seconds, mine, strict=True))


# Share of a hidden all-to-all's time that the work beside it loses, since its kernels hold 20 to 32 of the GPU's 132 to
# 152 compute units (DeepEP's and HybridEP's defaults; moe_hybridep_num_sms in Megatron-Bridge's performance scripts).
_TAKEN = 0.2
_NOTHING_S = 1e-30  # keeps a share of nothing from being a division by zero


def _weights(shards: tuple[WeightShard, ...], lattice: Lattice, buffers: set[Monomial], workspaces: float) -> Weights:
    def total(chosen: list[WeightShard]) -> Array:
        return sum((lattice.value(shard.elements) for shard in chosen), np.zeros(lattice.points))

    live = [shard for shard in shards if not shard.frozen]
    still = [shard for shard in shards if shard.frozen and not shard.quantised]
    return Weights(
        total([s for s in live if not s.expert]),
        total([s for s in live if s.expert]),
        total([s for s in still if not s.expert]),
        total([s for s in shards if s.quantised]),
        total([s for s in still if s.expert]),
        sum((lattice.value(size) for size in sorted(buffers, key=str)), np.zeros(lattice.points)),
        total([s for s in live if s.name in _VOCABULARY]),
        total([s for s in still if s.name in _VOCABULARY]),
        workspaces + np.zeros(lattice.points),
    )

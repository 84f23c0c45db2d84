"""The optimizer's step: what a rank keeps for it, how long it takes, and what data-parallel ranks exchange for it.

They reduce gradients and gather weights. Muon steps by whole matrices, other optimizers element by element.

Axes of the arrays: s stage shape, o offload, n point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.formulas import CONTENTION, overlapped_s, ring, traffic_s
from symconfig.cost.framework import Together
from symconfig.cost.lattice import Array
from symconfig.cost.stages import Setting, Stages
from symconfig.cost.tape import first_axis_max, maximum, minimum
from symconfig.graph.layout import INSTANCES, Move, Phase, over_replicas
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.schedule.timeline import Start

# Host memory rate that one rank's share of CPU Adam reaches: half a socket's 200 GB/s over four ranks.
HOST_ADAM_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Share:
    """A quantity of dense and of experts' weights, [s, n] each."""

    dense: Array
    expert: Array

    @property
    def sum(self) -> Array:
        return self.dense + self.expert

    def on_rank(self, ranks: tuple[Array | float, Array | float]) -> Array:
        """Return one rank's even share, [stages, points]: dense / ranks[0] + expert / ranks[1]."""
        return self.dense / ranks[0] + self.expert / ranks[1]

    def __add__(self, other: Share) -> Share:
        return Share(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, factor: float) -> Share:
        return Share(self.dense * factor, self.expert * factor)


def shards(points: ConfigurationSet, setting: Setting, sharded: bool) -> tuple[Array | float, Array | float]:
    """Return how many ranks share one copy of the dense and of the experts' state; (1, 1) if not `sharded`."""
    instances = setting.framework.optimizer_instances
    return (points.shards / instances, points.edp / instances) if sharded else (1.0, 1.0)


def dense_shared(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the trained dense parameters that the ranks of `shards` divide among them: [stages, points].

    Where shards extend over tensor-parallel ranks, parameters that each tp rank holds whole count 1/tp.
    """
    if not setting.sharding.over_tensor:
        return sums.dense
    shared: Array = sums.dense - sums.whole * (1 - 1 / points.tp)
    return shared


def undivided_matrices(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the elements of orthogonalised matrices on the busiest rank, [stages, points]; all if the state is whole.

    All too where one rank shares the state, or the optimizer orthogonalises nothing. Else a chunk's matrices are
    assigned undivided, bucket by bucket, each bucket's largest first to the rank with the fewest elements (Megatron-LM
    core_v0.18 to 0.19, optimizer/layer_wise_optimizer.py, _compute_per_buffer_param_layout).
    """
    how = setting.framework.orthogonal
    if how is None or not setting.sharding.state:
        return Share(sums.matrix, sums.matrix_expert)

    def part(whole: Array, ranks: Array | float, largest: Array) -> Array:
        # A bucket is closed at this number of elements, and holds the largest matrix at least.
        bucket = maximum(maximum(how.bucket, how.bucket_of_rank * ranks), maximum(how.filled * ranks, 1.0) * largest)
        several = formulas.undivided_elements(whole, ranks, largest, sums.chunks, bucket)
        return np.where(np.greater(ranks, 1), several, whole)

    over, over_experts = shards(points, setting, True)
    return Share(
        part(sums.matrix, over, sums.largest_matrix), part(sums.matrix_expert, over_experts, sums.largest_matrix_expert)
    )


def padding(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the padding of gradient and weight buffers in elements, of all ranks together: [stages, points].

    Where matrices are assigned undivided, each rank's buffer is as long as the busiest one's: that x ranks - the
    matrices. 0 without an orthogonalising optimizer, and without a sharded state.
    """
    if setting.framework.orthogonal is None or not setting.sharding.state:
        nothing = np.zeros_like(sums.dense)
        return Share(nothing, nothing)
    over, over_experts = shards(points, setting, True)
    held = undivided_matrices(sums, points, setting)
    return Share(held.dense * over - sums.matrix, held.expert * over_experts - sums.matrix_expert)


def elementwise(sums: Stages, points: ConfigurationSet, setting: Setting) -> Share:
    """Return the trained parameters that the optimizer steps element by element, before sharding: [stages, points].

    Matrices of an orthogonalising optimizer are left out; dense parameters are those that `dense_shared` returns.
    """
    dense = dense_shared(sums, points, setting)
    if setting.framework.orthogonal is None:
        return Share(dense, sums.expert)
    return Share(dense - sums.matrix, sums.expert - sums.matrix_expert)


def _ratio(some: Array, whole: Array) -> Array:
    """Return some / whole; 0 where the whole is 0."""
    return np.where(whole > 0, some / np.where(whole > 0, whole, 1.0), 0.0)


def optimizer_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the seconds of the optimizer's step on the slowest stage, one row per offload setting: [offloads, points].

    The GPU's part, the transfers to and from the host, the step in host memory of the offloaded share, and the
    orthogonalised matrices follow one another. With offloaded weights every microbatch copies them from the host twice.
    """
    machine, sizes = setting.machine, setting.bytes
    of_stage = elementwise(sums, points, setting).on_rank(shards(points, setting, setting.sharding.state))
    matrices_s: Array | float = 0.0
    if setting.framework.orthogonal is not None:
        held = undivided_matrices(sums, points, setting)
        iterated_s = _ratio(held.dense, sums.matrix) * sums.matrix_s
        iterated_s = iterated_s + _ratio(held.expert, sums.matrix_expert) * sums.matrix_expert_s
        matrices_s = iterated_s + held.sum * setting.framework.orthogonal.touched / machine.hbm_bytes_per_s
    rows = []
    for offload in setting.offload:
        here = traffic_s(machine, of_stage * (1 - offload.optimizer) * setting.framework.adam_bytes)
        away = of_stage * offload.optimizer
        moved = away * (sizes.gradient + sizes.weight) / machine.host_bytes_per_s
        row = first_axis_max(here + moved + away * setting.framework.adam_bytes / HOST_ADAM_BYTES_PER_S + matrices_s)
        if offload.weights:
            # Each microbatch brings every weight over twice, forward and backward.
            row = row + held_weights(sums, points, setting) * 2 * points.num_microbatches / machine.host_bytes_per_s
        rows.append(row)
    return np.array(rows)


def held_weights(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the bytes of a rank's shard of all weights, frozen ones included, on the largest stage: [points].

    The shard is that of ZeRO 3, whatever the setting's stage.
    """
    sizes = setting.bytes
    trained = dense_shared(sums, points, setting) * sizes.weight
    dense = trained + sums.frozen * sizes.frozen + sums.quantised * sizes.quantised
    expert = sums.expert * sizes.weight + sums.frozen_expert * sizes.frozen
    result: Array = first_axis_max(Share(dense, expert).on_rank(shards(points, setting, True)))
    return result


# Of the host for each tensor of a list that a collective takes: Python slices it, PyTorch launches its copy. Assumed:
# two eager operators.
_LISTED_S = 10e-6


@dataclass(frozen=True, slots=True)
class Exchange:
    """Seconds of the data-parallel collectives of a stage's weights and gradients before any overlap, [s, n].

    seconds: of one execution by phase; phases without communication are missing. gather, reduce: of one gather of the
    weights and one reduction of the gradients, in every microbatch or once a step; 0 if there is none.
    """

    seconds: Mapping[Phase, Array]
    gather: Array
    reduce: Array


def exchange(sums: Stages, points: ConfigurationSet, setting: Setting) -> Exchange:
    """Return each stage's data-parallel seconds before overlap: by phase, and of one gather and one reduction.

    Bytes are those of trained parameters with their padding; frozen ones are gathered too if weights are sharded.
    Gradients are as wide as the framework reduces them. Collectives over the same axes are priced together.
    """
    sizes, sharding, longer = setting.bytes, setting.sharding, padding(sums, points, setting)
    trained = Share(sums.dense, sums.expert) + longer
    weights = trained * sizes.weight
    reduced_bytes = setting.framework.reduced_bytes
    gradients = trained * (sizes.gradient if reduced_bytes is None else reduced_bytes)
    if sharding.weight:  # frozen ones are cut up, too
        frozen = sizes.frozen * sums.frozen + sizes.quantised * sums.quantised
        weights = weights + Share(frozen, sizes.frozen * sums.frozen_expert)
    # A gradient's moves are never a weight's: only gradients are sums.
    amounts = {move: gradients if way.gradient else weights for way, some in over_replicas(sharding) for move in some}
    seconds: dict[Move, Array] = {}
    for axes in dict.fromkeys(move.axes for move in amounts):
        mine = {move: amount for move, amount in amounts.items() if move.axes == axes}
        seconds |= zip(mine, _moves_s(mine, axes, sums, points, setting), strict=True)
    each = {way.phase: np.sum([seconds[move] for move in some], axis=0) for way, some in over_replicas(sharding)}
    often = ((Phase.FORWARD, Phase.UPDATE), (Phase.BACKWARD, Phase.REDUCTION))
    return Exchange(each, *(each.get(one, each.get(other, np.zeros_like(trained.dense))) for one, other in often))


def _moves_s(
    moves: Mapping[Move, Share], axes: tuple[str, ...], sums: Stages, points: ConfigurationSet, setting: Setting
) -> Array:
    """Return the seconds of collectives over the same axes, of dense plus experts' weights: [moves, stages, points].

    0 where a stage has no such weights. Dense weights move in one message for each block (Together.BLOCK) or matrix
    (Together.MATRIX, if weights are sharded), else in one; experts' in one. The host's time for lists of tensors is
    added to dense messages if the framework gathers lists.

    moves: the bytes of the whole tensors by move. axes: dp (within an optimizer instance), INSTANCES (between them) or
    both.
    """
    framework = setting.framework
    count: Array = np.ones_like(sums.matrices)
    if framework.together is Together.BLOCK:
        count = setting.pipelines.counts.sum(axis=1)
    elif framework.together is Together.MATRIX and setting.sharding.weight:
        count = maximum(sums.matrices, 1.0)
    passes = np.array([move.kind.passes for move in moves])[:, None, None]
    seconds = np.zeros((len(moves), *count.shape))  # also of chunks that hold no parameters
    dense, expert = [amount.dense for amount in moves.values()], [amount.expert for amount in moves.values()]
    over, over_experts = (framework.stride(each, points.degrees) for each in (("cp", "dp"), ("edp",)))
    for parts, messages, replicas, stride in (
        (dense, count, points.shards, over),
        (expert, 1.0, points.edp, over_experts),
    ):
        if not np.any(parts):
            continue
        instances = framework.optimizer_instances if setting.sharding.instances else 1
        group = maximum(replicas / instances, 1.0)  # of one instance: neighbours
        numbers = {"dp": group, INSTANCES: replicas / group}
        ranks = math.prod(numbers[axis] for axis in axes)
        cuts = [math.prod(numbers[axis] ** power for axis, power in move.elements.powers) for move in moves]
        sizes = np.stack([part / messages * cut for part, cut in zip(parts, cuts, strict=True)])
        stride = stride if "dp" in axes else stride * group
        seconds = seconds + messages * ring(sizes, passes, ranks, stride, setting.machine)
        if framework.listed and messages is count:
            seconds = seconds + np.where(ranks > 1, messages * ranks * _LISTED_S, 0.0)
    return seconds


def exchanged_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the exposed seconds that data-parallel communication adds to a step: [policies, points].

    Included, even with one replica, are the all-reduce of tied embeddings between pipeline ends, and copies to and from
    communication buffers if the framework makes any. Without a pipeline, or if every microbatch exchanges, it is that
    of the stage with most.
    """
    if setting.pipelines.several and not setting.sharding.each_microbatch:
        shown = _exposed_in_pipeline(sums, points, setting) + between_ends_s(sums, points, setting)
    else:
        shown = first_axis_max(_exposed_without_pipeline(sums, points, setting)) + between_ends_s(sums, points, setting)
    return shown + copies_s(sums, points, setting) if setting.framework.copied_bytes else shown


def between_ends_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the seconds of all-reducing the gradient of an embedding that first and last stage both hold: [points].

    0 for a single stage, and if no point has parameters in `sums.copied`.
    """
    if not setting.pipelines.several or not sums.copied.any():
        return np.zeros_like(sums.copied)
    stride = points.tp * points.cp * points.dp * (setting.pipelines.pp - 1)
    amount = setting.bytes.gradient * sums.copied
    return ring(amount, 2.0, np.full_like(stride, 2.0), stride, setting.machine)


def copies_s(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the seconds of a step's copies to and from communication buffers, on the largest stage: [points]."""
    elements = first_axis_max(sums.dense + sums.expert)
    moved = points.num_microbatches * elements * setting.framework.copied_bytes
    result: Array = moved / setting.machine.hbm_bytes_per_s
    return result


def _exposed_without_pipeline(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the exposed seconds of a step's data-parallel exchange: [stages, policies, points].

    It is for no pipeline, or if every microbatch exchanges. Gathers and reductions of each microbatch overlap with its
    forward and backward, those of once a step with the last backward or the next forward (a gather that runs APART with
    nothing). With sharded weights, blocks larger than reuse_elements are gathered again for layers that are recomputed.
    """
    moved, framework, hide = exchange(sums, points, setting), setting.framework, setting.framework.hide
    forward, backward = sums.ahead, sums.back
    each = hide.data
    rerun: Array | float = 0.0  # seconds of gathers for layers that run again
    if setting.sharding.weight:
        each, far = hide.sharded_weights, sums.largest[:, None] > framework.reuse_elements
        repeated = minimum(sums.rerun, forward) / np.where(forward > 0, forward, 1.0)
        rerun = np.where(far, repeated, 0.0) * moved.gather[:, None]

    def shown(phases: Sequence[Phase], work: Array, share: float, seconds: Array | float = 0.0) -> Array | float:
        """Return the seconds that the exchanges of some phases add to one pass of `work`, of which `share` can overlap.

        seconds: of further collectives in the same pass. 0.0 if nothing is exchanged in these phases.
        """
        mine = [moved.seconds[phase][:, None] for phase in phases if phase in moved.seconds]
        return overlapped_s(sum(mine, seconds), work, share) if mine else 0.0

    passes = shown([Phase.FORWARD], forward, each)
    passes = passes + shown([Phase.KEPT, Phase.BACKWARD], backward, each, rerun)
    once = shown([Phase.REDUCTION], backward, hide.data)
    once = once + shown([Phase.UPDATE], forward, 0.0 if framework.gathers is Start.APART else hide.data)
    result: Array = points.num_microbatches * passes + once
    return result


def gathered_s(
    sums: Stages, points: ConfigurationSet, setting: Setting, work: Array, before_s: float = 0.0
) -> Array | float:
    """Return the seconds that gathering sharded weights adds to a forward alone: [stages, policies, points].

    0.0 if nothing is gathered in the forward. work: seconds of the forward itself. before_s: seconds of copying a
    rank's shards from the host first, which overlaps too, but slows no computation.
    """
    moved = exchange(sums, points, setting)
    if Phase.FORWARD not in moved.seconds:
        return 0.0
    gather = moved.seconds[Phase.FORWARD][:, None]
    whole = gather + before_s
    lost = CONTENTION * gather / np.where(whole > 0, whole, 1.0)
    result: Array = overlapped_s(whole, work, setting.framework.hide.sharded_weights, lost)
    return result


def _exposed_in_pipeline(sums: Stages, points: ConfigurationSet, setting: Setting) -> Array:
    """Return the exposed seconds that a pipeline's exchange adds, once a step: [policies, points].

    With interleaving and overlap each chunk's collective overlaps with groups of microbatches; gathers that run APART
    only with fill time. Else reductions overlap with the first stage's own pass and with drain time, and gathers with
    fill time, or, ON_DEMAND, follow one another stage by stage. The seconds are close to the simulator's for stages
    that are alike; `pipeline.overlap` says when each collective runs.
    """
    moved, framework = exchange(sums, points, setting), setting.framework
    forward, backward = sums.ahead, sums.back
    gather, reduce = moved.gather[:, None], moved.reduce[:, None]
    if setting.pipelines.interleaved and framework.hide.data:
        group = minimum(setting.groups, points.num_microbatches)
        ends = sums.vocabulary / maximum(sums.dense + sums.expert, 1.0)
        gathered: Array = (
            _exposed_beside_own_pass(gather, forward, np.zeros_like(setting.pipelines.index[:, None]), setting)
            if framework.gathers is Start.APART
            else _exposed_between_groups(gather, forward, ends, group, setting)
        )
        return gathered + _exposed_between_groups(reduce, backward, ends, group, setting)
    first = framework.hide.data * (setting.pipelines.index[:, None] == 0)
    reduced = _exposed_beside_own_pass(reduce, backward, first, setting)
    if not (framework.gathers is Start.ON_DEMAND and framework.hide.data):
        return reduced + _exposed_beside_own_pass(gather, forward, 0 * first, setting)
    alike = setting.pipelines.alike[:, None] * (setting.pipelines.index[:, None] > 0)
    hidden = minimum(gather, first * forward)
    own = first_axis_max(np.where(first > 0, gather - hidden + CONTENTION * hidden, 0.0))
    result: Array = reduced + own + (alike * gather).sum(axis=0)
    return result


def _exposed_beside_own_pass(seconds: Array, work: Array, share: Array, setting: Setting) -> Array:
    """Return the exposed seconds of one collective per stage, on the stage with most: [policies, points].

    It overlaps with `share` of the stage's own pass, at a loss of CONTENTION, and with the pipeline's fill or drain
    time. seconds: of the collective, [stages, 1, points]. work: of the pass, [stages, policies, points].
    """
    hidden = minimum(seconds, share * work)
    left = seconds - hidden - setting.pipelines.index[:, None] * work.min(axis=0) / setting.pipelines.vpp
    result: Array = first_axis_max(maximum(left, CONTENTION * hidden))
    return result


def _exposed_between_groups(seconds: Array, work: Array, ends: Array, group: Array, setting: Setting) -> Array:
    """Return the exposed seconds of one collective per chunk, on the stage with most: [policies, points].

    It is for an interleaved schedule. That of the first (last) chunk overlaps with nothing; each other one with a group
    of microbatches in a chunk; all with fill or drain time. seconds: of all chunks. work: of a stage's pass. group:
    microbatches of it. ends: the vocabulary's share of a stage's parameters, [stages, points], which the first stage's
    exposed chunk holds.
    """
    vpp = setting.pipelines.vpp
    index = setting.pipelines.index[:, None]
    own = seconds * np.where(index == 0, ends[:, None] + (1 - ends[:, None]) / vpp, 1 / vpp)
    shown = maximum(own + CONTENTION * (seconds - own), seconds - (1 - 1 / vpp) * group * work)
    result: Array = first_axis_max(maximum(shown - index * work.min(axis=0) / vpp, 0.0))
    return result

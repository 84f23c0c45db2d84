"""Microbatches through the stages of a pipeline: what messages cost their receivers, and the schedule by the formula.

Axes of the arrays: s stage shape, n point; between them whatever the seconds have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symconfig.cost import formulas
from symconfig.cost.blocks import SECONDS
from symconfig.cost.formulas import CONTENTION, ring
from symconfig.cost.lattice import Array
from symconfig.cost.optimizer import exchange
from symconfig.cost.stages import Setting, Stages, StageShape, stages
from symconfig.cost.table import Table
from symconfig.cost.tape import first_axis_max
from symconfig.graph.derived import Phase
from symconfig.graph.parts import is_layer
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.schedule.timeline import Start, Times, most_held


@dataclass(frozen=True, slots=True)
class Messages:
    """Seconds of activations and gradients between stages.

    busy_s: [n], for which a receiver waits for one message. lag_s: [n], for which a message is further under way,
    overlapped with work. received_s: [s, n], for which a stage waits for all messages of a microbatch.
    """

    busy_s: Array
    lag_s: Array
    received_s: Array


def messages(sums: Stages, points: ConfigurationSet, setting: Setting) -> Messages:
    """Return the messages between stages; all seconds are 0 for a single one.

    A stage receives an activation and a gradient for each of its chunks; the model's first
    chunk gets no activation and its last one no gradient. Sends cost nothing more: they go together with a message that
    comes the other way (Megatron-LM, send_forward_recv_backward). In plain 1F1B the receiver waits for the whole of
    each message; interleaved, for what a chunk's forward does not hide, and while the pipeline fills and drains also
    for the rest, `lag_s`. If a forward and a backward run as one
    (experts overlapped), two messages come at once and nothing hides them: half of each counts. If the framework
    scatters sends over tp, they are 1/tp as large and gathered after arrival.
    """
    pipelines = setting.pipelines
    if not pipelines.several:
        return Messages(np.zeros(1), np.zeros(1), np.zeros((len(pipelines.index), 1)))
    machine, framework = setting.machine, setting.framework
    scattered = framework.scattered_sends
    amount = sums.boundary / np.where(sums.replicated > 0, points.tp, 1.0) if scattered else sums.boundary
    stride = points.tp * points.cp * points.dp
    once: Array = formulas.send_s(amount, pipelines.pp, stride, **machine.levels)
    if scattered:
        once = once + sums.replicated * ring(sums.boundary, 1.0, points.tp, 1.0, machine)
    shown, lag = once, np.zeros_like(once)
    if pipelines.interleaved and framework.hide.experts:
        shown = once / 2.0
    elif pipelines.interleaved:
        # The forward is the same under every recompute policy, so that bounds hold.
        shown = formulas.exposed_s(once, sums.forward[:, 0].min(axis=0) / pipelines.vpp, framework.hide.pp)
        lag = once - shown
    count = 2 * pipelines.vpp - (pipelines.index == 0) - (pipelines.index == pipelines.pp - 1)
    return Messages(shown, lag, count * shown)


def in_flight(points: ConfigurationSet, setting: Setting) -> Array:
    """Return how many microbatches' activations each stage holds at its peak: [stages, points].

    It is a fraction if interleaved. Where a stage's chunks have different numbers of layers, it is counted along the
    schedule (`most_held`) as the largest mean over its layers.
    """
    pipelines, m = setting.pipelines, points.num_microbatches
    result: Array = formulas.in_flight(pipelines.index, pipelines.pp, pipelines.vpp, m[None], setting.groups)
    if not any(len(set(stage.layers)) > 1 for one in pipelines.each for stage in one.stages):
        return result
    result = np.array(np.broadcast_to(result, (len(pipelines.index), m.size)))
    # Of more microbatches than those of three groups no stage holds more.
    enough = np.minimum(m.astype(np.int64), (3 * np.maximum(setting.groups, pipelines.pp)).astype(np.int64))
    pairs = np.stack(np.broadcast_arrays(pipelines.which, enough))
    different, which = np.unique(pairs, axis=1, return_inverse=True)
    for column, (place, count) in enumerate(different.T.tolist()):
        one = pipelines.each[place]
        group = setting.framework.microbatch_group or one.pp
        for row in range(len(result)):
            stage = one.stages[min(row, len(one.stages) - 1)]
            if len(set(stage.layers)) > 1:
                result[row, which.reshape(-1) == column] = most_held(stage.index, stage.layers, one.pp, group, count)
    return result


def pipelined(
    seconds: Array, rerun: Array, communication: Array, *, sums: Stages, points: ConfigurationSet, setting: Setting
) -> dict[str, Array]:
    """Return a step's seconds by part, [..., points]: compute, recompute, layer communication, pipeline bubble.

    The first three are the slowest stage's, over all microbatches; "pipeline send/receive", its waits for messages, is
    there only with several stages. What overlap of experts loses in the first and last passes counts as communication;
    messages' lag, of one microbatch over all chunks forward and back, as bubble.

    seconds, rerun, communication: one microbatch through a stage, [stages, ..., points]: all of it without waits for
    messages, and what of it is recompute and exposed communication.
    """
    m, pipelines, between = points.num_microbatches, setting.pipelines, messages(sums, points, setting)
    received, alike, hidden = (
        part.reshape(len(seconds), *[1] * (seconds.ndim - 2), -1)
        for part in (between.received_s, pipelines.alike, sums.hidden)
    )
    whole = seconds + received
    slowest, heaviest = first_axis_max(whole), whole.argmax(axis=0)[None]

    def of_slowest(part: Array) -> Array:
        result: Array = np.take_along_axis(np.broadcast_to(part, whole.shape), heaviest, axis=0)[0] * m
        return result

    parts = {"recompute": of_slowest(rerun), "layer communication": of_slowest(communication)}
    if pipelines.several:
        parts["pipeline send/receive"] = of_slowest(received)
    compute = m * slowest - sum(parts.values())
    passes = (alike * whole).sum(axis=0)
    if setting.framework.hide.experts:
        mine = of_slowest(hidden) / m
        passes = passes + (alike * hidden).sum(axis=0) - mine
        alone = formulas.alone_s(mine, m, pipelines.vpp, setting.groups)
        parts["layer communication"] = parts["layer communication"] + alone
    step = formulas.pipeline_s(m, slowest, passes, pipelines.vpp)
    borders = pipelines.pp * pipelines.vpp - 1
    step = step + 2 * borders * between.lag_s  # on the way of one microbatch over all of them
    return {"compute": compute, **parts, "pipeline bubble": step - m * slowest}


Chunk = Sequence[str]  # kinds of its blocks, in model order


def chunk_times(
    table: Table, sums: Stages, points: ConfigurationSet, setting: Setting, chunks: Sequence[Chunk], repeated: int
) -> Times:
    """Return every chunk's seconds for the schedule simulator, at the first point and first policy: [pp, vpp].

    sums: of the stages. chunks: the kinds of blocks of each, in model order. repeated: how many first layers of each
    chunk are recomputed as by the table's second policy, 0 for none. Gathers and reductions are those of once a step
    (ZeRO 0 and 1). `backward` has no weight gradients, which are in `weight`. ValueError if the setting has several
    pipelines.
    """
    alike = list(dict.fromkeys(tuple(chunk) for chunk in chunks))
    shapes = tuple(
        StageShape(index, tuple(chunk.count(kind) for kind in table.kinds), 1, (sum(map(is_layer, chunk)),))
        for index, chunk in enumerate(alike)
    )
    own = setting.having(shapes)
    of = stages(table, own.pipelines, np.arange(points.dp.size), setting.tied)
    moved = exchange(of, points, own)
    counts = np.array([shape.counts for shape in shapes], dtype=np.float64)
    weight = counts @ [
        sum(float(t[0]) for (_, phase), t in block.work_s.items() if phase is Phase.WEIGHT) for block in table.blocks
    ]
    hidden = table.hidden[:, :, 0] @ counts.T  # [2, chunks]: a schedule that hides it takes it off again
    repeated_s = of.rerun[:, 0, 0]
    backward = of.back[:, 0, 0] - repeated_s - weight
    if repeated:  # the difference of the second policy to the first, at the first point
        change = np.subtract(*table.passes[SECONDS, ::-1, :, 0].sum(axis=0))
        heads = [[kind for kind in chunk if is_layer(kind)][:repeated] for chunk in alike]
        repeated_s = (
            repeated_s + np.array([[float(head.count(kind)) for kind in table.kinds] for head in heads]) @ change
        )
    one = setting.pipelines.only
    where = np.array([alike.index(tuple(chunk)) for chunk in chunks]).reshape(one.vpp, one.pp).T
    between = messages(sums, points, setting)
    gathers, reduces, hide = overlap(setting)
    return Times(
        forward=(of.ahead[:, 0, 0] + hidden[0])[where],
        recompute=repeated_s[where],
        backward=(backward + hidden[1])[where],
        weight=weight[where],
        busy_s=float(between.busy_s[0]),
        lag_s=float(between.lag_s[0]),
        gather=moved.gather[where, 0],
        reduce=moved.reduce[where, 0],
        gathers=gathers,
        reduces=reduces,
        hide=hide,
        contention=CONTENTION,
        paired=hidden.sum(axis=0)[where],
    )


def overlap(setting: Setting) -> tuple[Start, Start, Array]:
    """Return (when weights are gathered, when gradients are reduced, share of own passes that overlaps, [pp, vpp]).

    Without overlap both are Start.APART. Else reductions are AHEAD; gathers are too unless APART, but without
    interleaving they are APART unless ON_DEMAND. The share is above 0 only on the first stage without interleaving,
    which alone has several buckets. Megatron-LM (core_v0.19) with --overlap-grad-reduce and --overlap-param-gather
    (distributed_data_parallel.py, `bucket_size`; schedules.py, `param_sync_func`, `grad_sync_func`).
    """
    framework, one = setting.framework, setting.pipelines.only
    hide = np.zeros((one.pp, one.vpp))
    if not framework.hide.data:
        return Start.APART, Start.APART, hide
    if one.vpp > 1:
        return Start.APART if framework.gathers is Start.APART else Start.AHEAD, Start.AHEAD, hide
    hide[0] = framework.hide.data
    return Start.ON_DEMAND if framework.gathers is Start.ON_DEMAND else Start.APART, Start.AHEAD, hide

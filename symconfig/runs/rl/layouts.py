"""The layouts of a step around an actor: every engine, and every way to move what is not needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from symconfig.cost.machine import machine
from symconfig.errors import Problem
from symconfig.existing.recover.rl.step import Packed, Read, in_a_row
from symconfig.plans.rl import PlannedReward
from symconfig.render.learning import WORTH_READING
from symconfig.runs.rl.division import Division
from symconfig.runs.rl.engine import Engine, Replica
from symconfig.runs.rl.phases import AWAY, Away, Layout
from symconfig.runs.rl.question import Question
from symconfig.runs.rl.reward import rewards
from symconfig.runs.rl.trained import Trained

# Assumed: of a generation, by which a replica of more GPUs must be ahead, since what tensor parallelism costs a step of
# decoding was not measured.
_WIDER = 0.1
_NODES = (1, 2, 4)  # of a replica whose experts lie over several ranks of data
# Assumed: of a generation, by which ranks of data must be ahead, since that they wait for each other is left out.
_UNSURE = 0.2
_MOST_SHARE, _SHARES = 0.9, 20  # of a GPU for the engine, in twentieths
# Of a generation: shares that differ by less are alike, since measured decoding is within 6 % of the prediction.
_ALIKE = 0.05
_ALIKE_STEPS = 0.01  # assumed: steps that differ by less are alike, and the more room for longer answers wins
# The optimizer's state is larger than the weights and wanted less: weights do not go without it.
_WEIGHED_AWAY = (Away.NOTHING, Away.STATES, Away.ALL)


def layouts(question: Question, actor: Trained, critic: Trained | None, on: Division) -> Iterator[Layout]:
    """Yield the feasible layouts around an actor: each engine with each kind of host offload that the target supports.

    critic: None without one. on: the division of the GPUs. Yields nothing if the reward model has no room; an engine
    without room is skipped.
    """
    rl, alone, learns = question.rl, on.rollout > 0, question.learns
    served = on.rollout or on.trained
    gpu = machine(question.cluster, "bf16" if question.cluster.gpu.peak_flops.bf16 else "fp16", gpus=served)
    rewarding = None
    if (how := question.way_of_rewards) is not None and question.reward is not None:
        chosen = PlannedReward(gpus=on.reward, tp=0, memory_share=0.0)
        rewarding = rewards(how, question.reward, rl, actor, question.cluster, gpu, chosen)
        if rewarding is None:
            return
    own = partial(
        Layout,
        rl=rl,
        actor=actor,
        critic=critic,
        reference=learns.reference,
        alone=alone,
        rewards=rewarding,
        sleep_level=learns.sleep_level(rl, question.model.adapter is not None),
        apart=frozenset({"critic"} if on.critic else ()),
        read=(read := as_trained(question, actor)),
        reference_read=read,
        read_alike=learns.critic == "apart",
    )
    ways = (Away.NOTHING,) if alone else tuple(way for way in _WEIGHED_AWAY if AWAY[way] in learns.away)
    engines = [Engine(question.model, gpu, tp, dp) for tp, dp in _engines(question, served)]
    every = [_read(question, partial(own, away=way), engines) for way in ways if engines]
    made = ((each, partial(way, replicas=served // each.gpus)) for way in every for each in engines)
    yield from _sure_of(filter(None, (_shared(question, *each) for each in made)))


def unserved(question: Question, served: Collection[int]) -> Problem | None:
    """Return the problem why no engine of the stated rollout degrees divides any of these numbers of GPUs; None if one
    does.

    served: numbers of generating GPUs, one for each division of the job's.
    """
    rollout, model = question.rl.rollout, question.model
    if rollout.tp is not None and model.num_attention_heads % rollout.tp:
        what, need = "an engine divides attention heads over it", f"a divisor of {model.num_attention_heads}"
        return Problem(what, field="rl.rollout.tp", got=str(rollout.tp), need=need)
    if any(True for gpus in served for _ in _engines(question, gpus)):
        return None
    stated = {name: value for name, value in (("tp", rollout.tp), ("dp", rollout.dp)) if value is not None}
    need = f"a divisor of {' or '.join(map(str, sorted(set(served))))}"
    if rollout.dp is not None and model.experts is not None:
        need += f" and of {model.experts.num_experts} experts"
    got = " x ".join(f"{name} {value}" for name, value in stated.items())
    return Problem("does not divide the GPUs that generate", field=f"rl.rollout.{list(stated)[-1]}", got=got, need=need)


def _read(question: Question, own: partial[Layout], engines: Sequence[Engine]) -> partial[Layout]:
    """Return the layout's constructor with the micro-batches of the log-probability phases set; they are the same for
    all engines.

    `own` keeps its other arguments. The first engine stands in, because engines sleep in these phases or have GPUs of
    their own.
    """
    chosen = with_reads(question, own(replica=Replica(engines[0], 0.0), replicas=1))
    return partial(own, read=chosen.read, reference_read=chosen.reference_read)


def _sure_of(layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Yield all layouts with one data-parallel rank per engine, and others only if their generation is at least
    _UNSURE faster than the fastest of these.
    """
    every = list(layouts)
    plain = [each.generation.seconds for each in every if each.replica.engine.dp == 1]
    most = (1 - _UNSURE) * min(plain) if plain else inf
    yield from (each for each in every if each.replica.engine.dp == 1 or each.generation.seconds < most)


def preferred(every: Sequence[Layout]) -> list[Layout]:
    """Return the layouts (given by rising step) with the preferred one moved to the front; [] for none.

    Preferred: the fewest GPUs per replica among steps at most _WIDER of the generation longer than the shortest; of its
    steps within _ALIKE_STEPS, the one that decodes the most sequences of maximal length at the same time.
    """
    if not every:
        return []
    shortest, longest = every[0], float(every[0].rl.longest)
    limit = shortest.step_s + _WIDER * shortest.generation.seconds
    fewest = min(each.replica.engine.gpus for each in every if each.step_s <= limit)
    narrow = [each for each in every if each.replica.engine.gpus == fewest]
    alike = [each for each in narrow if each.step_s <= (1 + _ALIKE_STEPS) * narrow[0].step_s]
    first = max(alike, key=lambda each: each.replica.at_once(each.rl, longest))
    return [first, *(each for each in every if each is not first)]


def _shared(question: Question, engine: Engine, make: Callable[..., Layout]) -> Layout | None:
    """Return the layout with an engine at the stated memory share, or at the largest share whose generation is within
    _ALIKE of the fastest; None without room.

    make: constructor of the layout, all but replica and generation given.
    """
    static = question.rl.rollout.static_share
    empty, stated = make(replica=Replica(engine, 0.0, static)), question.rl.rollout.memory_share
    shares = [stated] if stated is not None else _shares(question, empty)
    sized = (replace(empty.replica, share=share) for share in shares)
    every = ((replica, question.generation(replica, empty.replicas)) for replica in sized)
    able = [(replica, generation) for replica, generation in every if generation is not None]
    if not able:
        return None
    shortest = min(generation.seconds for _, generation in able)
    replica, generation = next(each for each in able if each[1].seconds <= (1 + _ALIKE) * shortest)
    return make(replica=replica, generation=generation)


def _engines(question: Question, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield (tp, dp) of each engine that divides `gpus`.

    tp: the stated one, or powers of two up to a node that divide the attention heads. dp: the stated one, or 1 and, for
    experts in engines that support it, ranks over 1, 2 or 4 nodes.
    """
    rollout, node, model = question.rl.rollout, question.cluster.gpus_per_node, question.model
    powers = [2**power for power in range(node.bit_length()) if 2**power <= node]
    several = (rollout.engine or "") in question.learns.ranks_of_data
    wide = [node * times for times in _NODES] if model.experts is not None and several else []
    for tp in [rollout.tp] if rollout.tp is not None else powers:
        ranks = [1, *(size // tp for size in wide if size > tp and size % tp == 0)]
        for dp in [rollout.dp] if rollout.dp is not None else dict.fromkeys(ranks):
            experts = model.experts.num_experts if model.experts is not None and dp > 1 else 0
            stated = rollout.tp is not None or model.num_attention_heads % tp == 0
            if stated and gpus % (tp * dp) == 0 and experts % (tp * dp) == 0:
                yield tp, dp


def _shares(question: Question, empty: Layout) -> Iterator[float]:
    """Yield the engine's memory shares that fit beside what stays on the GPU, in descending steps of 1/20 from 0.9."""
    room = question.room_bytes(empty)
    shares = (step / _SHARES for step in range(round(_MOST_SHARE * _SHARES), 0, -1))
    yield from (share for share in shares if replace(empty.replica, share=share).most_bytes <= room)


def as_trained(question: Question, actor: Trained) -> Read:
    """Return the micro-batches of the actor's update as those in which samples are read for log-probabilities."""
    rl, batch, degrees = question.rl, actor.candidate.batch, actor.candidate.parallel
    room = batch.micro * batch.seq_length
    if question.learns.sequences != "packed":
        return Read(room=room, passes=rl.updates * batch.num_microbatches, fill=actor.fill)
    return Packed(room=room, length=rl.mean_tokens).as_trained(rl, degrees.dp, in_a_row(degrees))


def with_reads(question: Question, layout: Layout) -> Layout:
    """Return a layout with the largest micro-batches for log-probabilities that fit and save at least WORTH_READING per
    doubling.

    Starts at the update's size and halves it (down to the longest sequence) while it does not fit. Unchanged if the
    program reads in the update's micro-batches.
    """
    if not question.learns.reads_apart or (layout.rewards is not None and layout.rewards.how.by == "workers"):
        return layout
    longest, batch, degrees = question.rl.longest, layout.actor.as_written.batch, layout.actor.candidate.parallel
    room = batch.micro * batch.seq_length
    chosen = _at(layout, room)
    while not question.has_room(chosen.reads) and (half := -(-(room // 2) // degrees.cp) * degrees.cp) >= longest:
        room, chosen = half, _at(layout, half)
    for larger in _larger(layout, room):
        worth = _seconds(larger) <= (1 - WORTH_READING) * _seconds(chosen)
        if not worth or not question.has_room(larger.reads):
            break
        chosen = larger
    return chosen


def _larger(layout: Layout, room: int) -> Iterator[Layout]:
    """Yield the layout with micro-batches of twice the tokens each time, the last one where a replica reads all
    samples in one.
    """
    while True:
        room *= 2
        larger = _at(layout, room)
        yield larger
        if larger.read.room < room:
            return


def _at(layout: Layout, room: int) -> Layout:
    rl, degrees = layout.rl, layout.actor.candidate.parallel
    read = Packed(room=room, length=rl.mean_tokens).read(rl, degrees.dp, in_a_row(degrees))
    return replace(layout, read=read, reference_read=read)


def _seconds(layout: Layout) -> float:
    return sum(phase.seconds for phase in layout.reads)

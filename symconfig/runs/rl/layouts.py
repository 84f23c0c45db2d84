"""What is asked of a step of reinforcement learning, and its layouts around an actor: who has which GPUs, every engine,
and every way to move what is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from symconfig.cost.machine import machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Rl
from symconfig.errors import Problem
from symconfig.existing.recover.rl.step import Packed, Read, in_a_row
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedPhase, PlannedReward, surprised
from symconfig.render.learning import Learns
from symconfig.runs.rl.engine import Engine, Replica, generation_s
from symconfig.runs.rl.phases import GAPS, Layout
from symconfig.runs.rl.reward import rewards
from symconfig.runs.rl.trained import STATES, WEIGHTS, Trained
from symconfig.solve.interval import surprise

# Assumed: of a generation, by which a replica of more GPUs must be ahead, since what tensor parallelism costs a step of
# decoding was not measured.
_WIDER = 0.1
_NODES = (1, 2, 4)  # of a replica whose experts lie over several ranks of data
# Assumed: of a generation, by which ranks of data must be ahead, since that they wait for each other is left out.
_UNSURE = 0.2
_MOST_SHARE, _SHARES = 0.9, 20  # of a GPU for the engine, in twentieths
# Of a generation: shares that differ by less are alike, since measured decoding is within 6 % of the prediction.
_ALIKE = 0.05
# The optimizer's state is larger than the weights and wanted less: weights do not go without it.
_WEIGHED_AWAY: tuple[tuple[str, ...], ...] = ((), (STATES,), (WEIGHTS, STATES))


ANY = Learns(algorithms=(), engines=())  # whose trainer is not known
Solve = Callable[[ModelDescriptor, Job, int], Plan]


@dataclass(frozen=True)
class Question:
    """The inputs of the search for an RL step.

    solve: returns the best plans of a model's job, up to a number. critic, reward: models to train and to run; None:
    none. learns: what the target supports.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    job: Job
    rl: Rl
    critic: ModelDescriptor | None
    solve: Solve
    reward: ModelDescriptor | None = None
    learns: Learns = ANY

    @property
    def usable_bytes(self) -> float:
        return self.job.limits.usable_bytes(self.cluster.gpu.memory_bytes.value)

    @cached_property
    def _ratio(self) -> float | None:
        return surprise(self.model, self.cluster, self.job.limits.memory_risk)

    def is_sure(self, layout: Layout) -> bool:
        """Return whether a layout's phases on training GPUs meet the job's risk of running out of memory."""
        memory = self.cluster.gpu.memory_bytes.value
        return all(surprised(phase.holds, self._ratio) <= memory for phase in layout.on_trained)

    def has_room(self, phases: Iterable[PlannedPhase]) -> bool:
        """Return whether all phases fit into the usable bytes and meet the job's risk of running out of memory."""
        memory = self.cluster.gpu.memory_bytes.value
        return all(
            phase.bytes <= self.usable_bytes and surprised(phase.holds, self._ratio) <= memory for phase in phases
        )

    def room_bytes(self, layout: Layout) -> float:
        """Return the bytes of a GPU that a layout leaves to its engine: usable bytes less what else stays there, with
        allocator overhead and fragmentation (GAPS), at most what the memory risk leaves; may be negative.
        """
        holds, memory = layout.beside_engine, self.cluster.gpu.memory_bytes.value
        resting = surprised(holds, layout.actor.reserved(1.0)) + GAPS * surprised(holds, 0.0)
        return min(self.usable_bytes - resting, memory - surprised(holds, self._ratio))

    def rank(self, layout: Layout) -> tuple[bool, float]:
        """Return the sort key of a layout: (exceeds the memory risk, step in seconds)."""
        return not self.is_sure(layout), layout.step_s

    @cached_property
    def _made(self) -> dict[tuple[int, int, float, int], float | None]:
        return {}

    def generation_s(self, replica: Replica, replicas: int) -> float | None:
        """Return the seconds of a step's generation on these replicas, cached; None if the engine has no room."""
        key = (replica.engine.tp, replica.engine.dp, replica.share, replicas)
        if key not in self._made:
            self._made[key] = generation_s(replica, self.rl, replicas)
        return self._made[key]


@dataclass(frozen=True, slots=True)
class Division:
    """Numbers of GPUs by role. rollout, reward, critic: GPUs that only generate, score or train the critic; 0 if the
    role shares the actor's GPUs.
    """

    trained: int
    rollout: int = 0
    reward: int = 0
    critic: int = 0


def divisions(rl: Rl, cluster: ClusterDescriptor, gpus: int, rewarded: bool) -> Iterator[Division]:
    """Yield the divisions of a job's GPUs that leave at least one to the actor, more GPUs for rewards and rollout
    first. Rewards get GPUs only if their placement is "apart" (whole nodes if more than one), rollout only if the
    placement is "split". rewarded: a reward model runs on the job's GPUs. Yields nothing if no division is left.
    """
    apart = rewarded and rl.reward_model is not None and rl.reward_model.placement == "apart"
    stated = rl.reward_model.gpus if rl.reward_model is not None else None
    node = cluster.gpus_per_node
    for reward in _parts(gpus, node, stated, (1, 2)) if apart else (0,):
        left = gpus - (rl.critic_gpus or 0) - reward if reward <= node or reward % node == 0 else 0
        for rollout in _parts(left, node, rl.rollout_gpus, (1, 2, 3)) if rl.placement == "split" else (0,):
            if left - rollout > 0:
                yield Division(left - rollout, rollout, reward, rl.critic_gpus or 0)


def _parts(gpus: int, node: int, stated: int | None, quarters: tuple[int, ...]) -> list[int]:
    """Return the numbers of GPUs that a role may get, descending: only `stated` if given, else each number of
    `quarters` of `gpus`: (1, 2) for a quarter and a half. These are rounded down to whole nodes if `gpus` exceeds a
    node (at least one node, else at least one GPU).
    """
    if stated is not None:
        return [stated]
    step = node if gpus > node else 1
    return sorted({max(step, gpus * part // 4 // step * step) for part in quarters}, reverse=True)


def undivided(rl: Rl, gpus: int, node: int) -> Problem:
    """Return the problem why a job's GPUs have no division: reward GPUs are more than a node's but no whole nodes, or
    the role that it names leaves none to train on.
    """
    reward = rl.reward_model
    if reward is not None and (reward.gpus or 0) > node and (reward.gpus or 0) % node:
        what, need = "are whole nodes where they are more than one has", f"a multiple of {node}"
        return Problem(what, field="rl.reward_model.gpus", got=str(reward.gpus), need=need)
    stated = {"rl.critic_gpus": rl.critic_gpus, "rl.rollout_gpus": rl.rollout_gpus}
    if reward is not None and (reward.gpus or 0) >= gpus:
        stated = {"rl.reward_model.gpus": reward.gpus}
    field, count = next(((name, each) for name, each in stated.items() if each), ("rl.rollout_gpus", 1))
    return Problem("leaves no GPU to train on", field=field, got=str(count), need=f"fewer than {gpus}")


def layouts(question: Question, actor: Trained, critic: Trained | None, on: Division) -> Iterator[Layout]:
    """Yield the layouts around an actor: each engine with each kind of host offload that the target supports; whether
    they fit is not checked.

    critic: None without one. on: the division of the GPUs. An engine on GPUs of its own has no offload. Nothing is
    yielded if the reward model has no room. An engine without room is skipped, and so is one with several data-parallel
    ranks unless its generation takes less than 80 % (1 - _UNSURE) of the fastest with one.
    """
    rl, alone, learns = question.rl, on.rollout > 0, question.learns
    served = on.rollout or on.trained
    gpu = machine(question.cluster, "bf16" if question.cluster.gpu.peak_flops.bf16 else "fp16", gpus=served)
    rewarding = None
    if rl.reward_model is not None and question.reward is not None:
        how = learns.rewards[rl.reward_model.placement]
        chosen = PlannedReward(gpus=on.reward, tp=0, memory_share=0.0)
        rewarding = rewards(how, question.reward, rl, actor, question.cluster, gpu, chosen)
        if rewarding is None:
            return
    engines = [Engine(question.model, gpu, tp, dp) for tp, dp in _engines(question, served)]
    if not engines:
        return
    start = Layout(
        rl=rl,
        actor=actor,
        critic=critic,
        replica=Replica(engines[0], 0.0),
        replicas=1,
        away=(),
        reference=learns.reference,
        alone=alone,
        rewards=rewarding,
        sleep_level=learns.sleep_level(rl, question.model.adapter is not None),
        apart=frozenset({"critic"} if on.critic else ()),
        read=(read := as_trained(question, actor)),
        reference_read=read,
        read_alike=learns.critic == "apart",
    )
    made = []
    for way in ((),) if alone else (way for way in _WEIGHED_AWAY if way in learns.away):
        own = with_reads(question, replace(start, away=way))  # the same micro-batches for all engines
        for each in engines:
            empty = Replica(each, 0.0, rl.rollout.static_share)
            made.append(_shared(question, replace(own, replica=empty, replicas=served // each.gpus)))
    every = [each for each in made if each is not None]
    plain = [each.generation_s for each in every if each.replica.engine.dp == 1]
    most = (1 - _UNSURE) * min(plain) if plain else inf
    yield from (each for each in every if each.replica.engine.dp == 1 or each.generation_s < most)


def unserved(question: Question, served: Collection[int]) -> Problem | None:
    """Return the problem that the stated tp does not divide the attention heads, or that no engine with the stated tp
    and dp divides any of these numbers of GPUs; None if one does. served: generating GPUs of each division of the
    job's.
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


def preferred(every: Sequence[Layout]) -> list[Layout]:
    """Return the layouts with the preferred one moved to the front; [] for none. every: by rising step time. Preferred
    is the first with the fewest GPUs per replica, of those whose step exceeds the shortest by at most _WIDER (10 %) of
    that one's generation.
    """
    if not every:
        return []
    limit = every[0].step_s + _WIDER * every[0].generation_s
    first = min((each for each in every if each.step_s <= limit), key=lambda each: each.replica.engine.gpus)
    return [first, *(each for each in every if each is not first)]


def _shared(question: Question, empty: Layout) -> Layout | None:
    """Return the layout with its engine at the stated memory share, or at the largest one, of twentieths from 0.9 down
    that fit beside what stays on the GPU, whose generation is within 5 % (_ALIKE) of the fastest. None without room.
    empty: the layout at share 0, without generation.
    """
    stated, most = question.rl.rollout.memory_share, round(_MOST_SHARE * _SHARES)
    shares = [stated] if stated is not None else [step / _SHARES for step in range(most, 0, -1)]
    room = question.room_bytes(empty) if stated is None else inf
    able = [
        (replica, taken_s)
        for replica in (replace(empty.replica, share=share) for share in shares)
        if replica.most_bytes <= room
        if (taken_s := question.generation_s(replica, empty.replicas)) is not None
    ]
    if not able:
        return None
    longest_s = (1 + _ALIKE) * min(taken_s for _, taken_s in able)
    replica, taken_s = next(each for each in able if each[1] <= longest_s)
    return replace(empty, replica=replica, generation_s=taken_s)


def _engines(question: Question, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield (tp, dp) of each engine that divides `gpus`, and the experts if dp > 1. tp: the stated one, or powers of
    two up to a node that divide the attention heads. dp: the stated one, or 1 and, for experts in engines that support
    it, ranks that make a replica of 1, 2 or 4 nodes.
    """
    rollout, node, model = question.rl.rollout, question.cluster.gpus_per_node, question.model
    powers = [2**power for power in range(node.bit_length())]
    several = (rollout.engine or "") in question.learns.ranks_of_data
    wide = [node * times for times in _NODES] if model.experts is not None and several else []
    for tp in [rollout.tp] if rollout.tp is not None else powers:
        ranks = [1, *(size // tp for size in wide if size > tp and size % tp == 0)]
        for dp in [rollout.dp] if rollout.dp is not None else dict.fromkeys(ranks):
            experts = model.experts.num_experts if model.experts is not None and dp > 1 else 0
            stated = rollout.tp is not None or model.num_attention_heads % tp == 0
            if stated and gpus % (tp * dp) == 0 and experts % (tp * dp) == 0:
                yield tp, dp


def as_trained(question: Question, actor: Trained) -> Read:
    """Return the micro-batches in which samples are read for log-probabilities if the program reads them in those of
    the actor's update. Padded: as many and as full as those of all updates of a step; packed: as many as a replica's
    share of sequences of mean length fills.
    """
    rl, batch, degrees = question.rl, actor.candidate.configuration, actor.candidate.configuration
    room = batch.micro * batch.seq_length
    if question.learns.sequences != "packed":
        return Read(room=room, passes=rl.updates * batch.num_microbatches, fill=actor.fill)
    return Packed(room=room, length=rl.mean_tokens).as_trained(rl, degrees.dp, in_a_row(degrees))


def with_reads(question: Question, layout: Layout) -> Layout:
    """Return a layout whose micro-batches for log-probabilities fit: they have the room of the update's, halved while
    they do not fit and the half still holds the longest sequence; the last ones are taken even if they do not fit.
    `layout` is returned unless the program `reads_apart`, and if workers run the reward model.
    """
    if not question.learns.reads_apart or (layout.rewards is not None and layout.rewards.how.by == "workers"):
        return layout
    rl, batch, degrees = layout.rl, layout.actor.as_written.configuration, layout.actor.candidate.configuration
    room = batch.micro * batch.seq_length
    while True:
        packed = Packed(room=room, length=rl.mean_tokens).read(rl, degrees.dp, in_a_row(degrees))
        chosen = replace(layout, read=packed, reference_read=packed)
        half = -(-(room // 2) // degrees.cp) * degrees.cp
        if question.has_room(chosen.reads) or half < rl.longest:
            return chosen
        room = half

"""The phases of a step: how long each takes on a layout, and what each GPU holds meanwhile.

The training phases are the planner's own costs of the actor's plan; generation is `engine`'s. A forward alone takes
the forward's share of the same simulated times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from symconfig.cost.formulas import ring
from symconfig.descriptor.tuning import Rl
from symconfig.existing.recover.rl.step import Read
from symconfig.graph.model import parameters
from symconfig.plans.rl import ASLEEP, AWAKE, BUSIEST, LIBRARIES, READING, PlannedPhase, ReferencePlace
from symconfig.runs.rl.engine import ASLEEP_BYTES, KEEPING, Replica
from symconfig.runs.rl.reward import Rewards
from symconfig.runs.rl.trained import GRADIENTS, MODEL_STATES, WEIGHTS, Trained
from symconfig.units import MIB

BUCKET_BYTES = 2048.0 * MIB  # of weights on their way to the engine (verl: update_weights_bucket_megabytes)
# A colocated engine that sleeps forbids expandable segments (vLLM, device_allocator/cumem.py), so what comes and goes
# leaves gaps: 15 % on average over training workloads (GMLake, arXiv:2401.08156, section 5.2).
GAPS = 0.15
_WEIGHT_BYTES = 2.0


def to_engine_s(actor: Trained) -> float:
    """Return the seconds to gather the actor's weights (16 bits; with an adapter only the trainable ones) by a ring
    over the ranks that shard them. Ranks: the larger of tp x pp and ep x etp x pp, times dp x cp with ZeRO-3; 0 s for
    one rank.
    """
    p, count = actor.candidate.configuration, parameters(actor.plan.model, with_mtp=False)
    total = _WEIGHT_BYTES * (count.total if actor.plan.model.adapter is None else count.trainable)
    sharded = p.dp * p.cp if actor.candidate.configuration.zero_stage == 3 else 1
    ranks = np.array([float(max(p.tp * p.pp, p.ep * p.etp * p.pp) * sharded)])
    return float(ring(np.array([total]), 1.0, ranks, 1.0, actor.prospect.machine)[0])


REFERENCE, VALUES = "reference", "values"  # phases, beside READING
_GENERATING = ("generation", "rewards beside generation")  # pools whose phases overlap


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to run an RL step.

    alone: the engine has GPUs of its own. read, reference_read: micro-batches in which actor and reference compute
    log-probabilities; read_alike: the critic uses the same. reference: where its weights are when unused. apart: roles
    ("critic", "reference") with GPUs of their own. away: parts of the trained models (WEIGHTS, STATES) that are in host
    memory when unused. sleeps: a colocated engine frees its memory during training. waits: an engine on its own GPUs
    does not overlap with training. sleep_level: 1 keeps its weights on the host.
    """

    rl: Rl
    actor: Trained
    critic: Trained | None
    replica: Replica
    replicas: int
    away: tuple[str, ...]
    alone: bool
    read: Read
    reference_read: Read
    generation_s: float = 0.0
    read_alike: bool = False
    reference: ReferencePlace = "offloaded"
    apart: frozenset[str] = frozenset()
    sleeps: bool = True
    waits: bool = False
    rewards: Rewards | None = None
    sleep_level: int = 2

    @cached_property
    def phases(self) -> tuple[PlannedPhase, ...]:
        """Return the phases of a step in order, cached."""
        return tuple(phase for _, phase in self._pooled)

    @cached_property
    def _pooled(self) -> Sequence[tuple[str, PlannedPhase]]:
        """Return (pool, phase) as of `_phases`, cached."""
        return tuple(self._phases())

    @property
    def step_s(self) -> float:
        """Return the seconds of a step. Phases in one pool of GPUs add up; pools that train run at the same time, and
        so do generation and rewards beside it. Generation and training add up, too, or overlap if the engine has its
        own GPUs and not `waits`.
        """
        pools: defaultdict[str, float] = defaultdict(float)
        for pool, phase in self._pooled:
            pools[pool] += phase.seconds
        generation = max(pools.pop(phase, 0.0) for phase in _GENERATING)
        trained = max(pools.values())
        overlaps = self.alone and not self.waits
        return max(generation, trained) if overlaps else generation + trained

    @property
    def beside_engine(self) -> Mapping[str, float]:
        """Return the bytes by part on a GPU besides an awake engine: libraries on its own GPUs, else all that stays
        there."""
        return {LIBRARIES: self.actor.libraries} if self.alone else self._resting({})

    @property
    def trained_bytes(self) -> float:
        """Return the bytes of the fullest phase on the training GPUs."""
        return max(phase.bytes for phase in self.on_trained)

    @property
    def on_trained(self) -> tuple[PlannedPhase, ...]:
        """Return the phases on training GPUs: all, but for generation by an engine on GPUs of its own."""
        return self.phases[self.alone :]

    @property
    def reads(self) -> tuple[PlannedPhase, ...]:
        """Return the phases that compute log-probabilities: the actor's, the reference's if there is one, and with
        `read_alike` the critic's values.
        """
        names = (READING, REFERENCE, *((VALUES,) if self.read_alike else ()))
        return tuple(phase for phase in self.phases if phase.name in names)

    @property
    def host_bytes(self) -> float:
        """Return the bytes of host memory per GPU: offloaded parts of actor and critic, the sleeping engine's and
        reward model's weights. Plus the reference's weights if it has a copy that is not resident on the actor's GPUs.
        """
        states = sum(each.memory[name] for each in self.trained for name in self.away)
        states += sum(each.candidate.predicted.host_bytes for each in self.trained)
        states += self._kept_bytes + (0.0 if self.rewards is None else self.rewards.asleep_bytes)
        return states + (self.actor.memory[WEIGHTS] if self._copied and not self._rests else 0.0)

    @property
    def trained(self) -> tuple[Trained, ...]:
        """Return the trained models: the actor, and the critic if there is one."""
        return (self.actor, *filter(None, (self.critic,)))

    @property
    def _kept_bytes(self) -> float:
        """Return the bytes per GPU of weights that a colocated engine keeps on the host while it sleeps, at level
        KEEPING; else 0."""
        kept = self.sleeps and not self.alone and self.sleep_level == KEEPING
        return self.replica.engine.weights_bytes * kept

    @property
    def _copied(self) -> bool:
        """Return whether the reference has weights of its own; with an adapter it is the actor without it."""
        return self.rl.reference and self.actor.plan.model.adapter is None

    def _phases(self) -> Iterator[tuple[str, PlannedPhase]]:
        """Yield (pool, phase) in order: generation, weights to the engine, rewards, the actor's log-probabilities (with
        the entropy, which verl reports whatever the loss is), the reference's, values and updates of the critic,
        updates of the actor, copies to the host and back. Those of a reference, critic or reward model only with one,
        host copies only if they take time. pool: the role whose own GPUs it runs on; "": the actor's.
        """
        actor, critic, read, steps = self.actor, self.critic, self.read, self.rl.updates * self.rl.epochs
        awake = {AWAKE: self.replica.bytes}
        held = awake if self.alone else self._resting(awake)
        yield "generation", PlannedPhase.of("generation", self.generation_s, held)
        moving = {
            "engine's weights": self.replica.engine.weights_bytes * (self.sleeps and not self.alone),
            "weights on their way": BUCKET_BYTES,
            f"actor's {WEIGHTS}": actor.memory[WEIGHTS],
        }
        yield "", PlannedPhase.of("weights to the engine", to_engine_s(actor), self._resting(moving, but=(WEIGHTS,)))
        yield from self._rewarding()
        reader = actor.reading(read.room)
        held = {f"actor's {WEIGHTS}": actor.memory[WEIGHTS]} | self._passing(reader, entropy=True)
        seconds = reader.passes_s(read.passes, read.fill)
        yield "", PlannedPhase.of(READING, seconds, self._resting(held, but=(WEIGHTS,)), reader.tokens_per_gpu)
        if self.rl.reference:
            yield self._of_reference()
        if critic is not None:
            pool, reader, seconds = self._pool("critic"), critic, critic.forward_s(self.rl.updates)
            if self.read_alike:  # in the micro-batches of the actor's log-probabilities, else of its own updates
                reader = critic.reading(read.room)
                seconds = reader.passes_s(read.passes, read.fill)
            held = {f"critic's {WEIGHTS}": critic.memory[WEIGHTS]} | self._passing(reader)
            yield pool, PlannedPhase.of(VALUES, seconds, self._resting(held, pool=pool), reader.tokens_per_gpu)
            yield from self._updates(critic, steps, "critic's", pool)
        yield from self._updates(actor, steps, "actor's", but=MODEL_STATES)
        slept = 2 * self._kept_bytes / actor.host_bytes_per_s
        copied = (sum(each.memory[name] for name in self.away) / each.host_bytes_per_s for each in self.trained)
        if moved := 2 * sum(copied) + slept:
            yield "", PlannedPhase.of("to the host and back", moved, self._resting({}))

    def _of_reference(self) -> tuple[str, PlannedPhase]:
        """Return (pool, phase) in which the reference computes log-probabilities; a copy that is not resident comes
        from the host. "streamed" copies overlap with the forward and take no GPU memory; with an adapter the actor's
        weights are read.
        """
        actor, read, pool = self.actor, self.reference_read, self._pool("reference")
        reader = actor.reading(read.room)
        apart = self._copied and self.reference != "swapped"
        name = "reference" if self._copied else f"actor's {WEIGHTS}"
        rests = not self._copied or self.reference != "streamed"
        frozen = {name: actor.memory[WEIGHTS] * rests} | self._passing(reader)
        copied_s = actor.memory[WEIGHTS] / actor.host_bytes_per_s * (self._copied and self.reference != "resident")
        streamed_s = copied_s if self.reference == "streamed" else 0.0
        held = self._resting(frozen, but=() if apart else (WEIGHTS,), pool=pool)
        seconds = reader.passes_s(read.passes, read.fill, streamed_s) + copied_s - streamed_s
        return pool, PlannedPhase.of(REFERENCE, seconds, held, reader.tokens_per_gpu)

    def _rewarding(self) -> Iterator[tuple[str, PlannedPhase]]:
        """Yield (pool, the reward model's phase); nothing without a reward model. On GPUs of its own it forms a pool if
        it overlaps with another phase.
        """
        if (own := self.rewards) is None:
            return
        pool = f"rewards beside {own.how.overlaps}" if own.own and own.how.overlaps else ""
        held = dict(own.holds)
        if "forward" in held:
            held["forward"] = self._gaps(held["forward"])
        whole = held | {LIBRARIES: self.actor.libraries} if own.own else self._resting({}) | held
        yield pool, PlannedPhase.of("rewards", own.seconds, whole)

    @property
    def _rests(self) -> bool:
        """Return whether the reference's weights are on the actor's GPUs in all phases."""
        return self._copied and self.reference == "resident" and "reference" not in self.apart

    def _pool(self, role: str) -> str:
        """Return the role itself if it has GPUs of its own, else "" (the actor's)."""
        return role if role in self.apart else ""

    def _passing(self, reader: Trained, entropy: bool = False) -> dict[str, float]:
        """Return the bytes of a forward without weights, gaps included: "forward" at even expert load, and BUSIEST,
        what the busiest rank adds."""
        even, most = (self._gaps(each.forward_bytes(entropy=entropy)) for each in (reader, reader.busiest))
        return {"forward": even, BUSIEST: most - even}

    def _gaps(self, passing: float) -> float:
        """Return the bytes of temporary memory with fragmentation: times 1 + GAPS if the engine shares the GPUs."""
        return passing if self.alone else passing * (1 + GAPS)

    def _resting(self, held: dict[str, float], but: tuple[str, ...] = (), pool: str = "") -> dict[str, float]:
        """Return `held` with the bytes of all that stays on a pool's GPUs in every phase; entries of 0 are dropped.
        Added are the model states of the pool's own models, on the actor's GPUs ("") the reference and reward model,
        and libraries; an engine that shares the GPUs, asleep or awake. but: parts of the actor not to be added, because
        `held` has them.
        """
        result = dict(held)
        if not pool and self._rests:
            result["reference"] = self.actor.memory[WEIGHTS]
        if not pool and self.rewards is not None and not self.rewards.own:
            result |= self.rewards.rests
        owners = (("actor's", self.actor, ""), ("critic's", self.critic, self._pool("critic")))
        for name, each, own in owners:
            if each is None or own != pool:
                continue
            gone = {*self.away, *(but if each is self.actor else ())}
            if WEIGHTS in self.away or each.frees_gradients:  # with the weights (verl, utils/megatron_utils.py)
                gone.add(GRADIENTS)
            result |= {f"{name} {part}": each.memory[part] for part in MODEL_STATES if part not in gone}
        awake = {} if self.sleeps else {AWAKE: self.replica.bytes}
        engine = {} if self.alone else {ASLEEP: ASLEEP_BYTES, **awake}
        return {name: size for name, size in result.items() if size} | engine | {LIBRARIES: self.actor.libraries}

    def _updates(
        self, each: Trained, steps: int, name: str, pool: str = "", but: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, PlannedPhase]]:
        """Yield (pool, phase) of a model's updates: forward and backward, then the optimizer's step if that needs
        temporary memory; together they take `update_s`. steps: optimizer steps. name: prefix of the model's parts.
        pool: the role whose GPUs it uses; but: parts of the actor that are in use, not to be added as resting.
        """
        held = {f"{name} {part}": each.memory[part] for part in MODEL_STATES}
        states, entropy = sum(held.values()), self.rl.entropy and each is self.actor

        def passing(model: Trained) -> float:
            peak = model.passing_bytes(entropy=entropy)
            return max(each.reserved(peak) - states, self._gaps(peak - states))

        even = passing(each)
        of, seconds = " of the critic" * (each is self.critic), each.update_s(steps)
        apart = steps * each.candidate.predicted.time.get("optimizer", 0.0) if (roots := each.stepping_bytes) else 0.0
        passes = held | {"activations, head and loss": even, BUSIEST: passing(each.busiest) - even}
        passes = self._resting(passes, but, pool)
        yield pool, PlannedPhase.of(f"update{of}", seconds - apart, passes, each.tokens_per_gpu)
        if roots:
            stepped = held | {"roots of second moments": self._gaps(roots)}
            yield pool, PlannedPhase.of(f"optimizer's step{of}", apart, self._resting(stepped, but, pool))

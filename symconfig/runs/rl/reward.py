"""The network of a step that rewards responses: what it takes and holds, where it stands.

An engine of inference reads prompts and responses as it reads prompts; workers read them as a forward of the planner's
own costs. A service elsewhere takes nothing here, and its answers are not waited for in the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from symconfig.cost.machine import Machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Rl
from symconfig.format import picked
from symconfig.frameworks.known import BACKENDS
from symconfig.plans.configuration import DEGREES
from symconfig.plans.rl import REWARDED, REWARDING, PlannedReward
from symconfig.render.learning import Rewarding
from symconfig.runs.rl.engine import ASLEEP_BYTES, WORKING_BYTES, Engine, cached_bytes
from symconfig.runs.rl.logits import PLAIN
from symconfig.runs.rl.trained import WEIGHTS, Trained
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup

_SHARES = 20  # of a GPU's memory, of which an engine takes some
_USUAL_SHARE = 0.5  # what an engine of rewards takes at most where more GPUs can share it (verl's default)
_AT_ONCE = 8192.0  # tokens that it reads at once, with their keys and values (vLLM's max_num_batched_tokens)
_MODEL = "model of rewards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """A reward model in a step.

    how: how its program runs it. planned: as a plan records it. seconds: of a step. holds: bytes by part on the fullest
    of its GPUs while it runs; rests: in all other phases. asleep_bytes: weights per GPU on the host.
    """

    how: Rewarding
    planned: PlannedReward
    seconds: float
    holds: Mapping[str, float]
    rests: Mapping[str, float]
    asleep_bytes: float = 0.0

    @property
    def own(self) -> bool:
        """Return whether the reward model has GPUs of its own."""
        return self.planned.gpus > 0


def rewards(
    how: Rewarding,
    model: ModelDescriptor,
    rl: Rl,
    actor: Trained,
    cluster: ClusterDescriptor,
    gpu: Machine,
    stated: PlannedReward,
) -> Rewards | None:
    """Return the reward model's step around an actor: by an engine, else by training workers; None if it has no room or
    does not divide. how: how the program runs it: "engine", or "shards" (FSDP) or else the actor's layout. gpu: the
    machine of an engine's GPU. stated: its GPUs (0: the actor's), and its engine's tp and memory share, for which no
    room is checked, if tp is not 0.
    """
    gpus = stated.gpus
    if how.by == "engine":
        on = gpus or actor.candidate.configuration.world_size
        every = _engines(model, rl, gpu, on, cluster.gpus_per_node)
        chosen = [(Engine(model, gpu, stated.tp), stated.memory_share)] if stated.tp else list(every)
        return _served(how, chosen, rl, gpus, on)
    frozen = _frozen(how, model, rl, actor, cluster, gpus)
    if frozen is None:
        return None
    candidate = frozen.candidate
    room = candidate.configuration.micro * candidate.configuration.seq_length
    replicas = candidate.configuration.dp
    share = ceil(rl.generated / replicas) * rl.longest / room if how.together else 1.0
    weights = {_MODEL: frozen.memory[WEIGHTS]}
    return Rewards(
        how=how,
        planned=PlannedReward(gpus=gpus, tp=0, memory_share=0.0),
        seconds=frozen.forward_s(rl.updates),
        holds=weights | {"forward": frozen.forward_bytes(share=share)},
        rests=weights,
    )


def _served(how: Rewarding, able: Sequence[tuple[Engine, float]], rl: Rl, own: int, gpus: int) -> Rewards | None:
    """Return the reward model served by engines; None if `able` is empty. able: (engine, memory share that it needs),
    fewer GPUs first; the first that needs at most half of the memory is taken, else the last. own: GPUs of its own; 0:
    it shares `gpus`, and its weights are copied from the host and back.
    """
    if not able:
        return None
    engine, share = next((each for each in able if each[1] <= _USUAL_SHARE), able[-1])
    gpu = engine.machine
    seconds = engine.prefill_s(max(1.0, rl.generated / (gpus // engine.gpus)) * rl.mean_tokens, rl.mean_tokens)
    moved = 0.0 if own else engine.weights_bytes
    return Rewards(
        how=how,
        planned=PlannedReward(gpus=own, tp=engine.tp, memory_share=share),
        seconds=seconds + 2 * moved / float(gpu.host_bytes_per_s),
        holds={REWARDING: share * gpu.memory_bytes},
        rests={} if own else {REWARDED: ASLEEP_BYTES},
        asleep_bytes=moved,
    )


def _engines(model: ModelDescriptor, rl: Rl, gpu: Machine, gpus: int, node: int) -> Iterator[tuple[Engine, float]]:
    """Yield (engine, memory share that it needs) for each power of two of tp within a node that divides GPUs and heads,
    fewer GPUs first. The share, in twentieths, holds weights, working memory and the keys of 8192 tokens or the longest
    sequence; one of 1 or more is left out.
    """
    tokens = np.array([max(float(rl.longest), _AT_ONCE)])
    for tp in (2**power for power in range(node.bit_length())):
        if gpus % tp or model.num_attention_heads % tp:
            continue
        engine = Engine(model, gpu, tp)
        needed = engine.weights_bytes + WORKING_BYTES + float(cached_bytes(model, tp, tokens)[0])
        share = ceil(_SHARES * needed / gpu.memory_bytes) / _SHARES
        if share < 1.0:
            yield engine, share


def _frozen(
    how: Rewarding, model: ModelDescriptor, rl: Rl, actor: Trained, cluster: ClusterDescriptor, gpus: int
) -> Trained | None:
    """Return the reward model run by training workers on `gpus` GPUs (0: the actor's): sharded by FSDP for "shards",
    else with the actor's layout. None if the layout does not divide. Raises InputError as `as_found`.
    """
    of_actor = actor.candidate.configuration.world_size
    point = _sharded(rl, actor, gpus or of_actor) if how.by == "shards" else _as_trained(model, actor, gpus)
    if point is None:
        return None
    fill = rl.mean_tokens / rl.longest if how.by == "shards" else actor.fill
    same = picked(point, *DEGREES, "micro", "global_batch", "seq_length", "zero_stage")
    read = replace(actor.candidate, configuration=replace(actor.candidate.configuration, **same))
    found = as_found(model, cluster, point)
    return Trained(replace(actor.plan, model=model), read, fill, PLAIN, point=found, frozen=True)


def _sharded(rl: Rl, actor: Trained, gpus: int) -> Setup:
    """Return a layout of usual FSDP (ZeRO-3) over `gpus` GPUs in the actor's precision, with micro-batches of one
    longest sequence; the batch is rounded up to a multiple of the GPUs.
    """
    return Setup(
        dp=gpus,
        micro=1,
        global_batch=max(1, ceil(rl.batch / gpus)) * gpus,
        seq_length=rl.longest,
        precision=actor.candidate.configuration.precision,
        zero_stage=3,
        framework=BACKENDS["fsdp"].usual,
        backend="fsdp",
    )


def _as_trained(model: ModelDescriptor, actor: Trained, gpus: int) -> Setup | None:
    """Return the actor's degrees for the reward model, with dp for `gpus` GPUs (0: the actor's); None if heads do not
    divide over tp x cp, or GPUs over tp x cp x pp. Pipeline stages are kept; weights are sharded (ZeRO-3) if the
    actor's are, else ZeRO is 0. Micro-batches are rounded up.
    """
    candidate = actor.candidate
    ranks, micro = candidate.configuration.tp * candidate.configuration.cp, candidate.configuration.micro
    of_replica = ranks * candidate.configuration.pp
    if model.num_attention_heads % ranks or gpus % of_replica:
        return None
    dp = gpus // of_replica or candidate.configuration.dp
    micros = ceil(candidate.configuration.num_microbatches * candidate.configuration.dp / dp)
    return Setup.of(
        candidate,
        actor.prospect.request.framework,
        dp=dp,
        global_batch=micros * dp * micro,
        zero_stage=3 if candidate.configuration.zero_stage == 3 else 0,
        packing=actor.plan.job.packing,
    )

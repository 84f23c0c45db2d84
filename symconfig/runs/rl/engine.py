"""Generation by an inference engine: prefill and decode on one replica, as a roofline over time.

A step of decoding reads the weights that its tokens touch and the keys and values of all their contexts, or computes
with them, whichever takes longer; sequences leave as they end, and those that wait take their place. Left out are
speculative decoding, the engine's preemptions, and tools that a response waits for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from symconfig.cost.collectives import ring
from symconfig.cost.machine import Machine
from symconfig.descriptor.layers import Pairs
from symconfig.descriptor.model import Attention, ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.graph.count import ParameterCount, parameters
from symconfig.solve.lengths import GROUPS, Array, quantiles
from symconfig.units import GIB

# Assumed, as the rest of a generation's uncertainty is (`UNCERTAIN`): what an engine does between two steps of decoding
# (schedule, sample, detokenise), and what it keeps on the GPU for CUDA graphs and its batch beside weights and keys.
STEP_S = 3e-3
WORKING_BYTES = 2.0 * GIB
# Of an engine that sleeps: its context, its communicators and captured graphs stay (vLLM, device_allocator/cumem.py,
# frees weights and keys only). Assumed.
ASLEEP_BYTES = 2.0 * GIB
UNCERTAIN = (0.7, 1.5)  # of a generation that no log calibrates: the likely share of the predicted seconds
_ELEMENT_BYTES = 2.0
_PREFILL_TOKENS = 8192.0  # of a step (vLLM's max_num_batched_tokens, as trainers set it)


def cached_bytes(model: ModelDescriptor, tp: int, tokens: Array) -> Array:
    """Return the bytes of keys and values of one context of so many tokens on each of a replica's GPUs."""
    whole, windowed = _caching_layers(model)
    seen = whole * tokens + windowed * (
        tokens if model.sliding_window is None else np.minimum(tokens, model.sliding_window)
    )
    result: Array = seen * _ELEMENT_BYTES * _channels(model, tp)
    return result


@lru_cache(maxsize=64)
def _caching_layers(model: ModelDescriptor) -> tuple[int, int]:
    """Return how many layers keep keys of all tokens, and how many those of a window."""
    own = [kind.window for kind in model.kind_of_layer if kind.attends and kind.pairs is not Pairs.BORROWED]
    return own.count(False), own.count(True)


def _channels(model: ModelDescriptor, tp: int) -> float:
    """Return the numbers that a layer keeps of a token on each GPU."""
    if model.attention is Attention.MLA and model.latent is not None:
        return float(model.latent.kv_lora_rank + model.latent.qk_rope_head_dim)  # the same on every GPU
    heads = max(1.0, model.num_key_value_heads / tp)
    return heads * (model.head_dim + (model.v_head_dim or model.head_dim))


@dataclass(frozen=True)
class Engine:
    """One engine on `tp` GPUs, whatever memory it may take. element_bytes: of a weight."""

    model: ModelDescriptor
    machine: Machine
    tp: int
    element_bytes: float = _ELEMENT_BYTES

    @cached_property
    def weights_bytes(self) -> float:
        """Return the bytes of weights on each GPU."""
        return self.element_bytes * self._count.total / self.tp

    @cached_property
    def _count(self) -> ParameterCount:
        return parameters(self.model, with_mtp=False)

    def decode_s(self, sequences: Array, context: Array) -> Array:
        """Return the seconds of one token for each of so many sequences. context: tokens of one, in the mean."""
        count, experts = self._count, self.model.experts
        touched = np.full_like(sequences, float(count.total))
        if experts is not None and experts.num_experts_per_tok < experts.num_experts:
            chosen = experts.num_experts_per_tok / experts.num_experts
            of_experts = (count.total - count.active) / (1.0 - chosen)
            touched -= of_experts * (1.0 - chosen) ** sequences
        read = self.element_bytes * touched / self.tp + sequences * cached_bytes(self.model, self.tp, context)
        computed = 2.0 * count.active * sequences / self.tp
        work = np.maximum(read / self.machine.hbm_bytes_per_s, computed / self._flops_per_s)
        return work + self._reductions_s(sequences) + STEP_S

    def prefill_s(self, tokens: float) -> float:
        """Return the seconds of so many tokens of prompts."""
        computed = 2.0 * self._count.active * tokens / self.tp
        step = float(self._reductions_s(np.array([_PREFILL_TOKENS]))[0]) + STEP_S
        return computed / self._flops_per_s + tokens / _PREFILL_TOKENS * step

    @property
    def _flops_per_s(self) -> float:
        return self.machine.high_peak_flops * float(self.machine.efficiency)

    def _reductions_s(self, tokens: Array) -> Array:
        """Return the seconds of two all-reduces in each layer."""
        amount, ranks = tokens * self.model.hidden_size * _ELEMENT_BYTES, np.full_like(tokens, float(self.tp))
        return 2 * self.model.num_hidden_layers * ring(amount, 2.0, ranks, 1.0, self.machine)


@dataclass(frozen=True)
class Replica:
    """An engine that may take a share of its GPUs' memory."""

    engine: Engine
    share: float

    @property
    def bytes(self) -> float:
        """Return the bytes of each GPU that it takes."""
        return self.share * self.engine.machine.memory_bytes

    @property
    def context_bytes(self) -> float:
        """Return the bytes that are left for keys and values on each GPU; negative where the weights do not fit."""
        return self.bytes - self.engine.weights_bytes - WORKING_BYTES

    def at_once(self, rl: Rl) -> int:
        """Return how many sequences are decoded at once, at most; 0 where the longest one does not fit."""
        longest, held = (
            float(cached_bytes(self.engine.model, self.engine.tp, np.array([float(tokens)]))[0])
            for tokens in (rl.longest, rl.mean_tokens)
        )
        if longest > self.context_bytes:
            return 0
        room = self.context_bytes / held if held else float(rl.rollout.max_num_seqs)
        return max(1, min(rl.rollout.max_num_seqs, int(room)))


@dataclass(frozen=True, slots=True)
class Generation:
    """What a step's generation takes. at_once: sequences that a replica decodes together, at most. alone: the share of
    the time in which fewer than a quarter of these are left."""

    seconds: float
    prefill_s: float
    at_once: int
    alone: float


def generate(replica: Replica, rl: Rl, replicas: int) -> Generation | None:
    """Return a step's generation on so many replicas; None where the engine has no room for its longest sequence."""
    at_once, engine = replica.at_once(rl), replica.engine
    if replica.context_bytes <= 0 or not at_once:
        return None
    own = max(1, round(rl.sequences / replicas))
    if rl.rollout.tokens_per_s_per_gpu is not None:
        generated = rl.sequences * rl.response_length.mean
        stated = generated / (rl.rollout.tokens_per_s_per_gpu * engine.tp * replicas)
        return Generation(stated, 0.0, at_once, 0.0)
    prefill = engine.prefill_s(max(1.0, rl.prompts / replicas) * rl.prompt_length.mean)
    steps, active, context = _passed(rl, own, min(at_once, own))
    seconds = steps * engine.decode_s(active, context)
    total = float(seconds.sum())
    alone = float(seconds[active < min(at_once, own) / 4].sum()) / total
    return Generation(prefill + total, prefill, at_once, alone)


@lru_cache(maxsize=256)
def _passed(rl: Rl, own: int, at_once: int) -> tuple[Array, Array, Array]:
    """Return the stretches between two sequences' ends on one replica, in order: their steps, the sequences that run,
    and the mean of their contexts.

    Sequences start in an order that has long and short ones mixed.
    """
    drawn = np.rint(quantiles(rl.response_length, min(own, 16 * GROUPS)))
    lengths = [int(drawn[index]) for index in _mixed(drawn.size, own)]
    waiting, running = iter(lengths[at_once:]), [(end, 0) for end in lengths[:at_once]]
    heapq.heapify(running)
    step, started = 0, 0  # started: the sum of the steps at which those that run began
    stretches = []
    while running:
        end, active = running[0][0], len(running)
        stretches.append((end - step, active, rl.prompt_length.mean + (step + end) / 2 - started / active))
        step = end
        while running and running[0][0] == end:
            started -= heapq.heappop(running)[1]
            if (further := next(waiting, None)) is not None:
                heapq.heappush(running, (step + further, step))
                started += step
    steps, active_, context = np.array(stretches, dtype=np.float64).T
    return steps, active_, context


def _mixed(groups: int, count: int) -> list[int]:
    """Return the group of each of `count` sequences: all groups in turn, in steps of the golden section."""
    step = max(1, round(groups * 0.6180339887))
    while np.gcd(step, groups) != 1:
        step += 1
    return [(index * step) % groups for index in range(count)]

"""Generation by an inference engine: prefill and decode on one replica, as a roofline over time.

A step of decoding reads the weights that its tokens touch and the keys and values of all their contexts, or computes
with them, whichever takes longer; sequences leave as they end, and those that wait take their place. A replica may have
several ranks of data: each holds attention and the keys of its own sequences, and all of them together the experts.
Left out are speculative decoding, the engine's preemptions, ranks of data that wait for each other, and tools that a
response waits for.
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
# frees weights and keys only). Assumed. At level 1 weights go to the host, at level 2 they are given up.
ASLEEP_BYTES = 2.0 * GIB
KEEPING = 1  # the level at which weights are kept
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
    """One engine, whatever memory it may take, on GPUs for each rank of data. dp: ranks of data, over all of whose GPUs
    experts lie. element_bytes: of a weight."""

    model: ModelDescriptor
    machine: Machine
    tp: int
    dp: int = 1
    element_bytes: float = _ELEMENT_BYTES

    @property
    def gpus(self) -> int:
        """Count the GPUs of a replica."""
        return self.tp * self.dp

    @cached_property
    def weights_bytes(self) -> float:
        """Return the bytes of weights on each GPU."""
        return self.element_bytes * float(self._on_each(np.ones(1))[0])

    @property
    def _chosen(self) -> float:
        """Return the share of the experts that a token goes to."""
        experts = self.model.experts
        return 1.0 if experts is None else experts.num_experts_per_tok / experts.num_experts

    @property
    def _of_experts(self) -> float:
        """Count the parameters of experts among which a token has a choice."""
        return (self._count.total - self._count.active) / (1.0 - self._chosen) if self._chosen < 1.0 else 0.0

    def _on_each(self, touched: Array) -> Array:
        """Count the parameters on a GPU, with a share of all experts'."""
        result: Array = (self._count.total - self._of_experts * (1.0 - touched / self.dp)) / self.tp
        return result

    @cached_property
    def _count(self) -> ParameterCount:
        return parameters(self.model, with_mtp=False)

    def decode_s(self, sequences: Array, context: Array) -> Array:
        """Return the seconds of one token for each of so many sequences. context: tokens of one, in the mean."""
        touched = self._on_each(1.0 - (1.0 - self._chosen) ** sequences)
        read = self.element_bytes * touched + sequences / self.dp * cached_bytes(self.model, self.tp, context)
        computed = 2.0 * self._count.active * sequences / self.gpus
        work = np.maximum(read / self.machine.hbm_bytes_per_s, computed / self._flops_per_s)
        return work + self._reductions_s(sequences) + STEP_S

    def prefill_s(self, tokens: float) -> float:
        """Return the seconds of so many tokens of prompts."""
        computed = 2.0 * self._count.active * tokens / self.gpus
        at_once = _PREFILL_TOKENS * self.dp
        step = float(self._reductions_s(np.array([at_once]))[0]) + STEP_S
        return computed / self._flops_per_s + tokens / at_once * step

    @property
    def _flops_per_s(self) -> float:
        return self.machine.high_peak_flops * float(self.machine.efficiency)

    def _reductions_s(self, tokens: Array) -> Array:
        """Return the seconds of two all-reduces in each layer: behind attention over a rank of data, and behind the MLP
        over all of them, where tokens are gathered and their sums scattered."""
        amount = tokens * self.model.hidden_size * _ELEMENT_BYTES
        sums = ((amount / dp, float(gpus)) for dp, gpus in ((self.dp, self.tp), (1, self.gpus)))
        each = sum(ring(passed, 2.0, np.full_like(tokens, ranks), 1.0, self.machine) for passed, ranks in sums)
        result: Array = self.model.num_hidden_layers * np.asarray(each)
        return result


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
        return self.engine.dp * max(1, min(rl.rollout.max_num_seqs, int(room)))


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
        stated = generated / (rl.rollout.tokens_per_s_per_gpu * engine.gpus * replicas)
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

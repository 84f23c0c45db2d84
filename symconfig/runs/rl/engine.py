"""Generation by an inference engine: prefill and decode on one replica, as a roofline over time.

A step reads the weights that its tokens touch or computes with them, whichever takes longer; attention reads the keys
and values of all contexts; kernels between products read and write each token's activations; a word is drawn from every
sequence's logits. docs/evidence/generation.md holds each of these against an H100. Sequences leave as they end, and
those that wait take their place. A replica may have several ranks of data: each holds attention and the keys of its own
sequences, and all of them together the experts. Left out are speculative decoding, the engine's preemptions, ranks of
data that wait for each other, and tools that a response waits for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from symconfig.cost.formulas import ring
from symconfig.cost.machine import Machine
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Mlp, Pairs
from symconfig.descriptor.tuning import Rl
from symconfig.graph.model import ParameterCount, parameters
from symconfig.solve.lengths import GROUPS, Array, quantiles
from symconfig.units import GIB, MIB

ELEMENT_BYTES = 2.0
# Assumed: what an engine's host does between two steps of decoding while the GPU waits (schedule, prepare, detokenise).
STEP_S = 3e-3
# The kernels of a layer begin and end: some 14 of 2.7 us each, in a captured graph; as many are outside of layers.
# Fitted, as is TOGETHER, to llama3.2-1b and every other row of qwen3-8b on an H100 (docs/evidence/generation.md).
LAYER_S = 38e-6
# Reading and computing overlap but for a product's first and last tiles: (r^4 + c^4)^(1/4) seconds, not max(r, c).
TOGETHER = 4.0
# Read and written of each logit, of 2 bytes, until its word is drawn: a copy in 4 bytes (6), divided by a temperature
# (8), softmax (12), noise (4), shares over noise (12), the largest (4). PyTorch's kernels, as in vLLM's sampler.
SAMPLED_BYTES = 46.0
# What SGLang leaves for activations where it chooses its share itself (server_args.py, _handle_gpu_memory_settings):
# 1.5 MiB of each token of a prefill, of which it has so many at once on a GPU of fewer GiB.
_LEFT_BYTES = 1.5 * MIB
_PREFILLED = ((35.0, 2048), (60.0, 4096), (160.0, 8192), (np.inf, 16384))
# What an engine keeps on the GPU for CUDA graphs and its batch beside weights and keys. Assumed.
WORKING_BYTES = 2.0 * GIB
# Of an engine that sleeps: its context, its communicators and captured graphs stay (vLLM, device_allocator/cumem.py,
# frees weights and keys only). Assumed. At level 1 weights go to the host, at level 2 they are given up.
ASLEEP_BYTES = 2.0 * GIB
KEEPING = 1  # the level at which weights are kept
# Of a generation that no log calibrates: the likely share of the predicted seconds. Measured on an H100: a GPU's own
# work is 0.93 to 1.06 of it, and 1.3 with experts by PyTorch's kernels instead of an engine's. Not measured: 0.5 to 6
# ms instead of `STEP_S` beside 10 ms of work make 0.75 and 1.5 of it.
UNCERTAIN = (0.75, 1.5)
_PREFILL_TOKENS = 8192.0  # of a step (vLLM's max_num_batched_tokens, as trainers set it)


@dataclass(frozen=True)
class Engine:
    """One replica of an inference engine without its memory limit. tp: GPUs per data-parallel rank; dp:
    data-parallel ranks, over all of which experts are sharded; element_bytes: of a weight.
    """

    model: ModelDescriptor
    machine: Machine
    tp: int
    dp: int = 1
    element_bytes: float = ELEMENT_BYTES

    @property
    def gpus(self) -> int:
        """Return the GPUs of a replica, tp x dp."""
        return self.tp * self.dp

    @cached_property
    def weights_bytes(self) -> float:
        """Return the bytes of weights per GPU."""
        return self.element_bytes * float(self._on_each(np.ones(1))[0])

    @property
    def _chosen(self) -> float:
        """Return the share of the experts that process a token; 1 without experts."""
        experts = self.model.experts
        return 1.0 if experts is None else experts.num_experts_per_tok / experts.num_experts

    @property
    def _of_experts(self) -> float:
        """Return the number of parameters of all routed experts; 0 if every token uses all of them."""
        return (self._count.total - self._count.active) / (1.0 - self._chosen) if self._chosen < 1.0 else 0.0

    def _on_each(self, touched: Array) -> Array:
        """Return the parameters per GPU that a step reads, elementwise. touched: share of the experts that any token
        uses (1: all)."""
        result: Array = (self._count.total - self._of_experts * (1.0 - touched / self.dp)) / self.tp
        return result

    @cached_property
    def _count(self) -> ParameterCount:
        return parameters(self.model, with_mtp=False)

    def decode_s(self, sequences: Array, context: Array) -> Array:
        """Return the seconds of one decoding step of a replica, host time STEP_S included; elementwise. context: mean
        tokens per sequence."""
        return self.decoding_s(sequences, context) + STEP_S

    def decoding_s(self, sequences: Array, context: Array) -> Array:
        """Return the GPU seconds of one decoding step: layers, reading the KV cache, logits and sampling."""
        keys = sequences / self.dp * cached_bytes(self.model, self.tp, context)
        return self._layers_s(sequences) + keys / self.machine.copy_bytes_per_s + self._words_s(sequences)

    def prefill_s(self, tokens: float, length: float) -> float:
        """Return the seconds to prefill `tokens` prompt tokens in prompts of `length` tokens, host time included."""
        return self.prefilling_s(tokens, length) + STEP_S * tokens / self._at_once(tokens)

    def prefilling_s(self, tokens: float, length: float) -> float:
        """Return the GPU seconds to prefill `tokens` prompt tokens in prompts of `length` tokens, with attention scores
        and values over half of a causal prompt in the mean; layers with a window see at most that.
        """
        at_once, model = self._at_once(tokens), self.model
        window = min(length / 2, model.sliding_window or np.inf)
        keys = sum(window if kind.window else length / 2 for kind in model.kind_of_layer if kind.attends)
        flops = 2.0 * model.num_attention_heads * (model.head_dim + (model.v_head_dim or model.head_dim)) * keys
        step = self._layers_s(np.array([at_once])) + self._words_s(np.array([at_once / length]))
        scored = tokens / self.gpus * flops / float(self.machine.attention_flops)
        return tokens / at_once * float(step[0]) + scored

    def _at_once(self, tokens: float) -> float:
        return min(tokens, _PREFILL_TOKENS * self.dp)

    def _layers_s(self, tokens: Array) -> Array:
        """Return the seconds of one step's layers for `tokens` tokens of the replica, elementwise: weights read and
        FLOPs as `_product_s`, activations, launches and all-reduces; not reading the KV cache.
        """
        shared, count = self._at_ends / self.tp, self._count
        read = self._on_each(1.0 - (1.0 - self._chosen) ** tokens) - shared
        computed = 2.0 * (count.active - self._at_ends) * tokens / self.gpus
        whole, cut = moved(self.model)
        passed = tokens / self.dp * (whole + cut / self.tp) * ELEMENT_BYTES / self.machine.hbm_bytes_per_s
        layers = self.model.num_hidden_layers * LAYER_S
        result: Array = self._product_s(read, computed) + passed + layers + self._reductions_s(tokens)
        return result

    def _words_s(self, sequences: Array) -> Array:
        """Return the seconds to compute the logits of one token per sequence and to sample it."""
        head = np.full_like(sequences, self._head / self.tp)
        return self._product_s(head, 2.0 * self._head * sequences / self.gpus) + self.sampling_s(sequences)

    def sampling_s(self, sequences: Array) -> Array:
        """Return the seconds to sample one token per sequence from its logits, plus the launches outside of layers."""
        passed = SAMPLED_BYTES * self._head / self.model.hidden_size * sequences / self.dp
        result: Array = passed / self.machine.hbm_bytes_per_s + LAYER_S
        return result

    @cached_property
    def _head(self) -> int:
        """Return the number of parameters of the output head; with tied embeddings the embedding's are added."""
        own = self._count.by_part["head"]
        return own + self._count.by_part["embedding"] if self.model.tie_word_embeddings else own

    @cached_property
    def _at_ends(self) -> int:
        """Return the number of parameters of the embedding and the head."""
        return self._count.by_part["embedding"] + self._count.by_part["head"]

    def _product_s(self, parameters_read: Array, flops: Array) -> Array:
        """Return the seconds of matrix products on a GPU: reading the parameters and computing `flops`, overlapped as a
        4-norm (TOGETHER).
        """
        read = self.element_bytes * parameters_read / self.machine.copy_bytes_per_s
        flops_per_s = self.machine.high_peak_flops * float(self.machine.efficiency)
        result: Array = (read**TOGETHER + (flops / flops_per_s) ** TOGETHER) ** (1.0 / TOGETHER)
        return result

    def _reductions_s(self, tokens: Array) -> Array:
        """Return the seconds that all layers together spend on their two all-reduces of `tokens` hidden states: after
        attention over tp, for tokens / dp; after the MLP over all GPUs of the replica.
        """
        amount = tokens * self.model.hidden_size * ELEMENT_BYTES
        sums = ((amount / dp, float(gpus)) for dp, gpus in ((self.dp, self.tp), (1, self.gpus)))
        each = sum(ring(passed, 2.0, np.full_like(tokens, ranks), 1.0, self.machine) for passed, ranks in sums)
        result: Array = self.model.num_hidden_layers * np.asarray(each)
        return result


@dataclass(frozen=True)
class Replica:
    """An engine with its share of GPU memory.

    static: whether the share holds only weights and KV cache, of what its process leaves (SGLang's
    mem_fraction_static); else the share is of the whole GPU and includes working memory (vLLM's
    gpu_memory_utilization).
    """

    engine: Engine
    share: float
    static: bool = False

    @property
    def bytes(self) -> float:
        """Return the bytes that the engine takes of each GPU, working memory included."""
        memory = self.engine.machine.memory_bytes
        return self.share * (memory - ASLEEP_BYTES) + WORKING_BYTES if self.static else self.share * memory

    @property
    def most_bytes(self) -> float:
        """Return the bytes per GPU that the engine may take: `bytes`, and for a static share what SGLang's reserve for
        activations on such a GPU exceeds WORKING_BYTES by.
        """
        if not self.static:
            return self.bytes
        gib = self.engine.machine.memory_bytes / GIB
        tokens = next(each for most, each in _PREFILLED if gib < most)
        return self.bytes + max(0.0, _LEFT_BYTES * tokens - WORKING_BYTES)

    @property
    def context_bytes(self) -> float:
        """Return the bytes per GPU left for the KV cache; negative if the weights do not fit."""
        return self.bytes - self.engine.weights_bytes - WORKING_BYTES

    def at_once(self, rl: Rl, tokens: float | None = None) -> int:
        """Return the maximum number of sequences that a replica decodes at the same time; 0 if the longest one's KV
        cache does not fit. tokens: context of each sequence; None: the mean of `rl`. Per data-parallel rank at least 1
        and at most `max_num_seqs`.
        """
        longest, held = (
            float(cached_bytes(self.engine.model, self.engine.tp, np.array([float(each)]))[0])
            for each in (rl.longest, tokens or rl.mean_tokens)
        )
        if longest > self.context_bytes:
            return 0
        room = self.context_bytes / held if held else float(rl.rollout.max_num_seqs)
        return self.engine.dp * max(1, min(rl.rollout.max_num_seqs, int(room)))


def generation_s(replica: Replica, rl: Rl, replicas: int) -> float | None:
    """Return the seconds of a step's generation on `replicas` replicas; None if the engine has no room for weights and
    the longest sequence. They are those to prefill the prompts, each once, and to decode all responses; with a stated
    `tokens_per_s_per_gpu` the response tokens over that rate.
    """
    at_once, engine = replica.at_once(rl), replica.engine
    if replica.context_bytes <= 0 or not at_once:
        return None
    own = max(1, round(rl.generated / replicas))
    if rl.rollout.tokens_per_s_per_gpu is not None:
        generated = rl.generated * rl.response_length.mean
        return generated / (rl.rollout.tokens_per_s_per_gpu * engine.gpus * replicas)
    prefill = engine.prefill_s(max(1.0, rl.prompts / replicas) * rl.prompt_length.mean, rl.prompt_length.mean)
    steps, active, context = _passed(rl, own, min(at_once, own))
    return prefill + float((steps * engine.decode_s(active, context)).sum())


@lru_cache(maxsize=256)
def _passed(rl: Rl, own: int, at_once: int) -> tuple[Array, Array, Array]:
    """Return arrays (steps, active sequences, mean context tokens) of each interval between two ends of sequences on
    one replica, in order. own: sequences of the replica, with the distribution's lengths, long and short ones
    interleaved; at_once run at first, and a waiting one starts when one ends. Cached.
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
    """Return the group's index of each of `count` sequences, interleaving all groups by steps of the golden ratio."""
    step = max(1, round(groups * 0.6180339887))
    while np.gcd(step, groups) != 1:
        step += 1
    return [(index * step) % groups for index in range(count)]


def cached_bytes(model: ModelDescriptor, tp: int, tokens: Array) -> Array:
    """Return the KV cache bytes per GPU of one context of `tokens` tokens (elementwise); layers with a window keep at
    most that, and MLA's latent is not divided by tp.
    """
    own = [kind.window for kind in model.kind_of_layer if kind.attends and kind.pairs is not Pairs.BORROWED]
    whole, windowed = own.count(False), own.count(True)
    inside = tokens if model.sliding_window is None else np.minimum(tokens, model.sliding_window)
    seen = whole * tokens + windowed * inside
    channels = max(1.0, model.num_key_value_heads / tp) * (model.head_dim + (model.v_head_dim or model.head_dim))
    if model.attention is Attention.MLA and model.latent is not None:
        channels = float(model.latent.kv_lora_rank + model.latent.qk_rope_head_dim)  # the same on every GPU
    result: Array = seen * ELEMENT_BYTES * channels
    return result


@lru_cache(maxsize=64)
def moved(model: ModelDescriptor) -> tuple[float, float]:
    """Return (elements on every GPU, elements divided by tp) that kernels between matrix products read and write for
    one token in all layers: norms and expert results; rotations, keys and activations. Cached.
    """
    whole = cut = 0.0
    for kind in model.kind_of_layer:
        whole += 2 * 4 * model.hidden_size  # two norms: the stream and what is added to it, their sum and its norm
        cut += 2 * (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim  # turned, kept
        inner = float(model.intermediate_size if kind.mlp is Mlp.DENSE else 0)
        if kind.mlp is Mlp.MOE and (experts := model.experts) is not None:
            inner = (
                experts.num_experts_per_tok * experts.moe_intermediate_size + experts.shared_expert_intermediate_size
            )
            whole += (experts.num_experts_per_tok + 1) * model.hidden_size  # experts' results, and their sum
        cut += (3 if model.gated_mlp else 2) * inner
    return whole, cut

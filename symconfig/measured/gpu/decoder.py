"""A decoder as an inference engine runs it: random weights in 16 bits, keys and values in memory, one kernel for what
engines fuse.

Projections of one input are joined, norms add the residual stream, a step of decoding is one captured graph. The words
of a step are sampled with a temperature. Memory of keys and values is one piece for each layer, not pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.layers import Mlp, Pairs
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.graph.count import parameters
from symconfig.measured.gpu.kernel_run import Bench, swiglu

Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]

TEMPERATURE = 0.7
_DEVIATION = 0.02  # of random weights, as models are initialised


def unsupported(model: ModelDescriptor) -> str | None:
    """Say why this decoder is not the model, or None."""
    kinds = model.kind_of_layer
    if any(not kind.attends or kind.window or kind.pairs is not Pairs.OWN for kind in kinds):
        return "has layers that do not attend to all that came before by keys of their own"
    if model.position is not Position.ROPE or not model.gated_mlp or not all(kind.rope for kind in kinds):
        return "has other positions than rotary ones, or an MLP without gates"
    weights = sum(_count(shape) for shape in shapes(model, model.num_hidden_layers))
    if weights != parameters(model, with_mtp=False).total:
        return f"has other weights than plain attention and a gated MLP, or experts ({weights:,} numbers)"
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight's name in its layer, and its size; layer: None outside of layers."""

    name: str
    size: tuple[int, ...]
    layer: int | None = None


def _count(shape: Shape) -> int:
    product = 1
    for size in shape.size:
        product *= size
    return product


def shapes(model: ModelDescriptor, layers: int) -> Iterator[Shape]:
    """Yield the weights of a model's first layers, its embedding and its head. Projections lie as [out, in]."""
    width, heads, groups, channels = (
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
    )
    yield Shape("embedding", (model.vocab_size, width))
    for layer, kind in enumerate(model.kind_of_layer[:layers]):
        yield Shape("input_norm", (width,), layer)
        yield Shape("qkv", ((heads + 2 * groups) * channels, width), layer)
        if model.qkv_bias:
            yield Shape("qkv_bias", ((heads + 2 * groups) * channels,), layer)
        if model.qk_norm:
            yield Shape("query_norm", (channels,), layer)
            yield Shape("key_norm", (channels,), layer)
        yield Shape("out", (width, heads * channels), layer)
        yield Shape("mlp_norm", (width,), layer)
        if kind.mlp is Mlp.MOE and (experts := model.experts) is not None:
            each = experts.moe_intermediate_size
            yield Shape("router", (experts.num_experts, width), layer)
            yield Shape("gate_up", (experts.num_experts, 2 * each, width), layer)
            yield Shape("down", (experts.num_experts, width, each), layer)
        else:
            yield Shape("gate_up", (2 * model.intermediate_size, width), layer)
            yield Shape("down", (width, model.intermediate_size), layer)
    yield Shape("norm", (width,))
    if not model.tie_word_embeddings:
        yield Shape("head", (model.vocab_size, width))


def add_norm(stream: Any, added: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """Return the stream with what is added, and its RMS norm."""
    stream = stream + added
    wide = stream.float()
    return stream, (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(stream.dtype) * weight


def turned(
    joined: Any, cosine: Any, sine: Any, norms: tuple[Any, Any] | None, sizes: tuple[int, int, int], eps: float
) -> tuple[Any, Any, Any]:
    """Split joined projections into queries, keys and values [T, heads, channels]; norm and turn the first two."""
    heads, groups, channels = sizes
    parts = joined.unflatten(-1, (heads + 2 * groups, channels)).split((heads, groups, groups), dim=-2)
    result = []
    for index, part in enumerate(parts[:2]):
        wide = part.float()
        if norms is not None:
            wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
            wide = (wide.to(part.dtype) * norms[index]).float()
        first, second = wide.chunk(2, dim=-1)
        result.append((wide * cosine + _joined(-second, first) * sine).to(part.dtype))
    return result[0], result[1], parts[2]


def _joined(first: Any, second: Any) -> Any:
    import torch

    return torch.cat((first, second), dim=-1)


def weighed(results: Any, shares: Any) -> Any:
    """Sum the results [T, k, D] of a token's experts by their shares [T, k]."""
    return (results * shares.unsqueeze(-1)).sum(1)


@dataclass(frozen=True)
class Decoder:
    """A model's first layers on a device. keys, values: for each layer [tokens, groups, channels], of all sequences.

    fused: compiles a function into one kernel. attention: a backend of torch's, or None for its own choice.
    """

    bench: Bench
    model: ModelDescriptor
    layers: int
    weights: dict[tuple[int | None, str], Any]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    frequencies: Any
    fused: Fuse
    attention: Any = None

    @property
    def tokens(self) -> int:
        """Return how many tokens there is memory for."""
        return len(self.keys[0])

    def by(self, attention: Any) -> Decoder:
        """Return this decoder with another backend of attention."""
        return replace(self, attention=attention)

    def decoded(self, words: Any, context: int) -> Any:
        """Return logits [S, V] after one more word of each sequence, the last of `context` tokens."""
        return self._logits(self._passed(words, len(words), context, 1))

    def prefilled(self, words: Any, length: int) -> Any:
        """Return logits [S, V] behind prompts of this length, whose words are `words[S * length]`."""
        sequences = len(words) // length
        stream = self._passed(words, sequences, length, length)
        return self._logits(stream.unflatten(0, (sequences, length))[:, -1])

    def sampled(self, logits: Any) -> Any:
        """Sample a word of each sequence, as engines do: shares over exponential noise, of which the largest."""
        shares = logits.float().div_(TEMPERATURE).softmax(-1)
        return shares.div_(self.bench.torch.empty_like(shares).exponential_()).argmax(-1)

    def _logits(self, normed: Any) -> Any:
        head = self.weights.get((None, "head"))
        return normed @ (self.weights[None, "embedding"] if head is None else head).T

    def _passed(self, words: Any, sequences: int, context: int, own: int) -> Any:
        """Return the normed stream [S * own, D] of the last `own` of each sequence's tokens."""
        torch, weights, eps = self.bench.torch, self.weights, self.model.norm_eps
        places = torch.arange(context - own, context, device=self.bench.device, dtype=torch.float32)
        angles = torch.outer(places, self.frequencies).repeat(sequences, 2)[:, None]  # [S * own, 1, channels]
        cosine, sine = angles.cos(), angles.sin()
        normed_sum = self.fused(add_norm)
        stream = torch.nn.functional.embedding(words, weights[None, "embedding"])
        added = torch.zeros_like(stream)
        for layer in range(self.layers):
            stream, normed = normed_sum(stream, added, weights[layer, "input_norm"], eps)
            added = self._attended(layer, normed, (cosine, sine), (sequences, context, own))
            stream, normed = normed_sum(stream, added, weights[layer, "mlp_norm"], eps)
            added = self._experts(layer, normed) if (layer, "router") in weights else self._mlp(layer, normed)
        return normed_sum(stream, added, weights[None, "norm"], eps)[1]

    def _attended(self, layer: int, normed: Any, turns: tuple[Any, Any], at: tuple[int, int, int]) -> Any:
        sequences, context, own = at
        model, weights = self.model, self.weights
        sizes = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        norms = (weights[layer, "query_norm"], weights[layer, "key_norm"]) if model.qk_norm else None
        joined = self.bench.torch.nn.functional.linear(normed, weights[layer, "qkv"], weights.get((layer, "qkv_bias")))
        queries, *new = self.fused(turned)(joined, *turns, norms, sizes, model.norm_eps)
        held = []
        for memory, part in zip((self.keys[layer], self.values[layer]), new, strict=True):
            held.append(memory[: sequences * context].unflatten(0, (sequences, context)))
            held[-1][:, context - own :].copy_(part.unflatten(0, (sequences, own)))
        result = self._scored(own > 1, queries.unflatten(0, (sequences, own)), *held)
        return result.flatten(0, 1).flatten(1) @ weights[layer, "out"].T

    def _scored(self, causal: bool, queries: Any, keys: Any, values: Any) -> Any:
        """Return attention [S, own, heads, channels]."""
        from torch.nn.attention import sdpa_kernel

        grouped = self.model.num_attention_heads != self.model.num_key_value_heads
        parts = (part.transpose(1, 2) for part in (queries, keys, values))
        with sdpa_kernel(self.attention) if self.attention is not None else nullcontext():
            result = self.bench.torch.nn.functional.scaled_dot_product_attention(
                *parts, is_causal=causal, enable_gqa=grouped
            )
        return result.transpose(1, 2)

    def _mlp(self, layer: int, normed: Any) -> Any:
        weights = self.weights
        return self.fused(swiglu)(normed @ weights[layer, "gate_up"].T) @ weights[layer, "down"].T

    def _experts(self, layer: int, normed: Any) -> Any:
        """Return the sum over each token's experts: tokens in the order of their experts, one grouped product."""
        torch, weights, experts = self.bench.torch, self.weights, self.model.experts
        assert experts is not None
        product = torch.nn.functional.grouped_mm if hasattr(torch.nn.functional, "grouped_mm") else torch._grouped_mm
        shares, chosen = (normed @ weights[layer, "router"].T).float().softmax(-1).topk(experts.num_experts_per_tok)
        if experts.norm_topk_prob:
            shares = shares / shares.sum(-1, keepdim=True)
        ordered, order = chosen.flatten().sort()
        numbers = torch.arange(experts.num_experts, device=self.bench.device)
        ends = torch.searchsorted(ordered, numbers, right=True).to(torch.int32)
        mine = normed.index_select(0, order // experts.num_experts_per_tok)
        inner = self.fused(swiglu)(product(mine, weights[layer, "gate_up"].mT, offs=ends))
        results = product(inner, weights[layer, "down"].mT, offs=ends)
        back = torch.empty_like(results).index_copy_(0, order, results)
        return self.fused(weighed)(back.unflatten(0, chosen.shape), shares.to(back.dtype))


def decoder(bench: Bench, model: ModelDescriptor, layers: int, tokens: int, fused: Fuse) -> Decoder:
    """Build a model's first layers with random weights, and random keys and values of so many tokens."""
    torch = bench.torch
    weights = {}
    for shape in shapes(model, layers):
        weights[shape.layer, shape.name] = (
            bench.normal(*shape.size).mul_(_DEVIATION)
            if len(shape.size) > 1
            else torch.ones(shape.size, dtype=bench.half, device=bench.device)
        )
    size = tokens, model.num_key_value_heads, model.head_dim
    half = torch.arange(0, model.head_dim, 2, device=bench.device, dtype=torch.float32)
    return Decoder(
        bench,
        model,
        layers,
        weights,
        tuple(bench.normal(*size) for _ in range(layers)),
        tuple(bench.normal(*size) for _ in range(layers)),
        model.rope_theta ** (-half / model.head_dim),
        fused,
    )

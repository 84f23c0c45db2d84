"""Modules whose work depends on the data, and what stands for them: experts that all get equally many tokens.

They are known by their parameters, not by their class. Other modules can call `torch.ops.symconfig.dispatch` and
`combine` themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil

import torch
from torch import Tensor
from torch.nn import Module


@torch.library.custom_op("symconfig::dispatch", mutates_args=())  # type: ignore[untyped-decorator]
def dispatch(tokens: Tensor, routes: Tensor, experts: int) -> Tensor:
    """Copy tokens[T, H] by routes[T, K] -> [E, U, H]: U = T * K / E slots of every expert, rounded up."""
    raise NotImplementedError("symconfig::dispatch has shapes only: it is for tracing")


@dispatch.register_fake  # type: ignore[untyped-decorator]
def _(tokens: Tensor, routes: Tensor, experts: int) -> Tensor:
    return tokens.new_empty(experts, ceil(routes.numel() / experts), tokens.shape[-1])


@torch.library.custom_op("symconfig::combine", mutates_args=())  # type: ignore[untyped-decorator]
def combine(done: Tensor, weights: Tensor, routes: Tensor) -> Tensor:
    """Sum done[E, U, H] by weights[T, K], routes[T, K] -> [T, H]: each token's slots, summed by its weights."""
    raise NotImplementedError("symconfig::combine has shapes only: it is for tracing")


@combine.register_fake  # type: ignore[untyped-decorator]
def _(done: Tensor, weights: Tensor, routes: Tensor) -> Tensor:
    return done.new_empty(weights.shape[0], done.shape[-1])


def _stacked(module: Module) -> bool:
    """Tell whether experts' weights are one tensor each: up[E, ...] and down[E, ...] (transformers from version
    5 on).
    """
    up, down = _up(module), getattr(module, "down_proj", None)
    return all(isinstance(weight, Tensor) and weight.dim() == 3 for weight in (up, down))


def _up(module: Module) -> Tensor | None:
    up = getattr(module, "gate_up_proj", None)
    return up if up is not None else getattr(module, "up_proj", None)


def _balanced(module: Module, tokens: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
    """Return what each expert does, on its slots."""
    up, down = _up(module), module.down_proj
    assert isinstance(up, Tensor)
    assert isinstance(down, Tensor)
    given = dispatch(tokens, routes, up.shape[0])
    # Whether weights are [E, in, out]; by shape where the module does not say.
    transposed = getattr(module, "is_transposed", None)
    if not (bool(transposed) if transposed is not None else up.shape[1] == down.shape[2]):
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    hidden = _biased(torch.bmm(given, up), module, "gate_up_proj_bias", "up_proj_bias")
    hidden = _gated(module, hidden) if hasattr(module, "gate_up_proj") else module.act_fn(hidden)
    done = _biased(torch.bmm(hidden, down), module, "down_proj_bias")
    return combine(done, weights, routes)


def _gated(module: Module, hidden: Tensor) -> Tensor:
    if hasattr(module, "_apply_gate"):
        return module._apply_gate(hidden)
    gate, up = hidden.chunk(2, dim=-1)
    return module.act_fn(gate) * up


def _biased(values: Tensor, module: Module, *names: str) -> Tensor:
    bias = next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)
    return values if bias is None else values + bias.unsqueeze(1)


NOTE = (
    "Routing that depends on the data is replaced: in {count} modules of kind {name} every expert gets equally "
    "many tokens, rounded up, so an uneven router takes longer and needs more memory."
)


@contextmanager
def static(module: Module) -> Iterator[list[str]]:
    """Replace the module's dynamic parts while inside, and yield it with what was replaced. It is as it was on
    leaving.
    """
    replaced = [part for part in module.modules() if _stacked(part) and "forward" not in vars(part)]
    for part in replaced:
        part.forward = partial(_balanced, part)
    count = Counter(type(part).__name__ for part in replaced)
    try:
        yield [NOTE.format(count=times, name=name) for name, times in count.items()]
    finally:
        for part in replaced:
            del part.forward

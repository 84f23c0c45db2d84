"""A module traced on the meta device: shapes only, no memory.

Modules whose work depends on the data are replaced: experts all get equally many tokens. They are known by their
parameters, not by their class. Other modules can call `torch.ops.symconfig.dispatch` and `combine` themselves.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial, wraps
from io import StringIO
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import Module

from symconfig.errors import InputError, Problem


def traced(module: Module, args: Sequence[Any], kwargs: Mapping[str, Any], source: str) -> ExportedProgram:
    """Return the module's graph (torch.export, decomposed), traced without mutation; linear, attention and norms stay
    single operators.

    Traced are only the tensors at the top level of its output; warnings and prints are suppressed. Raise InputError,
    for any exception, with its reason and the last line outside of torch. source: what errors call the module.
    """
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # torch prints graphs
            warnings.simplefilter("ignore")
            with _with_tensor_outputs(module):
                exported = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
            return exported.run_decompositions({})
    except Exception as error:  # whatever the user's own code raises, too
        raise InputError(_problem(error, source)) from error


@contextmanager
def _with_tensor_outputs(module: Module) -> Iterator[None]:
    """Make the module return a tuple of the tensors at its output's top level (of a dict, its values) inside the
    context.

    Other parts (caches, settings) are dropped; an output without such tensors, or a single tensor, is unchanged.
    `forward` is restored at the end.
    """
    given, own = module.forward, "forward" in vars(module)

    @wraps(given)
    def forward(*args: Any, **kwargs: Any) -> Any:
        made = given(*args, **kwargs)
        parts = made.values() if isinstance(made, Mapping) else made if isinstance(made, (tuple, list)) else ()
        return tuple(part for part in parts if isinstance(part, Tensor)) or made

    module.forward = forward
    try:
        yield
    finally:
        if own:
            module.forward = given
        else:
            del module.forward


def _problem(error: Exception, source: str) -> Problem:
    """Return the problem of a module that cannot be traced: the exception's type and first line, at the last line of
    the traceback outside of torch and this file, if there is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "/torch/" not in frame.filename and frame.filename != __file__]
    last = theirs[-1] if theirs else None
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Problem(
        f"the module of {source} cannot be traced by torch.export: {type(error).__name__}: {reason.rstrip('.')}",
        file=last.filename if last else None,
        line=last.lineno if last else None,
        hint="what depends on the data (a loop over tensors, .item(), nonzero) must be left out or made static",
    )


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


def _has_stacked_experts(module: Module) -> bool:
    """Return whether the module holds its experts' weights as single tensors of three dims, gate_up_proj (or up_proj)
    and down_proj (transformers from version 5 on).
    """
    up, down = _up_weight(module), getattr(module, "down_proj", None)
    return all(isinstance(weight, Tensor) and weight.dim() == 3 for weight in (up, down))


def _up_weight(module: Module) -> Tensor | None:
    up = getattr(module, "gate_up_proj", None)
    return up if up is not None else getattr(module, "up_proj", None)


def _balanced_forward(module: Module, tokens: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
    """Return the result [T, H] of stacked experts, for tracing only: each expert gets equally many slots, whatever
    `routes` says.

    tokens: [T, H]. routes, weights: [T, K]. Up projection, activation (or gate) and down projection run on dispatched
    slots, with biases if the module has them. Executed outside of tracing, `dispatch` raises NotImplementedError.
    """
    up, down = _up_weight(module), module.down_proj
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
    """Replace the forward pass of modules with stacked experts by balanced routing inside the context, and restore it.

    Modules whose instance has a `forward` of its own are left as they are. Yields one note per class of replaced
    modules; empty if none is replaced.
    """
    replaced = [part for part in module.modules() if _has_stacked_experts(part) and "forward" not in vars(part)]
    for part in replaced:
        part.forward = partial(_balanced_forward, part)
    count = Counter(type(part).__name__ for part in replaced)
    try:
        yield [NOTE.format(count=times, name=name) for name, times in count.items()]
    finally:
        for part in replaced:
            del part.forward

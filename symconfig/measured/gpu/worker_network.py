"""A network that only pretends: every other rank of a group holds what this one holds.

Loaded by path in the process that measures, before Megatron is imported, never imported by symconfig. torch's fake
process group gives the ranks; its collectives leave their results as they were allocated in some of torch's releases,
and what was garbage becomes NaN. Here each result is what a mirror would send: a gather gives copies of this rank's
part, a scatter this rank's part, a pipeline's neighbour noise. Nothing waits, and a copy on the device takes the place
of each message, so a measured second has no network in it. Arguments are named as torch names them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class _Done:
    """A collective that has ended, and what `_coalescing_manager` yields."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def append(self, work: Any) -> None:
        return None


def install() -> None:
    """Replace torch's collectives."""
    import torch.distributed as network
    from torch.distributed import distributed_c10d

    replaced: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("all_gather_into_tensor", "_all_gather_base", "all_gather_single"), gather),
        **dict.fromkeys(("reduce_scatter_tensor", "_reduce_scatter_base", "reduce_scatter_single"), scatter),
        **dict.fromkeys(("all_reduce", "broadcast", "reduce", "barrier", "isend", "send"), keep),
        "all_gather": gather_list,
        "all_to_all_single": exchange,
        "irecv": receive,
        "recv": receive,
        "batch_isend_irecv": batch,
        "_coalescing_manager": coalesced,
    }
    for name, function in replaced.items():
        for module in (network, distributed_c10d):
            if hasattr(module, name):
                setattr(module, name, function)


def gather(output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> _Done:
    """Copy this rank's part for all others.

    A part that lies in the whole is a shard of weights: the others' stay as they are.
    """
    if output_tensor.untyped_storage().data_ptr() != input_tensor.untyped_storage().data_ptr():
        output_tensor.view(-1, input_tensor.numel()).copy_(input_tensor.reshape(1, -1))
    return _Done()


def scatter(output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False) -> _Done:
    """Return this rank's part of the sum."""
    import torch.distributed as network

    if output.untyped_storage().data_ptr() != input.untyped_storage().data_ptr():
        output.copy_(input.reshape(-1, output.numel())[network.get_rank(group)].view_as(output))
    return _Done()


def gather_list(tensor_list: list[Any], tensor: Any, *args: Any, **kwargs: Any) -> _Done:
    for output in tensor_list:
        output.copy_(tensor)
    return _Done()


def exchange(output: Any, input: Any, *args: Any, **kwargs: Any) -> _Done:
    """Return as many rows as are wanted, of this rank's own: which token comes back is of no consequence."""
    rows, place = len(input), 0
    if not rows:
        output.normal_()
        return _Done()
    while place < len(output):
        count = min(rows, len(output) - place)
        output[place : place + count].copy_(input[:count])
        place += count
    return _Done()


def receive(tensor: Any, *args: Any, **kwargs: Any) -> _Done:
    """Return noise of the size of normed activations: zeros would let the GPU run faster than it does."""
    import torch

    with torch.no_grad():
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.zero_()
    return _Done()


def keep(*args: Any, **kwargs: Any) -> _Done:
    """Leave a summed, sent or broadcast tensor as it is."""
    return _Done()


def batch(operations: list[Any]) -> list[_Done]:
    return [operation.op(operation.tensor) for operation in operations]


@contextlib.contextmanager
def coalesced(*args: Any, **kwargs: Any) -> Iterator[_Done]:
    yield _Done()

"""Trains modules from their files on several CPU ranks, and as they are on one: python executed_worker.py CASES.json.

Prints one JSON line for each case: how far loss, gradients and weights after a step are from those of one rank.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SECONDS = 60  # that a rank waits for another one


def made(factory: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return the module with weights that make everything differ, and inputs with some labels left out."""
    package, _, name = factory.partition(":")
    module, given = getattr(importlib.import_module(package), name)()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * 0.05 + (1 if weight.dim() == 1 else 0))

    def filled(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, generator=draw).to(dtype)
        return torch.randint(0, 500 if x.dim() > 1 else 10, x.shape, generator=draw)

    args = () if isinstance(given, Mapping) else tuple(map(filled, given))
    kwargs = {name: filled(x) for name, x in given.items()} if isinstance(given, Mapping) else {}
    if "labels" in kwargs and kwargs["labels"].dim() > 1:
        kwargs["labels"].view(-1)[:7] = -100
    if "ids" in kwargs:
        kwargs["ids"].view(-1)[:5] = 3  # the row that pads
    return module.to(dtype), args, kwargs


def whole(x: Any) -> Tensor:
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def step(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """One step of AdamW. Its epsilon is large, so that the sign of a gradient near zero decides nothing."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-4)
    made = module(*args, **kwargs)
    loss = made if isinstance(made, Tensor) else made[0]
    loss.backward()
    gradients = {path: whole(weight.grad) for path, weight in module.named_parameters() if weight.grad is not None}
    optimizer.step()
    state = {path: whole(x) for path, x in (*module.named_parameters(), *module.named_buffers())}
    return {"loss": whole(loss), "gradients": gradients, "state": state}


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference, each relative to the largest element of its tensor or 1e-3; infinite where one lacks."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[path] - other[path]).abs().max() / one[path].abs().max().clamp(min=1e-3)) for path in one)


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def compared(case: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    module, args, kwargs = made(case["factory"], getattr(torch, case["dtype"]))
    loaded(Path(case["file"])).apply(module)
    here = step(module, args, kwargs)
    losses = [torch.zeros_like(here["loss"]) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, here["loss"])
    apart = 0.0
    for weight in module.parameters():
        if all(placed.is_replicate() for placed in weight.placements):
            mine = weight.to_local().detach()
            every = [torch.empty_like(mine) for _ in losses]
            dist.all_gather(every, mine)
            apart = max(apart, *(float((one - mine).abs().max()) for one in every))
    result = {
        "case": case["name"],
        "replicas": apart,
        "loss": float((here["loss"] - expected["loss"]).abs()),
        "gradients": distance(expected["gradients"], here["gradients"]),
        "state": distance(expected["state"], here["state"]),
        "ranks": float(torch.stack(losses).std()),
    }
    if case.get("refuses"):
        try:
            module(*[x[:1] for x in args], **{name: x[:1] for name, x in kwargs.items() if isinstance(x, Tensor)})
        except ValueError as error:
            result["refused"] = str(error)
    return result


def rank(number: int, size: int, port: int, cases: list[dict[str, Any]], expected: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=number, world_size=size, timeout=timedelta(seconds=SECONDS))
    for case in cases:
        result = compared(case, expected[case["factory"]])
        if number == size - 1:  # the last one, which holds no first part
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    cases = json.loads(Path(sys.argv[1]).read_text())
    expected = {}
    for case in cases:
        if case["factory"] not in expected:
            expected[case["factory"]] = step(*made(case["factory"], getattr(torch, case["dtype"])))
    for size in sorted({case["ranks"] for case in cases}):
        mine = [case for case in cases if case["ranks"] == size]
        torch.multiprocessing.start_processes(rank, (size, free_port(), mine, expected), size, start_method="fork")


if __name__ == "__main__":
    main()

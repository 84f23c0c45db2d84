"""Bytes of a tiny actor that PyTorch's FSDP 2 shards as verl does, on several CPU ranks. Run by test_shards.

Usage: shards_worker.py RANKS FILE, where all ranks meet in FILE; the request comes on standard input: `config` (fields
of LlamaConfig), `tokens`, `sizes` (ranks that shard: `fsdp_size`). Rank 0 prints what it has with each of them:
`weights`, `gradients` and `optimizer state` at rest, `gathered`, the most that is whole of weights at once, in copies
and in buffers of all-gathers, and what AdamW has beside all of these while it steps, with all ranks in one group:
`fused`, `foreach` or `for-loop`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing import start_processes
from torch.profiler import ProfilerActivity, profile

STEPS: dict[str, Any] = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}


def local(tensors: Any) -> int:
    return sum(tensor.to_local().nbytes for tensor in tensors)


def sharded(request: dict[str, Any], ranks: int, size: int) -> Any:
    """Shard each layer, the embedding, the head and the rest, as verl 0.9.1 does (utils/fsdp_utils.py, apply_fsdp2)."""
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(**request["config"]), dtype=torch.float32
    )
    shape, names = ((ranks,), ("fsdp",)) if size == ranks else ((ranks // size, size), ("ddp", "fsdp"))
    how = {
        "mesh": init_device_mesh("cpu", shape, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True),
        "reshard_after_forward": True,
    }
    for part in (*model.model.layers, model.model.embed_tokens, model.lm_head):
        fully_shard(part, **how)
    return fully_shard(model, **how)


def counted(request: dict[str, Any], ranks: int, size: int) -> dict[str, int]:
    model = sharded(request, ranks, size)
    parts = (model, model.model.embed_tokens, *model.model.layers, model.lm_head)
    groups = [part._get_fsdp_state()._fsdp_param_group for part in parts]
    held = [each for group in groups for each in group.fsdp_params]
    most = 0

    def look(*of: Any) -> None:
        """Count what was copied out of all-gathers, and their buffers."""
        nonlocal most
        last = groups[0].comm_ctx.all_gather_state
        results = [group._all_gather_result for group in groups] + [last.all_gather_result if last else None]
        buffers = {id(each): each.all_gather_output.nbytes for each in results if each is not None}
        whole = sum(out.untyped_storage().nbytes() for each in held for out in each.all_gather_outputs)
        most = max(most, whole + sum(buffers.values()))

    for part in model.modules():
        part.register_forward_pre_hook(look)
        part.register_forward_hook(look)
        part.register_full_backward_pre_hook(look)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    tokens = torch.randint(0, request["config"]["vocab_size"], (1, request["tokens"]))
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    weights = list(model.parameters())
    gradients = local(each.grad for each in weights)
    optimizer.step()
    states = [tensor for state in optimizer.state.values() for tensor in state.values() if tensor.dim()]
    held = {"weights": local(weights), "gradients": gradients, "optimizer state": local(states), "gathered": most}
    for name, how in STEPS.items() if size == ranks else ():
        optimizer = torch.optim.AdamW(weights, lr=1e-6, **how)
        optimizer.step()  # makes its state
        held[name] = allocated(optimizer.step)
    return held


def allocated(run: Callable[[], Any]) -> int:
    """The most that the CPU's allocator has at once of what a run asks it for."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    sizes = [each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]
    return max((0, *accumulate(sizes)))


def run(rank: int, ranks: int, file: str, request: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    store = torch.distributed.FileStore(file, ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = {size: counted(request, ranks, size) for size in request["sizes"]}
    if rank == 0:
        print(json.dumps(found), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[1])
    given = (count, sys.argv[2], json.load(sys.stdin))
    start_processes(run, given, count, start_method="fork")  # what is imported is there for all

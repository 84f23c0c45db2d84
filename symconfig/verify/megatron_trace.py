"""Records what autograd keeps of one microbatch's forward through every chunk of a rank: Megatron's modules, no memory.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. `run` is the task of a job. The
tensors are on the meta device: each has its shape, its type and its storage's identity and size, and no data.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import resource
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")  # by name: the package imports no framework
runner: Any = importlib.import_module("megatron_runner")
build: Any = runner.load("megatron_build")
stand_ins: Any = runner.load("megatron_stand_ins")

META = torch.device("meta")


def run(args: Any, config: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a microbatch through every chunk of this rank and return {rank, saved_bytes (`saved_bytes` of all chunks),
    seconds, max_rss_bytes}. Patches Megatron for the rest of the process.
    """
    start = time.perf_counter()
    with build.placed(args, config) as ready:
        stand_ins.prepare(ready)
        kept = sum(saved_bytes(args, ready, model) for model in build.modules(args, ready))
    return {
        "rank": job["rank"],
        "saved_bytes": kept,
        "seconds": time.perf_counter() - start,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * build.KIB,
    }


@dataclass(slots=True, weakref_slot=True)
class Kept:
    """A tensor that autograd keeps; it dies with the node of the graph."""

    tensor: Any


def saved_bytes(args: Any, config: Any, model: Any) -> int:
    """Return the bytes of all storages that the backward of one microbatch of a chunk would read. Parameters, buffers
    and what a second microbatch reads, too, which is held once, are left out; the forward runs twice.
    """
    chunk = model
    if args.bf16 or args.fp16:  # 16-bit weights and an fp32 loss, as the trainer has them
        chunk = importlib.import_module("megatron.core.transformer.module").Float16Module(config, model)
    packed: list[Any] = []

    def pack(tensor: Any) -> Kept:
        packed.append(weakref.ref(kept := Kept(tensor)))
        return kept

    microbatches: list[dict[int, Any]] = []  # {number: storage}, which keeps a number from being given again
    for _ in range(2):
        packed.clear()
        saving: Any = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor)
        with torch.device("cpu"), saving:  # the default where Megatron runs, too
            end = _forward(args, config, model, chunk)
        gc.collect()  # what waits in a cycle of Python's is not kept by autograd
        # Now: the first forward replaces some (the router's bias becomes fp32).
        owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        tensors = [kept.tensor for reference in packed if (kept := reference()) is not None]
        storages = [each.untyped_storage() for each in (*tensors, *_attributes(end)) if each.device == META]
        microbatches.append({each._cdata: each for each in storages if each._cdata not in owned})
    first, second = microbatches
    return sum(storage.nbytes() for number, storage in first.items() if number not in second)


def _forward(args: Any, config: Any, model: Any, chunk: Any) -> Any:
    """Run one microbatch (zeros, on meta) as pretrain_gpt.py does; return the loss on the last stage, else the output.
    Later stages get an empty input; a mask is made unless the release leaves it to attention.
    """
    sequence = args.seq_length // config.context_parallel_size
    tokens = torch.zeros(args.micro_batch_size, sequence, dtype=torch.long, device=META)
    mask = None
    if getattr(args, "create_attention_mask_in_dataloader", True):
        mask = torch.zeros(args.micro_batch_size, 1, sequence, sequence, dtype=torch.bool, device=META)
    if not model.pre_process:
        split = config.tensor_model_parallel_size if config.sequence_parallel else 1
        received = torch.empty(
            sequence // split,
            args.micro_batch_size,
            config.hidden_size,
            dtype=torch.float32 if config.fp32_residual_connection else config.params_dtype,
            requires_grad=True,
            device=META,
        )
        model.set_input_tensor(received)
    loss_mask = torch.ones(args.micro_batch_size, sequence, device=META)
    offered = {"labels": tokens, "loss_mask": loss_mask}
    taken = inspect.signature(type(model).forward).parameters
    output = chunk(tokens, tokens, mask, **{name: value for name, value in offered.items() if name in taken})
    if not model.post_process:
        return output
    return torch.sum(output.view(-1).float() * loss_mask.view(-1))  # its loss function


def _attributes(end: Any) -> Iterator[Any]:
    """Yield the tensors among attributes of all autograd nodes below end.grad_fn, which custom functions keep and no
    hook reports.
    """
    waiting, seen = [end.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for value in getattr(node, "__dict__", {}).values():
            several = value if isinstance(value, tuple | list) else (value,)
            yield from (each for each in several if isinstance(each, torch.Tensor))
        waiting.extend(following for following, _ in node.next_functions)

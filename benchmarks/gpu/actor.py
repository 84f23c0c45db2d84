#!/usr/bin/env python3
"""Measure the phases of an actor on one GPU: Transformers, FSDP2 in 32-bit shards, as verl's FSDP workers run them.

    python benchmarks/gpu/actor.py SIZES.json CASES.json OUT.jsonl

Each case is measured with PyTorch's allocator emptied before it: the peak that was allocated and reserved, what the
driver says is in use, and the median seconds. A line is written as soon as it is known. Needs torch and transformers.

flash-attn is not needed: sequences are of one length, so causal attention over a batch is what packing computes, and
its cross-entropy is written anew with what that one keeps: 16-bit logits, whose place its gradient takes.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

GIB = 2**30
REPEATS = 3


def lse(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of exponentials of each row, in 32 bits."""
    return torch.logsumexp(logits.float(), -1)


def slope(logits: torch.Tensor, sums: torch.Tensor, labels: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of log-probabilities by logits, in the type of these."""
    hit = torch.arange(logits.shape[-1], device=logits.device) == labels[:, None]
    return ((hit.float() - torch.exp(logits.float() - sums[:, None])) * gradient[:, None]).to(logits.dtype)


def slope_in_place(
    logits: torch.Tensor, sums: torch.Tensor, labels: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """Write that gradient over the logits."""
    return logits.copy_(slope(logits, sums, labels, gradient))


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row; compiled, as trainers do."""
    shares = torch.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - torch.sum(shares * logits, dim=-1)


class LogProbs(torch.autograd.Function):
    """Log-probabilities of labels, which keep the logits; in_place: and overwrite them with their gradient."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, in_place: bool) -> torch.Tensor:
        sums = FUSED["lse"](logits)
        ctx.save_for_backward(logits, sums, labels)
        ctx.in_place = in_place
        return logits.gather(-1, labels[:, None]).squeeze(-1).float() - sums

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, sums, labels = ctx.saved_tensors
        made = FUSED["slope_in_place" if ctx.in_place else "slope"](logits, sums, labels, gradient)
        return made, None, None


def fused(cuda: bool) -> dict[str, Any]:
    functions = {function.__name__: function for function in (lse, slope, slope_in_place, entropy)}
    return {name: torch.compile(f, dynamic=True) if cuda else f for name, f in functions.items()}


FUSED: dict[str, Any] = {}


class Actor:
    """One model, its optimizer, and what is measured of them. cuda: else everything runs small on a CPU."""

    def __init__(self, sizes: dict[str, Any], cuda: bool) -> None:
        self.device = torch.device("cuda" if cuda else "cpu")
        self.cuda, self.sizes = cuda, sizes
        config = transformers.AutoConfig.for_model(**sizes)
        with self.device:
            self.model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="sdpa"
            )
        self.model.train()
        mesh = dist.device_mesh.init_device_mesh(self.device.type, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.01)

    def recompute(self, on: bool) -> None:
        """Switch recomputation of layers."""
        if on:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            self.model.gradient_checkpointing_disable()

    def logits(self, words: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return 16-bit logits [tokens, V], over a temperature that is not one."""
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(input_ids=words, use_cache=False).logits.flatten(0, 1)
        if temperature == 1.0:
            return logits
        scale = torch.full((len(logits), 1), temperature, device=self.device)
        return logits / scale.clamp(min=1e-8).to(logits.dtype)

    def read(self, words: torch.Tensor, temperature: float, with_entropy: bool) -> None:
        """Compute log-probabilities without gradients, and the entropy where it is wanted."""
        self.model.eval()
        with torch.no_grad():
            logits = self.logits(words, temperature)
            held = FUSED["entropy"](logits) if with_entropy else None
            LogProbs.apply(logits, words.flatten(), not with_entropy)
            del held
        self.model.train()

    def update(self, words: torch.Tensor, temperature: float, with_entropy: bool) -> None:
        """Run forward and backward of a micro-batch."""
        logits = self.logits(words, temperature)
        terms = FUSED["entropy"](logits) if with_entropy else None
        loss = -LogProbs.apply(logits, words.flatten(), not with_entropy).mean()
        if terms is not None:
            loss = loss - 0.01 * terms.mean()
        del logits, terms
        loss.backward()

    def step(self) -> None:
        """Clip gradients, step, and drop them."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def moved(self, device: str) -> None:
        """Move weights and the optimizer's state, as between phases."""
        self.model.to(device, non_blocking=True)
        for state in self.optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[key] = value.to(device, non_blocking=True)
        if self.cuda:
            torch.cuda.synchronize()
            if device == "cpu":
                torch.cuda.empty_cache()


def emptied(cuda: bool) -> None:
    gc.collect()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measured(cuda: bool, run: Any, before: Any = lambda: None) -> dict[str, Any]:
    """Run once to warm up, then a few times with the allocator emptied before."""
    before()
    run()
    emptied(cuda)
    resting = torch.cuda.memory_allocated() if cuda else 0
    seconds = []
    for _ in range(REPEATS):
        before()
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    found: dict[str, Any] = {"seconds": statistics.median(seconds), "all_seconds": seconds}
    if cuda:
        free, whole = torch.cuda.mem_get_info()
        found |= {
            "resting_bytes": resting,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_bytes": whole - free,
        }
    return found


def one(actor: Actor, case: dict[str, Any]) -> dict[str, Any]:
    """Measure a case: {"phase", "sequences", "length", "recompute", "temperature"}."""
    cuda, phase = actor.cuda, case["phase"]
    if phase != "update":
        actor.optimizer.zero_grad()
    actor.recompute(case.get("recompute", False))
    shape = case.get("sequences", 1), case.get("length", 8)
    words = torch.randint(0, actor.sizes["vocab_size"], shape, device=actor.device)
    temperature, with_entropy = case.get("temperature", 1.0), case.get("entropy", False)
    if phase == "read":
        return measured(cuda, lambda: actor.read(words, temperature, with_entropy))
    if phase == "update":  # a micro-batch beside gradients that are there already, as all but the first are
        return measured(cuda, lambda: actor.update(words, temperature, with_entropy))
    if phase == "optimizer":
        return measured(cuda, actor.step, lambda: actor.update(words, temperature, False))
    if phase == "away":
        return measured(cuda, lambda: actor.moved("cpu"), lambda: actor.moved(actor.device.type))
    if phase == "back":
        return measured(cuda, lambda: actor.moved(actor.device.type), lambda: actor.moved("cpu"))
    raise ValueError(phase)


def main(sizes_file: str, cases_file: str, out_file: str) -> None:
    sizes = json.loads(Path(sizes_file).read_text(encoding="utf-8"))
    cases = json.loads(Path(cases_file).read_text(encoding="utf-8"))
    cuda = torch.cuda.is_available()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    dist.init_process_group("nccl" if cuda else "gloo", rank=0, world_size=1)
    FUSED.update(fused(cuda))
    allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    with Path(out_file).open("a", encoding="utf-8") as out:

        def write(line: dict[str, Any]) -> None:
            print(json.dumps({"model": sizes["name"], "allocator": allocator, **line}), file=out, flush=True)

        started = time.perf_counter()
        actor = Actor({key: value for key, value in sizes.items() if key != "name"}, cuda)
        write({"case": {"phase": "built"}, "seconds": time.perf_counter() - started})
        for case in cases:
            try:
                write({"case": case, **one(actor, case)})
            except torch.OutOfMemoryError as error:
                write({"case": case, "out_of_memory": str(error).splitlines()[0][:300]})
            except Exception as error:
                write({"case": case, "error": f"{type(error).__name__}: {error}"[:500]})
            emptied(cuda)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Records what autograd keeps of one microbatch's forward through every chunk of a rank: Megatron's modules, no memory.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. `run` is the task of a job. The
tensors are on the meta device: each has its shape, its type and its storage's identity and size, and no data.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import resource
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

torch: Any = importlib.import_module("torch")  # by name: the package imports no framework
TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
runner: Any = importlib.import_module("megatron_runner")
build: Any = runner.load("megatron_build")
stand_ins: Any = runner.load("megatron_stand_ins")

META = torch.device("meta")


def run(args: Any, config: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a microbatch through every chunk of this rank and return {rank, saved, saved_bytes, shared_bytes, seconds,
    max_rss_bytes}. saved: a record of each storage that the backward would read (`trace`); saved_bytes: sum of those
    held per microbatch; shared_bytes: of those held once. Patches Megatron for the rest of the process.
    """
    start = time.perf_counter()
    with build.placed(args, config) as ready:
        stand_ins.prepare(ready)
        models = build.modules(args, ready)
        saved = [record for place, model in enumerate(models) for record in trace(args, ready, model, place)]
    return {
        "rank": job["rank"],
        "saved": saved,
        "saved_bytes": sum(record["bytes"] for record in saved if not record["shared"]),
        "shared_bytes": sum(record["bytes"] for record in saved if record["shared"]),
        "seconds": time.perf_counter() - start,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * build.KIB,
    }


def trace(args: Any, config: Any, model: Any, place: int) -> list[dict[str, Any]]:
    """Return a record {chunk, bytes, module, reader, shared} of each distinct storage that the backward of one
    microbatch of the chunk would read; the forward runs twice.

    module: that made it; reader: that saved it. shared: the second microbatch reads the same storage, so that it is
    held once. place: the chunk's index.
    """
    recorder, chunk = Recorder(model), model
    if args.bf16 or args.fp16:  # 16-bit weights and an fp32 loss, as the trainer has them
        chunk = importlib.import_module("megatron.core.transformer.module").Float16Module(config, model)
    microbatches = []
    for _ in range(2):
        with torch.device("cpu"), recorder.listening():  # the default where Megatron runs, too
            end = _forward(args, config, model, chunk)
        gc.collect()  # what waits in a cycle of Python's is not kept by autograd
        microbatches.append(recorder.kept(end))
    first, second = microbatches
    return [{"chunk": place, **record, "shared": storage in second} for storage, record in first.items()]


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


@dataclass(slots=True, weakref_slot=True)
class Kept:
    """A tensor that autograd keeps, with the module that reads it; it dies with the node of the graph."""

    tensor: Any
    module: str


@dataclass
class Recorder:
    """A recorder of every operator, every module and every tensor that autograd saves while one chunk runs."""

    model: Any
    names: dict[Any, str] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    made: dict[int, str] = field(default_factory=dict)  # the innermost module that made each storage
    packed: list[Any] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)  # so that no storage's number is given twice

    def __post_init__(self) -> None:
        self.names = {module: name for name, module in self.model.named_modules()}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block, record running modules, storages that operators make, and tensors that autograd saves."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        saving: Any = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor)
        try:
            with saving, Operators(self._note):
                yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: Any, inputs: Any) -> None:
        self.running.append(self.names.get(module) or self._inside())

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.running.pop()

    def _inside(self) -> str:
        """Return the name of the innermost running module, "" outside all. A module that is not in the chunk counts as
        its caller.
        """
        return self.running[-1] if self.running else ""

    def _note(self, tensor: Any) -> None:
        self.made[_storage(tensor)._cdata] = self._inside()

    def _pack(self, tensor: Any) -> Kept:
        kept = Kept(tensor, self._inside())
        self.packed.append(weakref.ref(kept))
        return kept

    def kept(self, end: Any) -> dict[int, dict[str, Any]]:
        """Return {storage: {bytes, module that made it, reader}} of what was saved since the last call and is still
        alive, or is kept by custom functions below `end`, the forward's result; the first reader counts. Parameters,
        buffers, empty storages and those not on the meta device are left out. Clears the list of saved tensors and
        keeps the storages alive.
        """
        storages: dict[int, dict[str, Any]] = {}
        # Now: the first forward replaces some (the router's bias becomes fp32), and a freed number is given again.
        owned = {_storage(tensor)._cdata for tensor in (*self.model.parameters(), *self.model.buffers())}
        packed = [kept for reference in self.packed if (kept := reference()) is not None]
        self.packed.clear()
        for kept in (*packed, *_attributes(end)):
            storage = _storage(kept.tensor)
            if kept.tensor.device.type != "meta" or storage._cdata in owned or not storage.nbytes():
                continue
            if storage._cdata not in storages:
                self.alive.append(storage)
                module = self.made.get(storage._cdata) or kept.module
                storages[storage._cdata] = {"bytes": storage.nbytes(), "module": module, "reader": kept.module}
        return storages


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """A recorder of every storage that an operator makes, not of views and of what is written in place."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        super().__init__()
        self._heard = heard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and report each output whose storage is not one of its inputs'."""
        output = func(*args, **(kwargs or {}))
        given = {_storage(value)._cdata for value in _tensors((*args, *(kwargs or {}).values()))}
        for tensor in _tensors(output if isinstance(output, tuple | list) else (output,)):
            if _storage(tensor)._cdata not in given:
                self._heard(tensor)
        return output


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage()


def _attributes(end: Any) -> Iterator[Kept]:
    """Yield the tensors among attributes of all autograd nodes below end.grad_fn, which custom functions keep and no
    hook reports; their reader is "".
    """
    waiting, seen = [end.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for value in getattr(node, "__dict__", {}).values():
            for tensor in _tensors((value,)):
                yield Kept(tensor, "")
        waiting.extend(following for following, _ in node.next_functions)

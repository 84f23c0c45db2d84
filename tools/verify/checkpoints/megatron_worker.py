"""Saves and loads checkpoints with Megatron-LM's own trainer code on CPU ranks that talk over gloo.

A script for `python -E -P -u`: SOURCE RUNNERS_FOLDER. Standard input: {"timeout_s", "tasks": [TASK…]}, TASK =
{"id", "runs": [{"args", "world_size", "does", "vocabulary", "may_fail"}…]}: its runs follow each other, each on ranks
of its own, forked from the process that has imported Megatron; the first that fails and may not ends it. They save,
load, or convert: load, save as --ckpt-convert-format says, and end. Answers one JSON line a task: {"id", "runs":
[{"error": null or text, "differs": [what is not as it should be], "iteration", "scheduler_steps", "log"}…]}.

What a run holds is made by a rule from the names and places of the tensors, the same in every layout, and two steps of
Adam. So a run that loads knows what it must hold: it makes it, forgets it, loads, and compares.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ITERATION = 20
STEPS = 2
PRIMES = (7, 13, 29, 53, 101)
LOG = 4000  # letters
CAPABILITY = {"capability": (9, 0), "memory_bytes": 80 * 10**9, "compute_units": 132}


def load(name: str) -> Any:
    spec = spec_from_file_location(name, Path(sys.argv[2]) / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    load("megatron_shims").install(Path(sys.argv[1]))
    import numpy
    import torch

    # Of older releases of numpy and torch, for core_v0.12 and 0.13.
    numpy.product = getattr(numpy, "product", numpy.prod)  # type: ignore[attr-defined]
    files: Any = importlib.import_module("torch.distributed.checkpoint.filesystem")
    files._write_item.__defaults__ = (files.SerializationFormat.TORCH_SAVE,)

    torch.set_num_threads(1)
    runner = load("megatron_runner")
    for name in ("megatron_patches", "megatron_local_specs", "megatron_tasks"):
        load(name)
    # What the trainer imports from its package, which is a stand-in.
    for name in (
        "megatron.training.ft_integration",
        "megatron.training.wandb_utils",
        *runner.IMPORTED_ONCE,
        "megatron.training.checkpointing",
    ):
        importlib.import_module(name)
    fused_adam()
    runner._warm_up()
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True}), file=answers)
    for task in request["tasks"]:
        print(json.dumps({"id": task["id"], "runs": list(runs(task["runs"], request["timeout_s"]))}), file=answers)


def fused_adam() -> None:
    """Adam as Apex and Transformer Engine have it on GPUs: the count of steps is the group's, not each tensor's.
    torch's own, which Megatron falls back to, is saved otherwise."""
    import torch

    class FusedAdam(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            betas: Any = (0.9, 0.95),
            eps: float = 1e-8,
            weight_decay: float = 0.0,
            **asked: Any,
        ) -> None:
            super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                first, second = group["betas"]
                for weight in group["params"]:
                    if weight.grad is not None:
                        state = self.state[weight]
                        for name, beta, power in (("exp_avg", first, 1), ("exp_avg_sq", second, 2)):
                            state.setdefault(name, torch.zeros_like(weight)).mul_(beta).add_(
                                weight.grad.float() ** power, alpha=1 - beta
                            )
                        weight.sub_(state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"]), alpha=group["lr"])

    optimizer = importlib.import_module("megatron.core.optimizer")
    sharded = importlib.import_module("megatron.core.optimizer.distrib_optimizer")
    if hasattr(sharded, "quantize_param_shard"):  # asks for Transformer Engine, also where no weight is of 8 bits
        sharded.quantize_param_shard = lambda *asked, **more: None
    for module in (optimizer, sharded):
        if hasattr(module, "Adam"):
            module.Adam = FusedAdam
    for module, name, value in (
        (optimizer, "USING_PYTORCH_OPTIMIZER", False),
        (sharded, "HAVE_APEX_OR_TE", True),
        (sharded, "USING_APEX_OPTIMIZER", True),
    ):
        if hasattr(module, name):
            setattr(module, name, value)


def runs(asked: list[dict[str, Any]], timeout_s: float) -> Iterator[dict[str, Any]]:
    for run in asked:
        answer = on_ranks(run, timeout_s)
        yield answer
        if answer["error"] is not None and not run["may_fail"]:
            return


def on_ranks(run: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The first rank's answer that is an error, else the first; with the log of its rank."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(run, rank, Path(folder)) for rank in range(run["world_size"])]
        deadline = time.monotonic() + timeout_s
        left = dict(enumerate(children))
        while left and time.monotonic() < deadline:
            for rank, child in list(left.items()):
                if os.waitpid(child, os.WNOHANG)[0]:
                    del left[rank]
                    if json.loads(_answer(folder, rank) or "{}").get("error", "died") is not None:
                        deadline = min(deadline, time.monotonic() + 2)  # the others wait for it
            time.sleep(0.02)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        for child in left.values():
            os.waitpid(child, 0)
        answers = []
        for rank in range(run["world_size"]):
            told = _answer(folder, rank)
            log = (Path(folder) / f"{rank}.log").read_text(errors="replace")
            answers.append(
                {**(json.loads(told) if told else {"error": "hung or died", "differs": []}), "log": log[-LOG:]}
            )
    wrong = [answer for answer in answers if answer["error"] is not None]
    said = [answer for answer in wrong if answer["error"] != "hung or died"]
    first = (said or wrong or answers)[0]
    return {**first, "differs": sorted({what for answer in answers for what in answer["differs"]})}


def _answer(folder: str | Path, rank: int) -> str:
    path = Path(folder) / f"{rank}.json"
    return path.read_text() if path.exists() else ""


def _fork(run: dict[str, Any], rank: int, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()  # with the processes that write its files, which older releases leave behind
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    answer: dict[str, Any] = {"error": None, "differs": [], "iteration": None}
    try:
        answer |= perform(run, rank, folder / "store")
    except BaseException as error:
        traceback.print_exc()
        error = error.__cause__ or error  # a phase of the runner has stopped
        answer["error"] = f"{type(error).__name__}: {shortened(' '.join(str(error).split()))}"
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    part = folder / f"{rank}.part"
    part.write_text(json.dumps(answer))
    part.rename(folder / f"{rank}.json")
    os._exit(0)


def shortened(text: str) -> str:
    """The last error that it tells of: torch hands other ranks' tracebacks on as text."""
    last = [match.start() for match in re.finditer(r"\b\w+(?:Error|Exception): ", text)][-1:]
    return text[last[0] if last else 0 :][:400]


def perform(run: dict[str, Any], rank: int, store: Path) -> dict[str, Any]:
    """One rank of one run."""
    import torch

    runner, build, shims = (sys.modules[name] for name in ("megatron_runner", "megatron_tasks", "megatron_shims"))
    os.environ.update(
        WORLD_SIZE=str(run["world_size"]), RANK=str(rank), LOCAL_RANK=str(rank), CUDA_DEVICE_MAX_CONNECTIONS="1"
    )
    shims.claim_gpu(*CAPABILITY.values())
    shims.claim_transformer_engine("2.13.0")
    runner._groups = _real_groups(runner._groups, store)
    sys.modules["megatron_patches"]._checkpoint_groups = lambda: None  # here they are
    job = {"args": run["args"], "world_size": run["world_size"], "rank": rank}
    args, config, _ = runner.resolve(job, runner.Phases())
    args.real_vocabulary = run["vocabulary"]
    with build.placed(args, config, "cpu") as ready:
        torch.distributed.all_reduce(torch.zeros(1))
        importlib.import_module("megatron.core.tensor_parallel.random").model_parallel_cuda_manual_seed(1234)
        _, chunks = build._trained(args, ready)
        optimizer = _optimizer(args, chunks)
        scheduler = importlib.import_module("megatron.training.training").get_optimizer_param_scheduler(optimizer)
        hold(chunks, optimizer, args)
        return {"save": save, "load": load_checkpoint, "convert": convert}[run["does"]](
            args, chunks, optimizer, scheduler
        )


def save(args: Any, chunks: list[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    files: Any = importlib.import_module("megatron.training.checkpointing")
    args.consumed_train_samples = ITERATION * args.global_batch_size
    scheduler.step(increment=args.consumed_train_samples)
    files.save_checkpoint(ITERATION, chunks, optimizer, scheduler, 0)
    return {}


def load_checkpoint(args: Any, chunks: list[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    import torch

    expected = snapshot(chunks, optimizer)
    forget(chunks, optimizer)
    files: Any = importlib.import_module("megatron.training.checkpointing")
    iteration, _ = files.load_checkpoint(chunks, optimizer, scheduler)
    found = snapshot(chunks, optimizer)
    # Gradients in 16 bits are rounded, and so are moments made of them: what loads wrongly is off by more.
    differs = [name for name in expected if not torch.allclose(expected[name], found[name], 0.02, 1e-6)]
    return {
        "iteration": iteration,
        "differs": sorted({name.split("|")[0] for name in differs}),
        "scheduler_steps": scheduler.num_steps,
    }


def convert(args: Any, chunks: list[Any], optimizer: Any, scheduler: Any) -> dict[str, Any]:
    """What setup_model_and_optimizer does for --ckpt-convert-format (training/training.py)."""
    files: Any = importlib.import_module("megatron.training.checkpointing")
    forget(chunks, optimizer)
    args.iteration, operations = files.load_checkpoint(chunks, optimizer, scheduler)
    args.ckpt_format = args.ckpt_convert_format
    args.save = str(Path(args.ckpt_convert_save) / args.ckpt_convert_format)
    args.use_dist_ckpt = args.ckpt_format != "torch"
    files.save_checkpoint(args.iteration, chunks, optimizer, scheduler, operations)
    return {}


def _optimizer(args: Any, chunks: list[Any]) -> Any:
    """As the trainer makes it. Its first step makes the moments."""
    config, overrides = importlib.import_module("megatron.training.training").get_megatron_optimizer_config(args)
    make = importlib.import_module("megatron.core.optimizer").get_megatron_optimizer
    return make(config, chunks, config_overrides=overrides, use_gloo_process_groups=True)


def _real_groups(fake: Callable[..., None], store: Path) -> Callable[..., None]:
    """Megatron's groups as the runner makes them, over gloo."""
    import torch

    def groups(args: Any, world_size: int, rank: int) -> None:
        real = torch.distributed.init_process_group
        state: Any = importlib.import_module("megatron.core.parallel_state")
        make = state.initialize_model_parallel

        def init(*_: Any, **__: Any) -> None:
            real("gloo", store=torch.distributed.FileStore(str(store), world_size), rank=rank, world_size=world_size)

        @functools.wraps(make)
        def initialize(*degrees: Any, **asked: Any) -> None:
            make(*degrees, **{**asked, "create_gloo_process_groups": True})

        torch.distributed.init_process_group, state.initialize_model_parallel = init, initialize
        fake(args, world_size, rank)
        torch.distributed.init_process_group, state.initialize_model_parallel = real, make

    return groups


def hold(chunks: list[Any], optimizer: Any, args: Any) -> None:
    """Weights by their names and places, and two steps of the optimizer on gradients by the same rule."""
    import torch

    with torch.no_grad():
        for piece, _ in pieces(chunks):
            piece.data.copy_(values(piece, args, 0.1))
        optimizer.reload_model_params()
        for _ in range(STEPS):
            scale = optimizer.get_loss_scale().item()  # of fp16, which the optimizer takes out again
            for piece, gradient in pieces(chunks):
                gradient.copy_(values(piece, args, 0.01 * scale))
            optimizer.step()


def pieces(chunks: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Every piece of a weight that the framework names (a ShardedTensor), and the same piece of its gradient."""
    mapping: Any = importlib.import_module("megatron.core.dist_checkpointing.mapping")
    nested: Any = importlib.import_module("megatron.core.dist_checkpointing.dict_utils").nested_values
    for chunk in chunks:
        weights = list(chunk.parameters())
        model = chunk
        while hasattr(model, "module"):
            model = model.module
        for named in nested(model.sharded_state_dict()):
            built = nested(named.build()) if isinstance(named, mapping.ShardedTensorFactory) else [named]
            for piece in built:
                if isinstance(piece, mapping.ShardedTensor):
                    owner = next(weight for weight in weights if _within(weight, piece.data))
                    start = piece.data.storage_offset() - owner.storage_offset()
                    yield (
                        piece,
                        owner.main_grad.as_strided(
                            piece.data.shape, piece.data.stride(), owner.main_grad.storage_offset() + start
                        ),
                    )


def _within(weight: Any, view: Any) -> bool:
    start = weight.data_ptr()
    return bool(start <= view.data_ptr() < start + weight.numel() * weight.element_size())


def values(piece: Any, args: Any, scale: float) -> Any:
    """Of the piece's name and its indices in the whole tensor; 0 in the padding of the vocabulary."""
    import torch

    lengths = [1] * piece.prepend_axis_num + list(piece.data.shape)
    mixed = torch.zeros(lengths, dtype=torch.float64)
    for axis, (start, length) in enumerate(zip(piece.global_offset, lengths, strict=True)):
        index = torch.arange(start, start + length, dtype=torch.float64)
        mixed += (index * PRIMES[axis]).view([length if place == axis else 1 for place in range(len(lengths))])
    mixed = mixed.view(piece.data.shape)
    made = torch.frac((mixed + zlib.crc32(piece.key.encode()) % 97) * 0.61803398875) - 0.5
    if any(name in piece.key for name in ("word_embeddings", "output_layer")):
        made[torch.arange(made.shape[0]) + piece.global_offset[0] >= args.real_vocabulary] = 0
    return (made * scale).float()


def snapshot(chunks: list[Any], optimizer: Any) -> dict[str, Any]:
    """Copies of all weights, main weights and moments of this rank, by kind and number."""
    build = sys.modules["megatron_tasks"]
    found = {}
    for place, chunk in enumerate(chunks):
        for name, weight in chunk.named_parameters():
            found[f"weights|{place}|{name}"] = weight.detach().clone()
    for number, part in enumerate(build.parts(optimizer)):
        if part.optimizer is None:
            continue
        for index, group in enumerate(build.main_weights(part)):
            for place, weight in enumerate(group):
                if weight is not None:
                    found[f"main weights|{number}|{index}|{place}"] = weight.detach().clone()
        for index, (weight, state) in enumerate(part.optimizer.state.items()):
            for name, value in state.items():
                if hasattr(value, "shape") and value.shape == weight.shape:
                    found[f"{name}|{number}|{index}"] = value.detach().clone()
    return found


def forget(chunks: list[Any], optimizer: Any) -> None:
    import torch

    build = sys.modules["megatron_tasks"]
    with torch.no_grad():
        for chunk in chunks:
            for weight in chunk.parameters():
                weight.fill_(3.0)
        for part in build.parts(optimizer):
            if part.optimizer is None:
                continue
            for group in build.main_weights(part):
                for weight in group:
                    if weight is not None:
                        weight.fill_(3.0)
            for state in part.optimizer.state.values():
                for value in state.values():
                    if hasattr(value, "shape") and value.dim():
                        value.fill_(3.0)


if __name__ == "__main__":
    main()

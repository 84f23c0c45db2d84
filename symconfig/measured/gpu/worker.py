"""Runs steps of one rank for real: a script in a process of its own, never imported by symconfig.

Reads one JSON document from standard input: {"source": folder with megatron/, "job": as megatron_session has it,
"device", "steps", "microbatches", "attention", "transformer_impl"}. Writes JSON lines: {"doing": "…"} as it goes on,
and {"result": {…}} at the end. The module, the schedule, the gradient buffers and the optimizer are Megatron's own;
the network is worker_network's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections import ChainMap
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERIFY = HERE.parents[1] / "verify"
SEED = 1234


class Clock:
    """Megatron's timers: `config.timers(name, log_level=…)` gives what is started and stopped around each pass.

    On a GPU events are recorded in its stream, so nothing waits until they are read.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self.passes: dict[str, list[tuple[Any, Any]]] = {}

    def __call__(self, name: str, log_level: int | None = None) -> _Timer:
        return _Timer(self, name)

    def now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, name: str) -> list[float]:
        """Return the seconds of every pass of this name since the last call."""
        if not self._on_gpu:
            return [end - start for start, end in self.passes.pop(name, [])]
        import torch

        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in self.passes.pop(name, [])]


class _Timer:
    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def start(self, barrier: bool = False) -> None:
        self._clock.passes.setdefault(f"{self._name} started", []).append(self._clock.now())

    def stop(self, barrier: bool = False) -> None:
        started = self._clock.passes[f"{self._name} started"].pop()
        self._clock.passes.setdefault(self._name, []).append((started, self._clock.now()))


def main() -> None:
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever Megatron prints is no answer

    def say(text: str) -> None:
        print(json.dumps({"doing": text}), file=answers)

    runner = _runner()
    phases = runner.Phases()
    result: dict[str, Any] = {"phases": phases.done}
    try:
        _measure(request, runner, phases, say, result)
    except runner.Stop as stop:
        if not isinstance(stop.__cause__, SystemExit):  # which has said why: its words shall be the last
            traceback.print_exception(stop.__cause__)
    print(json.dumps({"result": result}), file=answers)


def _runner() -> Any:
    """Return megatron_runner, which loads the other scripts by their paths: its folder does not stay on sys.path."""
    sys.path.insert(0, str(VERIFY))
    try:
        return importlib.import_module("megatron_runner")
    finally:
        sys.path.remove(str(VERIFY))


def _measure(request: dict[str, Any], runner: Any, phases: Any, say: Any, result: dict[str, Any]) -> None:
    job, on_gpu = request["job"], request["device"] == "cuda"
    # Before CUDA starts, which reads some of them then.
    os.environ.update(job["env"], WORLD_SIZE=str(job["world_size"]), RANK=str(job["rank"]), LOCAL_RANK="0")
    import torch

    if on_gpu and not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for a CPU only"
        result["no_gpu"] = f"PyTorch {torch.__version__}, built {built}, finds no GPU"
        return
    say("importing Megatron")
    phases.run("import", lambda: _import(request, job, runner, on_gpu))
    result["software"] = _software(on_gpu)
    result["not_compiled"] = _not_compiled() if on_gpu else None
    say("its arguments")
    args, config, _ = runner.resolve(job, phases)
    with contextlib.ExitStack() as stack:
        if not on_gpu:
            stack.enter_context(sys.modules["megatron_patches"].device("cpu"))
        try:
            say("building the rank")
            rank = phases.run("build", lambda: _built(args, config, runner, request))
            result["states_bytes"] = torch.cuda.memory_allocated() if on_gpu else None
            result["rank"] = sys.modules["megatron_build"].describe(rank)
            result["args"] = _ran(args, request["transformer_impl"], runner)
            _steps(args, rank, request, phases, say, result)
        except BaseException as error:
            if "out of memory" not in str(error.__cause__ or error).lower():
                raise
            result["out_of_memory"] = " ".join(str(error.__cause__ or error).split())
        finally:
            if on_gpu:
                result["memory"] = _memory()


def _import(request: dict[str, Any], job: dict[str, Any], runner: Any, on_gpu: bool) -> None:
    runner.load("worker_network", HERE).install()
    shims = runner.load("megatron_shims")
    shims.install(Path(request["source"]), compilers=on_gpu)
    runner.load("megatron_patches")
    runner.load("megatron_local_specs")
    if not on_gpu:
        shims.claim_gpu(tuple(job["capability"]), job["memory_bytes"], job["compute_units"])
    if importlib.util.find_spec("transformer_engine") is None:
        shims.claim_transformer_engine(job["transformer_engine"])
    if on_gpu:
        import torch

        torch.cuda.set_device(0)


def _built(args: Any, config: Any, runner: Any, request: dict[str, Any]) -> Any:
    """Build the rank on its device, with weights as at the start of a training run."""
    build = runner.load("megatron_build")
    kernels = runner.load("worker_kernels", HERE)
    if request["transformer_impl"] == "local":
        stand_ins = runner.load("megatron_stand_ins")
        stand_ins.without_fp8()
        stand_ins.kernels(config)
        if request["attention"] == "flash":
            kernels.flash_attention()
    args.check_for_nan_in_loss_and_grad = False  # a network that pretends promises no numbers
    if hasattr(config, "moe_router_force_load_balancing"):
        config.moe_router_force_load_balancing = True
    importlib.import_module("megatron.core.tensor_parallel").model_parallel_cuda_manual_seed(SEED)
    rank = build.build(
        args, config, {**request["job"], "device": request["device"], "transformer_impl": request["transformer_impl"]}
    )
    kernels.fused_adam([part.optimizer for part in build.parts(rank.optimizer)])
    return rank


def _steps(args: Any, rank: Any, request: dict[str, Any], phases: Any, say: Any, result: dict[str, Any]) -> None:
    clock = Clock(request["device"] == "cuda")
    config = importlib.import_module("megatron.core.utils").get_model_config(rank.chunks[0])
    _as_the_trainer_does(args, config, rank, clock)
    batch = _batch(args, request["device"])
    result["steps"] = []
    for number in range(request["steps"]):
        say(f"step {number + 1} of {request['steps']}")
        result["steps"].append(phases.run(f"step {number + 1}", lambda: _step(args, rank, batch, clock, request)))


def _as_the_trainer_does(args: Any, config: Any, rank: Any, clock: Clock) -> None:
    """Set what `train` of megatron.training sets before its first step."""
    finalize = importlib.import_module("megatron.core.distributed").finalize_model_grads
    config.grad_scale_func = rank.optimizer.scale_loss
    config.finalize_model_grads_func = finalize
    config.timers = clock
    if args.overlap_grad_reduce:
        stops = [chunk.no_sync for chunk in rank.chunks]
        starts = [chunk.start_grad_sync for chunk in rank.chunks]
        config.no_sync_func = stops if len(stops) > 1 else stops[0]
        if getattr(args, "align_grad_reduce", False):
            config.grad_sync_func = starts if len(starts) > 1 else starts[0]
    for chunk in rank.chunks:
        chunk.train()


def _batch(args: Any, device: str) -> dict[str, Any]:
    """Return random tokens of this rank's share of the sequence; every microbatch is the same."""
    import torch

    length = args.seq_length // args.context_parallel_size
    tokens = torch.randint(0, args.vocab_size, (args.micro_batch_size, length + 1), device=device)
    places = torch.arange(length, device=device).expand(args.micro_batch_size, length)
    return {
        "input_ids": tokens[:, :-1].contiguous(),
        "position_ids": places,
        "attention_mask": None,
        "labels": tokens[:, 1:].contiguous(),
    }


def _step(args: Any, rank: Any, batch: dict[str, Any], clock: Clock, request: dict[str, Any]) -> dict[str, Any]:
    """Run Megatron's train_step: gradients to zero, its schedule over the microbatches, its optimizer."""
    for chunk in rank.chunks:
        chunk.zero_grad_buffer()
    rank.optimizer.zero_grad()
    schedule = importlib.import_module("megatron.core.pipeline_parallel").get_forward_backward_func()
    several = len(rank.chunks) > 1
    losses = schedule(
        forward_step_func=lambda data, chunk: (chunk(**batch), _loss),
        data_iterator=[None] * len(rank.chunks) if several else None,
        model=rank.chunks if several else rank.chunks[0],
        num_microbatches=request["microbatches"],
        seq_length=args.seq_length,
        micro_batch_size=args.micro_batch_size,
        decoder_seq_length=args.decoder_seq_length,
        forward_only=False,
    )
    timer = clock("optimizer-step")
    timer.start()
    _, norm, _ = rank.optimizer.step()
    timer.stop()
    return {
        "forward_s": clock.seconds("forward-compute"),
        "backward_s": clock.seconds("backward-compute"),
        "optimizer_s": sum(clock.seconds("optimizer-step")),
        "losses": [float(loss) for loss in losses],
        "gradient_norm": None if norm is None else float(norm),
    }


def _loss(output: Any) -> tuple[Any, Any]:
    """Return the loss of the last stage: the mean over tokens, as pretrain_gpt.py's."""
    loss = output.float().mean()
    return loss, loss.detach()


def _not_compiled() -> str | None:
    """Say why PyTorch's compiler, which fuses Megatron's activations, does not work here.

    It may want a C compiler, say. The operators then run one by one.
    """
    import torch
    import torch._dynamo

    try:
        torch.compile(lambda x: 2 * x + 1)(torch.ones(2, device="cuda"))
    except Exception as error:
        torch._dynamo.config.suppress_errors = True
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def _ran(args: Any, impl: str, runner: Any) -> dict[str, Any]:
    """Return the namespace as a log prints it, with what the local layers do instead of the plan's."""
    kernels = (sys.modules[name].KERNELS for name in ("megatron_patches", "megatron_stand_ins"))
    instead = dict(ChainMap(*kernels)) if impl == "local" else {}
    values = {name: runner.plain(instead.get(name, value)) for name, value in vars(args).items()}
    return {
        name: value if isinstance(value, bool | int | float | None) else str(value) for name, value in values.items()
    }


def _memory() -> dict[str, int]:
    """Return the peaks since the process began, and the memory in use by the driver."""
    import torch

    free, whole = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_bytes": whole - free,
        "whole_bytes": whole,
    }


def _software(on_gpu: bool) -> dict[str, Any]:
    import torch

    versions = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "megatron": importlib.import_module("megatron.core").__version__,
    }
    if on_gpu:
        gpu = torch.cuda.get_device_properties(0)
        versions |= {
            "cuda": torch.version.cuda,
            "gpu": gpu.name,
            "capability": [gpu.major, gpu.minor],
            "compute_units": gpu.multi_processor_count,
        }
    with contextlib.suppress(ImportError):
        versions["transformer_engine"] = importlib.import_module("transformer_engine").__version__
    return versions


if __name__ == "__main__":
    main()

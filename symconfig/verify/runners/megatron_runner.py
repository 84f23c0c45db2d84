"""Runs Megatron's own argument checks on argument lists. A script for `python -E -P -u`, never imported by symconfig.

Reads one JSON document from standard input: {"source": folder with megatron/, "timeout_s": per list,
"jobs": [{"id", "args": [...], "env": {...}, "world_size", "capability": [major, minor], "memory_bytes",
"compute_units", "transformer_engine", "rank", "task"}]}. Writes one JSON line first ({"ready": seconds}) and one for
every job as it ends. A task other than "check" is one phase more: that function of megatron_tasks.py on the resolved
arguments; what it returns is the answer's "rank". Each job runs in a forked child of the process that has
imported Megatron: fresh global state for every list, and neither a crash nor a hang reaches the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import gc
import importlib
import importlib.machinery
import inspect
import json
import os
import re
import resource
import sys
import time
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

IMPORTED_ONCE = (
    "megatron.training.arguments",
    "megatron.training.training",
    "megatron.core.models.gpt",
    "torch.testing._internal.distributed.fake_pg",
)
BUILT_ONCE = ("torch._dynamo",)  # half a second, of every model that is built on the meta device
KIB = 1024  # ru_maxrss is in KiB on Linux
DEFAULT_TOKENIZER = "GPT2BPETokenizer"  # pretrain_gpt.py's args_defaults


def load(name: str) -> Any:
    """Load a module of this folder by path into sys.modules, and return it; sys.path stays unchanged."""
    path = Path(__file__).parent / f"{name}.py"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # so that one of them can import another
    importlib.machinery.SourceFileLoader(name, str(path)).exec_module(module)
    return module


class Phases:
    """The steps of one job in order; the first that fails ends it."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []

    def run(self, name: str, step: Callable[[], Any]) -> Any:
        """Run a step, append {name, ok, error, seconds} to `done`, and return the step's value; after any exception,
        also SystemExit, raise Stop.
        """
        start = time.perf_counter()
        try:
            value = step()
        except BaseException as error:
            self.done.append(
                {"name": name, "ok": False, "error": _explain(error), "seconds": time.perf_counter() - start}
            )
            raise Stop from error
        self.done.append({"name": name, "ok": True, "error": None, "seconds": time.perf_counter() - start})
        return value


class Stop(Exception):
    """A phase has failed; the cause is its error."""


def _explain(error: BaseException) -> str:
    """Return an exception as one line "Type: text [folder/folder/file.py:line]", without a text with the raising source
    line for it; SystemExit as "exits with status N".
    """
    if isinstance(error, SystemExit):
        return f"exits with status {error.code}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "/".join(Path(frame.filename).parts[-3:]) + f":{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split()) or frame.line} [{place}]"


def check(job: dict[str, Any], shims: Any) -> dict[str, Any]:
    """Return what Megatron finds on one argument list without a GPU: {id, phases: [{name, ok, error, seconds}]} and
    what `_check` adds; a failed phase is the last, and what would follow it is absent. Sets environment variables and
    patches torch and Megatron in this process.
    """
    os.environ.update(job["env"], WORLD_SIZE=str(job["world_size"]), RANK=str(job["rank"]), LOCAL_RANK="0")
    shims.claim_gpu(tuple(job["capability"]), job["memory_bytes"], job["compute_units"])
    shims.claim_transformer_engine(job["transformer_engine"])
    shims.claim_sparse_kernels()
    phases = Phases()
    result: dict[str, Any] = {"id": job["id"], "phases": phases.done}
    with contextlib.suppress(Stop):
        _check(job, phases, result)
    return result


def _check(job: dict[str, Any], phases: Phases, result: dict[str, Any]) -> None:
    """Run all phases of a job and fill `result` with num_microbatches, stages, args and config as Megatron resolved
    them, and, for tasks other than "check", what the task returns as "rank", with its rank, seconds and max_rss_bytes.
    Raise Stop if a phase fails.
    """
    args, config, result["num_microbatches"] = resolve(job, phases)
    trainer = importlib.import_module("megatron.training.training")
    for name in ("ddp_config", "optimizer_config"):
        make = getattr(trainer, f"get_megatron_{name}", None)
        if make is not None:  # from core_v0.18 on
            with sys.modules["megatron_shims"].claimed_adam():
                phases.run(name, partial(make, args))
    result["stages"] = phases.run("stages", lambda: _stages(args, config))
    result["args"] = {name: plain(value) for name, value in vars(args).items()}
    result["config"] = {field.name: plain(getattr(config, field.name, None)) for field in dataclasses.fields(config)}
    if job["task"] != "check":
        found = phases.run(job["task"], lambda: getattr(load("megatron_tasks"), job["task"])(args, config))
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        result["rank"] = {
            "rank": job["rank"],
            **found,
            "seconds": phases.done[-1]["seconds"],
            "max_rss_bytes": peak_bytes,
        }


def resolve(job: dict[str, Any], phases: Phases) -> tuple[Any, Any, int]:
    """Return the arguments, transformer config and number of microbatches of a job; initializes process groups and sets
    sys.argv. Each step is recorded in `phases`; raises Stop if one fails.
    """
    arguments = importlib.import_module("megatron.training.arguments")
    sys.argv = ["pretrain_gpt.py", *job["args"]]
    args = phases.run("parse_args", arguments.parse_args)
    phases.run("validate_args", lambda: arguments.validate_args(args, {"tokenizer_type": DEFAULT_TOKENIZER}))
    phases.run("tokenizer", lambda: _tokenizer(args))
    num_microbatches = phases.run("microbatches", lambda: _microbatches(args))
    phases.run("groups", lambda: _groups(args, job["world_size"], job["rank"]))
    config = phases.run("transformer_config", lambda: arguments.core_transformer_config_from_args(args))
    return args, config, num_microbatches


def _tokenizer(args: Any) -> None:
    """Set args.padded_vocab_size as Megatron does, if it is not set and vocab_size is; a Null tokenizer is really
    built, where the release can.
    """
    builder = getattr(importlib.import_module("megatron.training.global_vars"), "build_tokenizer", None)
    if builder and str(args.tokenizer_type).startswith("Null"):
        builder(args)
    if getattr(args, "padded_vocab_size", None) is None and args.vocab_size is not None:
        multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
        args.padded_vocab_size = -(-args.vocab_size // multiple) * multiple


def _microbatches(args: Any) -> int:
    """Return the microbatches of a step by Megatron's calculator, initialized with what the release takes."""
    module = importlib.import_module("megatron.core.num_microbatches_calculator")
    calculator = module.init_num_microbatches_calculator
    offered = {
        "rank": 0,
        "rampup_batch_size": getattr(args, "rampup_batch_size", None),
        "global_batch_size": args.global_batch_size,
        "micro_batch_size": args.micro_batch_size,
        "data_parallel_size": args.data_parallel_size * getattr(args, "gtp_weight_remat_size", 1),
        "decrease_batch_size_if_needed": False,
    }
    calculator(**accepted(calculator, offered))
    return int(module.get_num_microbatches())


def _groups(args: Any, world_size: int, rank: int) -> None:
    """Initialize every process group of one rank at the full world size, with torch's fake backend; arguments that the
    release does not take are left out.
    """
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    state = importlib.import_module("megatron.core.parallel_state")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    offered = {
        "virtual_pipeline_model_parallel_size": args.virtual_pipeline_model_parallel_size,
        "context_parallel_size": args.context_parallel_size,
        "hierarchical_context_parallel_sizes": getattr(args, "hierarchical_context_parallel_sizes", None),
        "expert_model_parallel_size": args.expert_model_parallel_size,
        "expert_tensor_parallel_size": getattr(args, "expert_tensor_parallel_size", None),
        "num_distributed_optimizer_instances": getattr(args, "num_distributed_optimizer_instances", 1),
        "gtp_remat_size": getattr(args, "gtp_weight_remat_size", 1),
        "order": "tp-cp-ep-pp-dp" if getattr(args, "use_tp_pp_dp_mapping", False) else "tp-cp-ep-dp-pp",
        "create_gloo_process_groups": False,
    }
    initialize = state.initialize_model_parallel
    initialize(args.tensor_model_parallel_size, args.pipeline_model_parallel_size, **accepted(initialize, offered))


def _stages(args: Any, config: Any) -> list[list[list[int]]]:
    """Return, per pipeline and virtual stage, [first layer (from 0), number of layers, multi-token-prediction layers];
    Megatron's pipeline ranks are set meanwhile.
    """
    if getattr(args, "hybrid_layer_pattern", None):
        return _hybrid_stages(args, config)
    state = importlib.import_module("megatron.core.parallel_state")
    build = importlib.import_module("megatron.core.transformer.transformer_block").get_num_layers_to_build
    offset = importlib.import_module("megatron.core.transformer.transformer_layer").get_transformer_layer_offset
    predict: Any = lambda config: 0  # noqa: E731
    if getattr(config, "mtp_num_layers", None):
        module = importlib.import_module("megatron.core.transformer.multi_token_prediction")
        predict = module.get_mtp_num_layers_to_build
    virtual = config.virtual_pipeline_model_parallel_size
    stages = []
    for pp_rank in range(config.pipeline_model_parallel_size):
        state.set_pipeline_model_parallel_rank(pp_rank)
        chunks = []
        for vp_stage in range(virtual or 1):
            if virtual:
                state.set_virtual_pipeline_model_parallel_rank(vp_stage)
            offered = {"vp_stage": vp_stage if virtual else None, "pp_rank": pp_rank}
            chunks.append([int(f(config, **accepted(f, offered))) for f in (offset, build, predict)])
        stages.append(chunks)
    state.set_pipeline_model_parallel_rank(None)  # as it was: of the process group
    state.set_virtual_pipeline_model_parallel_rank(None)
    return stages


def _hybrid_stages(args: Any, config: Any) -> list[list[list[int]]]:
    """Return as `_stages` for a HybridModel, by Megatron's select_pipeline_segment; predictions are on the last chunk
    only. torch's rank and world size are patched meanwhile.
    """
    import torch

    allocation = importlib.import_module("megatron.core.models.hybrid.hybrid_layer_allocation")
    parsed = allocation.parse_hybrid_pattern(args.hybrid_layer_pattern)
    pp, virtual = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size or 1
    ranks, sizes = torch.distributed.get_rank, torch.distributed.get_world_size
    stages = []
    try:
        for stage in range(pp):
            torch.distributed.get_rank = lambda group=None, stage=stage: stage
            torch.distributed.get_world_size = lambda group=None: pp
            chunks = []
            for place in range(virtual):
                chosen, first = allocation.select_pipeline_segment(
                    parsed.main_pattern or "", object(), place if virtual > 1 else None
                )
                last = stage == pp - 1 and place == virtual - 1
                chunks.append([first, len(chosen), parsed.mtp_num_depths if last else 0])
            stages.append(chunks)
    finally:
        torch.distributed.get_rank, torch.distributed.get_world_size = ranks, sizes
    return stages


def accepted(function: Any, offered: dict[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments, by name, that the function has in this release."""
    return {name: value for name, value in offered.items() if name in inspect.signature(function).parameters}


def plain(value: Any) -> Any:
    """Return a value as JSON data: enums by name, sequences and sets as lists, functions and classes by full name,
    others as text without memory addresses.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))  # the same from run to run


def _warm_up() -> None:
    """Import and read once, before the forks, what each child would need: argument sources and a tokenizer. Errors are
    ignored: each child reports them.
    """
    try:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)
    except Exception:  # then every child says so
        return
    try:
        tokenizers = importlib.import_module("megatron.core.tokenizers")
        tokenizers.MegatronTokenizer.from_pretrained(metadata_path={"library": "null-text"}, vocab_size=8)
    except Exception:  # versions without that module build their tokenizer quickly
        return


def prepare(source: Path, built: bool) -> None:
    """Import Megatron from `source` with all that children need, with `built` also what builds models. Changes sys.path
    and sys.modules, and patches Python and torch (`megatron_shims.install`).
    """
    load("megatron_shims").install(source)
    import torch

    torch.set_num_threads(1)
    for name in (*IMPORTED_ONCE, *(BUILT_ONCE if built else ())):
        importlib.import_module(name)
    load("megatron_patches")
    load("megatron_local_specs")
    _warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the whole heap


def main() -> None:
    """Read the request, import Megatron once, unless a process that this one is a fork of has, and run each job in a
    forked child; print a line when ready, then one JSON line per job. Other output goes to standard error.
    """
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever Megatron prints while it is imported is no answer
    start = time.perf_counter()
    sys.modules["megatron_runner"] = sys.modules["__main__"]  # for the tasks
    if "megatron_shims" not in sys.modules:
        prepare(Path(request["source"]), any(job["task"] != "check" for job in request["jobs"]))
    shims, forks = sys.modules["megatron_shims"], load("forks")
    print(json.dumps({"ready": time.perf_counter() - start}), file=answers)
    for job in request["jobs"]:
        print(json.dumps(forks.isolated(job["id"], partial(check, job, shims), request["timeout_s"])), file=answers)


if __name__ == "__main__":
    main()

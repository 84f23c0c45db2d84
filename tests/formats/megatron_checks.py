"""Arguments of Megatron-LM through its own parser and checks on a CPU, and what they are in the words of a plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accepting import Values, answer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the checkout that this file lies in

from symconfig.verify import megatron_session, megatron_source
from symconfig.verify.megatron_session import Job, Result

_TIMEOUT_S = 120.0
_SAME = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "micro": "micro_batch_size",
    "global": "global_batch_size",
    "seq_length": "seq_length",
    "sequence_parallel": "sequence_parallel",
    "recompute_method": "recompute_method",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_experts": "num_experts",
    "first_stage_layers": "decoder_first_pipeline_num_layers",
    "last_stage_layers": "decoder_last_pipeline_num_layers",
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
    "lr": "lr",
    "min_lr": "min_lr",
    "seed": "seed",
    "train_iters": "train_iters",
    "weight_decay": "weight_decay",
    "clip_grad": "clip_grad",
    "lr_decay_style": "lr_decay_style",
    "lr_warmup_iters": "lr_warmup_iters",
}
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FP8 = {"delayed": "fp8", "tensorwise": "fp8", "mxfp8": "mxfp8"}


@dataclass(frozen=True, slots=True)
class Run:
    """Arguments of pretrain_gpt.py, the number of ranks that they are for, and what their launcher exports.

    program: what starts pretrain_gpt.py, where that is not torchrun itself.
    """

    args: Sequence[str]
    world_size: int
    environment: Mapping[str, str]
    program: str | None = None


def answer_each(run_of: Callable[[Path], Run]) -> None:
    """Answer on every folder with what Megatron resolves its arguments to; one session checks them all."""

    @cache
    def run(folder: Path) -> Run:
        return run_of(folder)

    @cache
    def results() -> dict[str, Result]:
        source = megatron_source.find()
        if source is None:
            raise ValueError(f"Megatron's argument parser is not here: {megatron_source.COMMAND}")
        jobs = []
        for name in sys.argv[1:]:
            with suppress(Exception):  # asked again, for the answer on this folder
                found = run(Path(name))
                jobs.append(
                    Job(name, tuple(found.args), found.world_size, env=found.environment, program=found.program)
                )
        return megatron_session.run(source, jobs, _TIMEOUT_S)

    def accept(folder: Path) -> Values:
        run(folder)
        result = results()[str(folder)]
        if not result.ok:
            raise ValueError(str(result.error))
        return values(result)

    answer(accept)


def world_size(command: Sequence[str]) -> int:
    """Of a torchrun command."""
    return int(command[command.index("--nnodes") + 1]) * int(command[command.index("--nproc-per-node") + 1])


def values(result: Result) -> Values:
    """What Megatron resolved, in the words of `words.py`."""
    args, config = result.args, result.config
    said = {name: args[own] for name, own in _SAME.items()}
    said["vpp"] = args["virtual_pipeline_model_parallel_size"] or 1
    said["dp"] = args["data_parallel_size"]
    said["num_microbatches"] = result.num_microbatches
    said["recompute"] = args["recompute_granularity"] or "none"
    said["recompute_num_layers"] = args["recompute_num_layers"]
    if said["recompute"] == "selective":
        said["recompute_modules"] = args["recompute_modules"]
    said["zero_stage"] = (
        _SHARDING[args["data_parallel_sharding_strategy"]]
        if args.get("use_megatron_fsdp")
        else int(args["use_distributed_optimizer"])
    )
    said["precision"] = (
        "fp16"
        if config["fp16"]
        else "nvfp4"
        if config.get("fp4")
        else _FP8[config["fp8_recipe"]]
        if config["fp8"]
        else "bf16"
    )
    said["layers_by_stage"] = [sum(count for _, count, _ in stage) for stage in result.stages]
    said["num_key_value_heads"] = config["num_query_groups"]
    if args["num_experts"]:
        said["etp"] = config["expert_tensor_parallel_size"]
        said["num_experts_per_tok"] = config["moe_router_topk"]
        said["moe_dispatcher"] = config["moe_token_dispatcher_type"]
    return said

"""ms-swift's own arguments read config.yaml, as a rank that `megatron sft` starts would, and Megatron-Core's config
class takes what mcore-bridge makes of it and of the model's config.json.

Stood in for: Transformer Engine and Triton, which are imported and not used here; the process group, which sends
nothing, with torch's random state of a GPU; the published model, whose config.json is written from the plan. The
Megatron-Core beside it is 0.16.1, the newest for Python 3.11; mcore-bridge takes up to 0.19.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import datasets  # noqa: F401  # these ask whether Triton is there, and must hear that it is not
import peft  # noqa: F401
import torch
import torch.distributed as dist
import transformers
import trl  # noqa: F401
from absent import stand_in
from accepting import SHARDING, Values, answer, called, lora, started
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # the checkout that this file lies in

from symconfig.descriptor.write import config_json
from symconfig.plans.file import load_plan

_ABSENT = ("transformer_engine", "triton")
_TE_VERSION = "2.12.0"


stand_in(*_ABSENT, bases=(torch.nn.Module,), version=_TE_VERSION, first=False)
_version = importlib.metadata.version
importlib.metadata.version = lambda name: (
    _TE_VERSION if name.replace("_", "-") == "transformer-engine" else _version(name)
)

from megatron.core import parallel_state  # noqa: E402
from swift.cli.main import parse_yaml_args  # noqa: E402
from swift.megatron.arguments import MegatronPretrainArguments, MegatronSftArguments  # noqa: E402
from swift.megatron.model.utils import get_mcore_model_config  # noqa: E402
from swift.megatron.utils import megatron_lm_utils  # noqa: E402
from swift.utils import parse_args  # noqa: E402

_CLASSES = {"pt": MegatronPretrainArguments, "sft": MegatronSftArguments}
# Words of a plan whose names are Megatron-LM's.
_SAME = (
    "tp pp cp dp micro global num_microbatches seq_length world sequence_parallel recompute_method "
    "recompute_num_layers first_stage_layers last_stage_layers pipeline_layout account_for_embedding account_for_loss "
    "lr min_lr seed train_iters weight_decay clip_grad lr_decay_style lr_warmup_iters adam_beta2"
)
_PARTS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc2": ("down_proj",),
}


def accept(folder: Path) -> Values:
    with tempfile.TemporaryDirectory() as scratch:
        model, data = Path(scratch, "model"), Path(scratch, "data.jsonl")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config_json(load_plan(folder).model)))
        data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
        given = {"DATASET": str(data), "MODEL": str(model), "MASTER_ADDR": "10.0.0.1", "SKIP_PREFLIGHT": "1"}
        words, environment = started(folder, "megatron", **given)
        name, *argv = words
        parse_yaml_args(argv)  # as swift.cli.main does, before torchrun
        elsewhere = ["--output_dir", str(Path(scratch, "out")), "--add_version", "false"]
        return parsed(_CLASSES[name], [*argv, *elsewhere], environment)


def parsed(kind: type, argv: list[str], environment: dict[str, str]) -> Values:
    """What the arguments resolve to on the first rank."""
    world = int(environment["NNODES"]) * int(environment["NPROC_PER_NODE"])
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
    ranks["LOCAL_WORLD_SIZE"] = environment["NPROC_PER_NODE"]
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        with (
            mock.patch.dict(os.environ, {**environment, **ranks}),
            mock.patch.object(megatron_lm_utils, "set_random_seed"),
            mock.patch.object(
                parallel_state,
                "initialize_model_parallel",
                partial(parallel_state.initialize_model_parallel, create_gloo_process_groups=False),
            ),
            mock.patch("torch.cuda.current_device", return_value="cpu"),
            mock.patch("torch.cuda.is_bf16_supported", return_value=True),
        ):
            args, rest = parse_args(kind, argv)
            assert not rest, rest
            config = get_mcore_model_config(args, transformers.AutoConfig.from_pretrained(args.model_dir))
            return values(args, config)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def values(args: Any, config: Any) -> Values:
    said = called(_SAME, args)
    said |= {
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "recompute": args.recompute_granularity or "none",
        "zero_stage": (
            SHARDING[args.data_parallel_sharding_strategy]
            if args.use_megatron_fsdp
            else int(args.use_distributed_optimizer)
        ),
        "precision": _precision(args),
        "optimizer_offload": args.optimizer_offload_fraction if args.optimizer_cpu_offload else 0.0,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups,
        "num_experts": config.num_moe_experts,
        "adapter": None,
    }
    if said["recompute"] == "selective":
        said["recompute_modules"] = args.recompute_modules
    if config.num_moe_experts:
        said |= {
            "ep": config.expert_model_parallel_size,
            "etp": config.expert_tensor_parallel_size,
            "moe_dispatcher": config.moe_token_dispatcher_type,
            "num_experts_per_tok": config.moe_router_topk,
        }
    if args.tuner_type == "lora":
        targets = [part for name in args.target_modules for part in _PARTS[name]]
        said |= lora(args.lora_rank, args.lora_alpha, args.lora_dropout, targets)
    return said


def _precision(args: Any) -> str:
    if args.fp16 or args.fp4_format or not args.fp8_format:
        return "fp16" if args.fp16 else "nvfp4" if args.fp4_format else "bf16"
    return {"delayed": "fp8", "tensorwise": "fp8"}.get(args.fp8_recipe, args.fp8_recipe)


if __name__ == "__main__":
    answer(accept)

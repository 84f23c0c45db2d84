"""slime's own parse_args on the words of train.sh: its arguments, Megatron-LM's parser and checks, SGLang's server's.

slime is on no index: SLIME_PATH names a checkout of v0.3.1. Megatron-LM's parser is the one that tests use.
Stood in for: what SGLang imports and a CPU has not; a helper of Megatron-LM's tokenizers, which 0.19 has moved; and the
model's folder, whose config.json is written from the plan and held by slime against Megatron-LM's arguments.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch._dynamo  # noqa: F401  # asks whether Triton is there, and must hear that it is not
from accepting import MEGATRON, Values, answer, called, dry_run, ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # the checkout that this file lies in

from symconfig.descriptor.write import config_json
from symconfig.plans.file import load_plan
from symconfig.verify import megatron_source
from symconfig.verify.runners import megatron_shims

_ASKING = ("sglang", "sglang_router", "slime")
_NAMES = MEGATRON | {
    "prompts": "rollout_batch_size", "samples": "n_samples_per_prompt", "updates": "num_steps_per_rollout",
    "longest": "rollout_max_context_len", "replica_gpus": "sglang_tp_size", "rollout_dp": "sglang_dp_size",
    "reward_url": "rm_url", "memory_share": "sglang_mem_fraction_static", "train_iters": "num_rollout",
    "tokens_per_gpu": "max_tokens_per_gpu",
}  # fmt: skip
_SAME = (
    "tp pp cp ep dp sequence_parallel recompute_method recompute_num_layers num_hidden_layers hidden_size "
    "num_attention_heads num_experts lr min_lr weight_decay clip_grad adam_beta2 lr_warmup_iters seed prompts samples "
    "updates longest replica_gpus rollout_dp reward_url memory_share train_iters overlap_grad_reduce "
    "overlap_param_gather tokens_per_gpu"
)


class Finder:
    """Finds an inert module for what is not installed, where SGLang or slime imports it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] in (*_ASKING, "megatron", *sys.stdlib_module_names):
            return None
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").split(".")[0] in ("importlib", "symconfig"):
            frame = frame.f_back
        asking = frame.f_globals.get("__name__", "").split(".")[0] if frame else ""
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if asking in _ASKING else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> megatron_shims.Inert:
        return megatron_shims.Inert(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def _prepare() -> Any:
    """Return slime.utils.arguments, on a claimed GPU. Raises ValueError where slime or Megatron-LM is not here."""
    source = megatron_source.find()
    root = Path(os.environ.get("SLIME_PATH", "nowhere"))
    if source is None or not (root / "slime" / "utils" / "arguments.py").exists():
        raise ValueError(f"needs SLIME_PATH=FOLDER, a checkout of slime v0.3.1, and {megatron_source.COMMAND}")
    megatron_shims.install(source.root)
    megatron_shims.claim_gpu((9, 0), 80 * 10**9, 132)
    _as_older()
    sys.meta_path.append(Finder())
    sys.path.insert(0, str(root))
    from slime.utils import arguments

    megatron_shims.claim_transformer_engine("2.13.0")
    return arguments


def _as_older() -> None:
    """Give slime the padding of a vocabulary where it looks for it: Megatron-LM 0.19 has moved it."""
    from megatron.training import vocab_utils

    def padded(size: int, args: Any) -> int:
        sizes = (args.make_vocab_size_divisible_by, args.tensor_model_parallel_size)
        return int(vocab_utils.calculate_padded_vocab_size(size, *sizes, logging_enabled=False))

    package, module = (ModuleType(f"megatron.training.tokenizer{name}") for name in ("", ".tokenizer"))
    vars(module)["_vocab_size_with_padding"] = padded
    sys.modules |= {each.__name__: each for each in (package, module)}


def accept(folder: Path) -> Values:
    arguments = _prepare() if "slime" not in sys.modules else sys.modules["slime.utils.arguments"]
    plan = load_plan(folder)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "config.json").write_text(json.dumps(config_json(plan.model)))
        words = dry_run(folder, "train.sh", MODEL=scratch, PROMPT_DATA="prompts.jsonl", SLIME="/slime")
        start = words.index("--")
        variables = json.loads(words[words.index("--runtime-env-json") + 1])["env_vars"]
        assert words[start + 1] == "python3", words
        assert (arguments_path := Path(words[start + 2])).parent == Path("/slime"), arguments_path
        asked = [sys.argv[0], *words[start + 3 :]]
        with mock.patch.object(sys, "argv", asked), mock.patch.dict(os.environ, variables):
            args = arguments.parse_args()
    assert args.colocate == (arguments_path.name == "train.py")
    assert (args.use_distributed_optimizer, args.use_dynamic_batch_size, args.variable_seq_lengths) == (True,) * 3
    said = called(_SAME, args, _NAMES) | ranks(args.actor_num_nodes, args.actor_num_gpus_per_node)
    said |= {
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "recompute": args.recompute_granularity or "none",
        "zero_stage": int(args.use_distributed_optimizer),
        "precision": "fp16" if args.fp16 else "bf16",
        "optimizer_offload": args.optimizer_offload_fraction if args.optimizer_cpu_offload else 0.0,
        "away": ["weights", "optimizer state"] if args.offload_train else [],
    }
    if args.num_experts:
        said |= {
            "etp": args.expert_tensor_parallel_size,
            "num_experts_per_tok": args.moe_router_topk,
            "moe_dispatcher": args.moe_token_dispatcher_type,
        }
    return said


if __name__ == "__main__":
    answer(accept)

"""OpenRLHF's own command line reads the words of train.sh, or of launch.sh for pairs, its strategy makes the DeepSpeed
JSON of them, and DeepSpeed's own configuration reads that as one of the plan's ranks.

Stood in for: Ray, vLLM and flash attention, which are imported and not used here.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed  # noqa: F401  # these ask what is installed, and must hear what is not
import peft  # noqa: F401
import transformers  # noqa: F401
from absent import stand_in
from accepting import Values, answer, dry_run, lora, of_torchrun, ranks
from deepspeed.runtime.config import DeepSpeedConfig
from ranks import as_rank_0

_STEP, _PAIRS = "openrlhf.cli.train_ppo_ray", "openrlhf.cli.train_dpo"
stand_in("ray", "vllm", "flash_attn", "ring_flash_attn")


class Read(BaseException):
    """Ends the program where it has read and checked its options, with what it made of them."""


def _stop(args: Any) -> None:
    raise Read(args)


def accept(folder: Path) -> Values:
    script = "train.sh" if (folder / "train.sh").exists() else "launch.sh"
    files = {"PROMPT_DATA": "prompts.jsonl", "DATASET": "pairs.jsonl", "REWARD_MODEL": "rewards"}
    if "REWARD_DEFAULT" not in (folder / script).read_text():  # the address of a service stays as it is
        files["REWARD"] = "reward.py"
    words = dry_run(folder, script, **files)
    start = words.index("-m")
    module = words[start + 1]
    with (
        mock.patch.object(sys, "argv", [module, *words[start + 2 :]]),
        mock.patch("openrlhf.utils.get_strategy", _stop),
    ):
        try:
            runpy.run_module(module, run_name="__main__")
        except Read as read:
            (args,) = read.args
    from openrlhf.utils.utils import get_strategy

    strategy = get_strategy(args)
    of_pairs = module == _PAIRS
    assert of_pairs or (module, words[0]) == (_STEP, "python3")
    trained = args if of_pairs else args.actor
    adam = trained.adam
    params = {"lr": adam.lr, "betas": adam.betas, "eps": adam.eps, "weight_decay": adam.weight_decay}
    optimizer = {"type": "AdamW", "params": params}
    made = strategy.get_ds_train_config(optim_dict=optimizer, max_norm=trained.max_norm)
    if of_pairs:
        assert words[0] == "torchrun", words[0]
        nodes, per_node = of_torchrun(words)
    else:
        nodes, per_node = args.actor.num_nodes, args.actor.num_gpus_per_node
    with as_rank_0(nodes, per_node, {}):
        read = DeepSpeedConfig(_numbers(made))
    assert read.zero_enabled == (read.zero_config.stage > 0)
    more = _pairs(args, strategy, nodes * per_node) if of_pairs else _step(args)
    return {**_values(args, trained, read, nodes, per_node), **more}


def _numbers(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what Transformers fills in from the model when it loads it."""
    zero = {key: value for key, value in config["zero_optimization"].items() if value != "auto"}
    return {**config, "zero_optimization": zero}


def _step(args: Any) -> Values:
    """Return what the options say of a step of reinforcement learning."""
    return {
        "recompute": "full" if args.actor.gradient_checkpointing_enable else "none",
        "tokens_per_gpu": args.train.max_tokens_per_gpu * args.ds.tensor_parallel_size,
        "read_per_gpu": args.rollout.max_tokens_per_gpu * args.ds.tensor_parallel_size,
        "prompts": args.rollout.batch_size,
        "samples": args.rollout.n_samples_per_prompt,
        "updates": args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size,
        "longest": args.data.max_len,
        "rollout_tp": args.vllm.tensor_parallel_size,
        "memory_share": args.vllm.gpu_memory_utilization,
        **_rewards(args),
        **_critic(args),
        "away": ["optimizer state"] if args.ds.enable_sleep else [],
    }


def _critic(args: Any) -> Values:
    """Return whether a critic is trained, and on which GPUs."""
    if args.critic.model_name_or_path is None:
        return {"has_critic": False}
    assert args.critic.adam.lr == args.actor.adam.lr
    gpus = args.critic.num_nodes * args.critic.num_gpus_per_node
    if args.train.colocate_all:
        assert gpus == args.actor.num_nodes * args.actor.num_gpus_per_node
    return {"has_critic": True, "critic_gpus": None if args.train.colocate_all else gpus}


def _rewards(args: Any) -> Values:
    """Return where a network rewards: on the actor's GPUs, on its own, or at an address."""
    if args.reward.remote_url:
        (address,) = args.reward.remote_url
        return {"reward_gpus": None} | ({} if address == "reward.py" else {"reward_url": address})
    assert args.reward.model_name_or_path == "rewards", args.reward.model_name_or_path
    gpus = args.reward.num_nodes * args.reward.num_gpus_per_node
    if args.train.colocate_all:
        assert gpus == args.actor.num_nodes * args.actor.num_gpus_per_node
        return {"reward_gpus": 0}
    assert args.train.colocate_actor_ref
    return {"reward_gpus": gpus}


def _pairs(args: Any, strategy: Any, world: int) -> Values:
    """Return what the options say of training on pairs; micro-batches as `DeepspeedStrategy.setup_distributed` counts
    them."""
    assert args.ref.model_name_or_path == args.model.model_name_or_path
    ranks = world // args.ds.tensor_parallel_size
    own = args.ds.lora
    given = (own.rank, own.alpha, own.dropout, own.target_modules)
    return {
        **(lora(*given, quantised=args.ds.load_in_4bit) if own.rank else {"adapter": None}),
        "recompute": "full" if args.model.gradient_checkpointing_enable else "none",
        "micro": 2 * strategy.micro_train_batch_size,
        "global": 2 * strategy.train_batch_size,
        "num_microbatches": strategy.train_batch_size // strategy.micro_train_batch_size // ranks,
        "seq_length": args.data.max_len,
        "preference_loss": "ipo" if args.model.ipo_enable else "sigmoid",
        "preference_beta": args.model.beta,
    }


def _values(args: Any, trained: Any, read: DeepSpeedConfig, nodes: int, per_node: int) -> Values:
    tp, zero, adam = args.ds.tensor_parallel_size, read.zero_config, read.optimizer_params
    offload = zero.offload_optimizer
    to_host = offload is not None and str(getattr(offload.device, "value", offload.device)) == "cpu"
    return {
        **ranks(nodes, per_node),
        "tp": tp,
        "dp": nodes * per_node // tp // args.ds.ring_attn_size,
        "cp": args.ds.ring_attn_size,
        "zero_stage": int(zero.stage),
        "precision": "bf16" if read.bfloat16_config.enabled else "fp16",
        "grad_bytes": 4 if read.grad_accum_dtype == "fp32" else 2,
        "optimizer_offload": float(to_host),
        "clip_grad": read.gradient_clipping,
        **dict(zip(("adam_beta1", "adam_beta2"), adam["betas"], strict=True)),
        **{"lr": adam["lr"], "adam_eps": adam["eps"], "weight_decay": adam["weight_decay"]},
        "min_lr": trained.min_lr_ratio * trained.adam.lr,
        "seed": args.train.seed,
        **({"overlap_grad_reduce": zero.overlap_comm} if zero.stage else {}),
    }


if __name__ == "__main__":
    answer(accept)

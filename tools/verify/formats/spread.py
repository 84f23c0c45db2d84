"""The plans that every format is tried with: each kind of model, and each kind of choice that a plan can hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import symconfig
from symconfig.descriptor.load import load_model
from symconfig.plans.plan import Plan
from tests.sample_rl import RL


@dataclass(frozen=True, slots=True)
class Spread:
    """One plan. job: arguments of `symconfig.plan`. adapter: fields of the zoo model's adapter that are replaced."""

    name: str
    model: str
    cluster: str
    gpus: int
    global_batch_size: int | None
    job: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        model = load_model(self.model)
        if self.adapter:
            model = model.model_copy(update={"adapter": model.adapter.model_copy(update=self.adapter)})
        return symconfig.plan(model, self.cluster, self.gpus, self.global_batch_size, top=1, **self.job).plan


LENGTHS = {"mean": 700.0, "p95": 1500.0, "max": 2048}  # tokens of a sequence


def _megatron(**pins: int | str) -> dict[str, Any]:
    return {"backend": "megatron", "pins": pins}


def _deepspeed(**pins: int | str) -> dict[str, Any]:
    return {"backend": "deepspeed", "pins": pins}


PAIRS = {"preference": {"pairs": 64}, "sequences": LENGTHS}


def _pairs(target: str, **said: str) -> dict[str, Any]:
    """Pairs without padding, for a target."""
    sequences = LENGTHS | {"batching": "padding_free"}
    return {"preference": {"pairs": 64, **said}, "sequences": sequences, "target": target}


def _told(target: str, **preference: Any) -> dict[str, Any]:
    """Preferences of any loss, for a target."""
    return {"preference": preference, "sequences": LENGTHS, "target": target}


SPLIT = RL | {"placement": "split"}
REWARDED, APART = RL | {"reward_model": {}}, RL | {"reward_model": {"placement": "apart", "model": "llama3.2-1b"}}
SERVED = RL | {"reward_model": {"placement": "server", "url": "http://rewards:8000"}}
PPO = {"algorithm": "ppo", "samples": 1}
HYBRID = PPO | {"critic_gpus": 8, "reward_model": {"placement": "apart", "model": "llama3.2-1b"}}
FEW = REWARDED | {"prompts": 64, "algorithm": "dapo"}  # TRL reads all responses of a rank at once
RANKS = RL | {"rollout": {"tp": 1, "dp": 8}}
FACTORY = {"target": "llamafactory"}
GROUPS = {"backend": "fsdp", "pins": {"instances": 8}}
ALONE, GSPO = RL | {"algorithm": "dapo", "reference": True}, RL | {"algorithm": "gspo"}
FREE = ALONE | {"reference": False}  # TRL gathers a whole reference at once in FSDP 2
SPREAD = (
    # Megatron-LM: dense models, with tensor, sequence, context and pipeline parallelism.
    Spread("llama2-7b-one-node", "llama2-7b", "a100-80gb", 8, 64),
    Spread("llama2-13b", "llama2-13b", "a100-80gb", 64, 1024),
    Spread("llama3.1-8b-context", "llama3.1-8b", "h100", 16, 32, {"seq_length": 32768, **_megatron(cp=4)}),
    Spread("llama3.1-8b-plain", "llama3.1-8b", "h100", 16, 128, {"seq_length": 8192, **_megatron(tp=2, pp=1, cp=1)}),
    Spread("llama3.1-8b-fp8", "llama3.1-8b", "h100", 16, 128, {"seq_length": 8192, "precision": "fp8"}),
    Spread("llama3.1-70b-interleaved", "llama3.1-70b", "h100", 64, 256,
           {"seq_length": 8192, **_megatron(pp=4, vpp=2, cp=1, recompute="full")}),
    Spread("llama3.1-405b-uneven", "llama3.1-405b", "h100", 1024, 512, {"seq_length": 8192}),
    Spread("gpt3-175b", "gpt3-175b", "a100-80gb", 128, 512, {"seq_length": 2048, **_megatron(tp=8)}),
    Spread("qwen2.5-7b-full-recompute", "qwen2.5-7b", "l40s", 16, 128, _megatron(recompute="full")),
    Spread("qwen3-32b", "qwen3-32b", "h100", 32, 256, _megatron(tp=4, pp=1, recompute="full")),
    Spread("llama3.1-8b-ring", "llama3.1-8b", "h100", 16, 64,
           {"seq_length": 16384, **_megatron(tp=2, cp=2, pp=2, vpp=1, cp_comm="p2p")}),
    Spread("llama2-13b-host", "llama2-13b", "a100-80gb", 16, 256, _megatron(optimizer_offload="1.0")),
    # Experts, latent attention, sliding windows.
    Spread("mixtral-8x7b", "mixtral-8x7b", "h100", 64, 512, _megatron(ep=8)),
    Spread("qwen3-30b-a3b", "qwen3-30b-a3b", "h100", 32, 256, _megatron(ep=8)),
    Spread("qwen3-30b-a3b-recompute", "qwen3-30b-a3b", "h100", 32, 256,
           _megatron(ep=8, pp=2, recompute="full", moe_overlap="off")),
    Spread("deepseek-v3", "deepseek-v3", "h100", 1024, 2048, _megatron(tp=2, pp=16, vpp=2, ep=64, etp=1)),
    Spread("gpt-oss-120b", "gpt-oss-120b", "h200", 64, 256, _megatron(tp=1, pp=4, vpp=1, ep=8, etp=1)),
    # DeepSpeed: ZeRO's stages, offload, Ulysses, AutoTP, AutoEP, fp16.
    Spread("llama2-7b-zero", "llama2-7b", "a100-80gb", 8, 64, _deepspeed(zero=2)),
    Spread("llama2-13b-zero3", "llama2-13b", "a100-80gb", 16, 256, _deepspeed(zero=3)),
    Spread("llama3.1-8b-ulysses", "llama3.1-8b", "h100", 16, 32, {"seq_length": 32768, **_deepspeed(cp=4, zero=3)}),
    Spread("llama3.1-8b-autotp", "llama3.1-8b", "h100", 8, 64, _deepspeed(tp=2, zero=1)),
    Spread("qwen2.5-7b-offload", "qwen2.5-7b", "rtx4090", 8, 64, _deepspeed(zero=3, optimizer_offload="1.0")),
    Spread("qwen3-30b-a3b-autoep", "qwen3-30b-a3b", "h100", 32, 256, _deepspeed(ep=8)),
    Spread("llama2-7b-fp16", "llama2-7b", "v100-16gb", 32, 128, _deepspeed(zero=3)),
    Spread("llama3.1-70b-zero3", "llama3.1-70b", "h100", 64, 128, {"seq_length": 8192, **_deepspeed(zero=3)}),
    Spread("qwen3-32b-zero3", "qwen3-32b", "h100", 32, 128, _deepspeed(zero=3)),
    Spread("qwen2.5-72b-zero3", "qwen2.5-72b", "h200", 32, 128, _deepspeed(zero=3)),
    Spread("mixtral-8x7b-zero3", "mixtral-8x7b", "h100", 32, 128, _deepspeed(zero=3, ep=1)),
    Spread("gpt-oss-120b-zero3", "gpt-oss-120b", "h200", 64, 128, _deepspeed(zero=3, ep=1)),
    # Adapters: LoRA, and QLoRA, whose frozen weights are quantised.
    Spread("qwen2.5-7b-lora", "qwen2.5-7b-lora", "a100-80gb", 8, 64, {"seq_length": 2048}),
    Spread("llama2-70b-lora", "llama2-70b-lora", "h100", 8, 8, {"seq_length": 8192}),
    Spread("qwen-7b-lora", "qwen-7b-lora", "a100-80gb", 4, 32, {"seq_length": 2048}),
    Spread("qwen2.5-7b-lora-megatron", "qwen2.5-7b-lora", "a100-80gb", 8, 64, {"seq_length": 2048, **_megatron(tp=2)}),
    Spread("llama2-70b-lora-megatron", "llama2-70b-lora", "h100", 8, 8, {"seq_length": 8192, **_megatron()}),
    Spread("qwen2.5-7b-qlora", "qwen2.5-7b-lora", "a100-80gb", 8, 64, {"seq_length": 2048}, {"method": "qlora"}),
    # Pairs of answers: with a reference, without one, and with adapters, which need no copy of the model.
    Spread("qwen2.5-7b-dpo", "qwen2.5-7b", "h100", 8, None, PAIRS),
    Spread("llama3.1-8b-simpo", "llama3.1-8b", "h100", 8, None, {"preference": {"pairs": 64, "loss": "simpo"}}),
    Spread("qwen2.5-7b-lora-dpo", "qwen2.5-7b-lora", "h100", 8, None, {"preference": {"pairs": 32}, "task": "dpo"}),
    # The same in the other trainers of pairs: a copy beside adapters, no padding.
    Spread("qwen2.5-7b-dpo-trl", "qwen2.5-7b", "h100", 8, None, PAIRS | {"target": "trl"}),
    Spread("qwen2.5-7b-ipo-openrlhf", "qwen2.5-7b", "h100", 16, None, _pairs("openrlhf", loss="ipo")),
    Spread("qwen2.5-7b-lora-dpo-openrlhf", "qwen2.5-7b-lora", "h100", 8, None, PAIRS | {"target": "openrlhf"}),
    Spread("llama3.1-8b-ipo-swift", "llama3.1-8b", "h100", 8, None, _pairs("ms-swift-deepspeed", loss="ipo")),
    # Pairs of a loss without a reference, answers with a label, and models of rewards: whole ones, and adapters.
    Spread("qwen2.5-7b-cpo-swift", "qwen2.5-7b", "h100", 8, None, _told("ms-swift-deepspeed", pairs=64, loss="cpo")),
    Spread("qwen2.5-7b-simpo-trl", "qwen2.5-7b", "h100", 8, None, _told("trl", pairs=64, loss="simpo")),
    Spread("qwen2.5-7b-lora-orpo-trl", "qwen2.5-7b-lora", "h100", 8, None, _told("trl", pairs=64, loss="orpo")),
    Spread("qwen2.5-7b-kto", "qwen2.5-7b", "h100", 8, None, _told("llamafactory", answers=128, loss="kto")),
    Spread("qwen2.5-7b-lora-kto-trl", "qwen2.5-7b-lora", "h100", 8, None, _told("trl", answers=64, loss="kto")),
    Spread("llama3.1-8b-apo-swift", "llama3.1-8b", "h100", 8, None,
           _told("ms-swift-deepspeed", answers=64, loss="apo_zero_unpaired")),
    Spread(
        "qwen2.5-7b-lora-reward", "qwen2.5-7b-lora", "h100", 8, None, _told("llamafactory", pairs=64, loss="reward")
    ),
    Spread("qwen2.5-7b-reward-trl", "qwen2.5-7b", "h100", 8, None, _told("trl", pairs=64, loss="reward")),
    Spread("qwen2.5-7b-lora-reward-trl", "qwen2.5-7b-lora", "h100", 8, None, _told("trl", pairs=64, loss="reward")),
    Spread("qwen3-8b-reward-swift", "qwen3-8b", "h100", 8, None, _told("ms-swift-deepspeed", pairs=64, loss="reward")),
    # Fine-tuning on sequences of many lengths, which fill those of seq_length.
    Spread("qwen2.5-7b-packed", "qwen2.5-7b", "h100", 8, 64,
           {"task": "sft", "seq_length": 4096, "sequences": LENGTHS | {"batching": "packed"}, **_deepspeed()}),
    # Reinforcement learning: GRPO of a dense model and of experts, PPO with its critic.
    Spread("qwen3-8b-grpo", "qwen3-8b", "h100", 8, None, {"rl": RL}),
    Spread("qwen3-30b-a3b-grpo", "qwen3-30b-a3b", "h100", 32, None, {"rl": RL}),
    Spread("qwen3-8b-grpo-lora", "qwen3-8b", "h100", 8, None, {"rl": RL, "lora": {"r": 32}}),
    Spread("qwen2.5-7b-ppo", "qwen2.5-7b", "h100", 16, None, {"rl": RL | {"algorithm": "ppo", "samples": 1}}),
    # The same for the programs that run other steps: an engine of its own, sequences that are not packed.
    Spread("qwen3-8b-split-slime", "qwen3-8b", "h100", 16, None, {"rl": SPLIT, "target": "slime"}),
    Spread("qwen3-8b-split-openrlhf", "qwen3-8b", "h100", 16, None, {"rl": SPLIT, "target": "openrlhf"}),
    Spread("qwen2.5-7b-dapo-trl", "qwen2.5-7b", "h100", 8, None, {"rl": ALONE, "target": "trl"}),
    Spread("qwen2.5-7b-sft-llamafactory-fsdp", "qwen2.5-7b", "h100", 64, 512, GROUPS | {"task": "sft"} | FACTORY),
    Spread("qwen2.5-7b-dapo-trl-fsdp", "qwen2.5-7b", "h100", 64, None, GROUPS | {"rl": FREE, "target": "trl"}),
    Spread("qwen3-8b-ulysses-verl", "qwen3-8b", "h100", 8, None, {"rl": RL, "target": "verl-fsdp", "pins": {"cp": 4}}),
    Spread("qwen3-30b-a3b-gspo-nemo", "qwen3-30b-a3b", "h100", 32, None, {"rl": GSPO, "target": "nemo-rl"}),
    # Rewards by a network: beside the actor, on GPUs of its own, and elsewhere. Engines with several ranks of data.
    Spread("qwen3-8b-rewards-verl", "qwen3-8b", "h100", 8, None, {"rl": REWARDED, "target": "verl"}),
    Spread("qwen3-8b-rewards-apart-verl", "qwen3-8b", "h100", 16, None, {"rl": APART, "target": "verl-fsdp"}),
    Spread("qwen3-8b-rewards-openrlhf", "qwen3-8b", "h100", 8, None, {"rl": REWARDED, "target": "openrlhf"}),
    Spread(
        "qwen3-8b-rewards-apart-openrlhf", "qwen3-8b", "h100", 24, None, {"rl": SPLIT | APART, "target": "openrlhf"}
    ),
    Spread("qwen3-8b-ppo-openrlhf", "qwen3-8b", "h100", 16, None, {"rl": RL | PPO, "target": "openrlhf"}),
    Spread("qwen3-8b-ppo-apart-openrlhf", "qwen3-8b", "h100", 32, None, {"rl": SPLIT | HYBRID, "target": "openrlhf"}),
    Spread("qwen2.5-7b-rewards-trl", "qwen2.5-7b", "h100", 16, None, {"rl": ALONE | FEW, "target": "trl"}),
    Spread("qwen3-8b-rewards-nemo", "qwen3-8b", "h100", 16, None, {"rl": APART, "target": "nemo-rl"}),
    Spread("qwen3-8b-served-slime", "qwen3-8b", "h100", 8, None, {"rl": SERVED, "target": "slime"}),
    Spread("qwen3-8b-served-openrlhf", "qwen3-8b", "h100", 8, None, {"rl": SERVED, "target": "openrlhf"}),
    Spread("qwen3-30b-a3b-ranks-verl", "qwen3-30b-a3b", "h100", 32, None, {"rl": RANKS, "target": "verl"}),
    Spread("qwen3-30b-a3b-ranks-slime", "qwen3-30b-a3b", "h100", 32, None, {"rl": RANKS, "target": "slime"}),
    Spread("qwen3-30b-a3b-ranks-nemo", "qwen3-30b-a3b", "h100", 32, None, {"rl": RANKS, "target": "nemo-rl"}),
)  # fmt: skip

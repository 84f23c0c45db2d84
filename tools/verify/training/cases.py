"""The small jobs that are started for real: tiny models of real families, two ranks, and what is to be split."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import symconfig
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Backend
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.plan import Plan
from tests.sample_models import sample_cluster, sample_model
from tests.sample_rl import LEARNING

RANKS, SEQUENCES, LENGTH, STEPS = 2, 8, 32, 8
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
    "router_aux_loss_coef": 0.02,
}  # fmt: skip
ADAPTER = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"]}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama2-13b", {}),
    "llama with LoRA": ("llama2-13b", {"adapter": ADAPTER}),
    "qwen2": ("qwen2.5-7b", {}),
    "qwen2 with LoRA": ("qwen2.5-7b", {"adapter": ADAPTER}),
    "mixtral": ("mixtral-8x7b", {"experts": EXPERTS, "intermediate_size": 0}),
}
TRAINING: dict[str, Any] = {
    "lr": 2e-3, "min_lr": 2e-4, "lr_warmup_iters": 2, "train_iters": STEPS, "log_interval": 1, "save_interval": 1000,
}  # fmt: skip
ZERO = ("deepspeed", "transformers", "accelerate", "llamafactory")
NODES = ("torchrun", "slurm", "ray")
ON_DEEPSPEED = (*ZERO, *NODES)  # whose trainer is DeepSpeed
MEGATRON = ("megatron",)
OWN_DATA = (*MEGATRON, "bridge")


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, and the formats that carry it: on the same data, their losses are the same.

    formats: targets, or launchers that start the generated script. pins: what is decided beforehand, so that the plan
    is of the kind that is to be tried; the rest is solved. nodes: of the cluster; ranks on one machine in any case.
    job: what else it says. With it each program is planned for by itself, makes its own sequences of the data that its
    files name, and is held against itself on one rank, not against the first format. away: what of a trained model goes
    to the host between phases, whatever a plan of so small a model needs.
    """

    name: str
    family: str
    backend: Backend
    formats: tuple[str, ...]
    pins: dict[str, int | str] = field(default_factory=dict)
    nodes: int = 1
    job: dict[str, Any] = field(default_factory=dict)
    away: tuple[str, ...] = ()

    @property
    def trains_on_files(self) -> bool:
        """Megatron-LM and Bridge have data and weights for a first run; to the others they are given."""
        return self.formats[0] not in OWN_DATA

    def repeatable(self, name: str) -> bool:
        """Tell whether a format's losses are the same on one rank: what is generated is another sample on each, KTO's
        KL term is of a micro-batch on all of them, LLaMA-Factory's head of rewards has a dropout, and adapters learn
        the few rewards by heart, so that what bf16 rounds is much of the loss that is left."""
        dropped = self.job is REWARDS and (name == "llamafactory" or "LoRA" in self.family)
        return bool(self.job) and "rl" not in self.job and self.job is not LABELLED and not dropped

    def rounds(self, name: str) -> bool:
        """Tell whether what a format's loss is of is in bf16: log-probabilities in ms-swift and TRL's trainer of CPO,
        and rewards."""
        return name == "ms-swift-deepspeed" or self.job is FREE or self.job is REWARDS

    def plan(self, name: str | None = None, ranks: int = RANKS) -> Plan:
        """Return the plan of all formats; of the format of this name, where the job says that each has its own."""
        slow = "LoRA" not in self.family and "rl" not in self.job
        batch: dict[str, Any] = {"global_batch_size": SEQUENCES, "seq_length": LENGTH} if "rl" not in self.job else {}
        training = {**TRAINING, **({} if slow else {"lr": 2e-2, "min_lr": 2e-3})}
        plan = symconfig.plan(
            tiny(self.family),
            cluster(self.nodes),
            ranks,
            backend=self.backend,
            pins={"mbs": 2, **self.pins},
            training=training | {"hf_weights": "weights"} if self.job else training,  # named where they are
            target=(name or self.formats[0]) if self.job else None,
            top=1,
            **batch | self.job,
        ).plan
        return replace(plan, rl=tuple(replace(step, away=self.away) for step in plan.rl)) if self.away else plan


def tiny(family: str) -> ModelDescriptor:
    name, more = FAMILIES[family]
    return sample_model(name, **{**TINY, **more})


def cluster(nodes: int) -> ClusterDescriptor:
    """Of so many nodes for the ranks. Within nodes of one GPU nothing is joined: they have no level of their own."""
    made = sample_cluster(gpus_per_node=RANKS)
    return made if nodes == 1 else made.model_copy(update={"gpus_per_node": 1, "levels": made.levels[1:]})


def learning_rate(plan: Plan, step: int, ahead: int = 0) -> float:
    """Of the step with this number, from 0: the plan's warm-up from nothing, then its cosine. ahead: steps by which a
    framework's warm-up is before that."""
    training = plan.job.training
    warmup, steps = training.lr_warmup_iters, training.train_iters
    if step < warmup:
        return training.lr * (step + ahead) / warmup
    done = (step - warmup) / (steps - warmup)
    return training.min_lr + (training.lr - training.min_lr) * (1 + math.cos(math.pi * done)) / 2


PLAIN = ("deepspeed", "transformers", "accelerate")
CASES = (
    Case("llama, ZeRO-1", "llama", "deepspeed", ZERO, {"zero": 1}),
    Case("llama, ZeRO-2", "llama", "deepspeed", ZERO, {"zero": 2}),
    Case("llama, ZeRO-2, two nodes", "llama", "deepspeed", NODES, {"zero": 2}, nodes=2),
    Case("llama, ZeRO-3", "llama", "deepspeed", ZERO, {"zero": 3}),
    Case("qwen2 with LoRA, ZeRO-2", "qwen2 with LoRA", "deepspeed", PLAIN, {"zero": 2}),
    Case("llama, AutoTP", "llama", "deepspeed", PLAIN, {"tp": 2, "zero": 1}),
    Case("llama, Ulysses, ZeRO-2", "llama", "deepspeed", PLAIN, {"cp": 2, "zero": 2}),
    Case("mixtral, ZeRO-3", "mixtral", "deepspeed", PLAIN, {"zero": 3, "ep": 1}),
    Case("llama, FSDP 2", "llama", "fsdp", ("transformers",)),
    Case("llama, distributed optimizer", "llama", "megatron", MEGATRON, {"tp": 1, "pp": 1}),
    Case("llama, tp 2", "llama", "megatron", MEGATRON, {"tp": 2, "sp": 0}),
    Case("qwen2, tp 2 with sequence parallelism", "qwen2", "megatron", MEGATRON, {"tp": 2, "sp": 1}),
    Case("llama, pp 2", "llama", "megatron", MEGATRON, {"pp": 2, "vpp": 1}),
    Case("llama, pp 2, interleaved", "llama", "megatron", MEGATRON, {"pp": 2, "vpp": 2}),
    Case("mixtral, ep 2", "mixtral", "megatron", MEGATRON, {"ep": 2, "tp": 1, "pp": 1}),
    Case("llama, distributed optimizer, with Bridge", "llama", "megatron", ("bridge",), {"tp": 1, "pp": 1}),
    Case("llama, tp 2 with sequence parallelism, with Bridge", "llama", "megatron", ("bridge",), {"tp": 2, "sp": 1}),
    Case("llama, pp 2, with Bridge", "llama", "megatron", ("bridge",), {"pp": 2, "vpp": 1}),
)
TUNED = ("llamafactory", "ms-swift-deepspeed")
PAIRED = ("trl", *TUNED)
ROOM = 128  # tokens, for ms-swift puts a sentence before each chat of Llama's
ANSWERS, ADAPTED = ({"task": task, "seq_length": ROOM} for task in ("sft", "lora"))
PAIRS, REWARDS, FREE = (
    {"preference": {"pairs": SEQUENCES // 2, **loss}, "seq_length": ROOM}
    for loss in ({}, {"loss": "reward"}, {"loss": "cpo"})
)
LABELLED = {"preference": {"answers": SEQUENCES, "loss": "kto"}, "seq_length": ROOM}
GRPO: dict[str, Any] = {
    "prompts": 8, "samples": 16, "updates": 2, "reference": False, "prompt_length": {"mean": 6, "max": 8},
    "response_length": {"mean": 16, "max": 16},
}  # fmt: skip
CASES = (
    *CASES,
    Case("llama, answers to learn, ZeRO-2", "llama", "deepspeed", TUNED, {"zero": 2}, job=ANSWERS),
    Case("llama with LoRA, answers to learn, ZeRO-2", "llama with LoRA", "deepspeed", TUNED, {"zero": 2}, job=ADAPTED),
    Case("llama, pairs, ZeRO-2", "llama", "deepspeed", PAIRED, {"zero": 2}, job=PAIRS),
    Case("llama, pairs, ZeRO-3", "llama", "deepspeed", PAIRED, {"zero": 3}, job=PAIRS),
    Case("llama with LoRA, pairs, ZeRO-2", "llama with LoRA", "deepspeed", PAIRED, {"zero": 2}, job=PAIRS),
    Case("llama, pairs of CPO, ZeRO-2", "llama", "deepspeed", ("trl", "ms-swift-deepspeed"), {"zero": 2}, job=FREE),
    # ms-swift gathers rewards of a label in bf16, and in fp32 from a rank whose micro-batch has none of it (TRL 0.29.1,
    # experimental/kto/kto_trainer.py, kto_loss): gloo refuses that.
    Case("llama, labelled answers, ZeRO-3", "llama", "deepspeed", ("trl", "llamafactory"), {"zero": 3}, job=LABELLED),
    Case("llama, rewards, ZeRO-2", "llama", "deepspeed", PAIRED, {"zero": 2}, job=REWARDS),
    Case("llama with LoRA, rewards, ZeRO-2", "llama with LoRA", "deepspeed", PAIRED, {"zero": 2}, job=REWARDS),
    Case("llama, answers to learn, FSDP 2", "llama", "fsdp", ("llamafactory",), job=ANSWERS),
    Case("llama with LoRA, answers to learn, FSDP 2", "llama with LoRA", "fsdp", ("llamafactory",), job=ADAPTED),
    Case("llama, pairs, FSDP 2", "llama", "fsdp", ("llamafactory",), job=PAIRS),
    Case("llama with LoRA, pairs, FSDP 2", "llama with LoRA", "fsdp", ("llamafactory",), job=PAIRS),
    Case("llama, GRPO, ZeRO-2", "llama", "deepspeed", ("trl",), {"zero": 2, "mbs": 8}, job={"rl": GRPO}),
    Case("llama, GRPO, ZeRO-3", "llama", "deepspeed", ("trl",), {"zero": 3, "mbs": 8}, job={"rl": GRPO}),
    Case("llama, GRPO, FSDP 2", "llama", "fsdp", ("trl",), {"mbs": 8}, job={"rl": GRPO}),
)
# Responses of many lengths, so that samples are packed into micro-batches, of a vocabulary that outweighs the layers.
WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 4096}
FAMILIES |= {
    "llama, wide": ("llama2-13b", WIDE),
    "llama, wide, with LoRA": ("llama2-13b", WIDE | {"adapter": ADAPTER}),
    "qwen3_moe, wide": ("qwen3-30b-a3b", WIDE | {"experts": EXPERTS, "rope_theta": 10000.0}),
}
STEPPED: dict[str, Any] = {
    "prompts": 16, "samples": 8, "updates": 2, "prompt_length": {"mean": 8, "max": 8},
    "response_length": {"mean": 16, "p95": 48, "max": 100}, "tokens_per_gpu": 320,
}  # fmt: skip
WORKERS, MEGATRON_WORKERS = ("verl-fsdp",), ("verl",)
HOST = ("weights", "optimizer state")
_SHARDED = (
    ("llama, steps of GRPO, FSDP 2", "llama, wide", ()),
    ("llama, steps of GRPO, FSDP 2, kept on the host", "llama, wide", HOST),
    ("llama with LoRA, steps of GRPO, FSDP 2", "llama, wide, with LoRA", ()),
)
# Megatron's: the family, what its name says, pins, what its job says, what goes to the host.
_RECOMPUTED = {"tp": 1, "pp": 1, "recompute": "full"}
_STEPS: tuple[tuple[str, str, dict[str, int | str], dict[str, Any], tuple[str, ...]], ...] = (
    ("llama", ", distributed optimizer", {"tp": 1, "pp": 1}, {}, ()),
    ("llama", ", distributed optimizer, kept on the host", {"tp": 1, "pp": 1}, {}, HOST),
    ("llama", ", tp 2", {"tp": 2, "sp": 1}, {}, ()),
    ("llama", ", pp 2", {"pp": 2, "vpp": 1}, {}, ()),
    ("llama", ", pp 2, interleaved", {"pp": 2, "vpp": 2}, {}, ()),
    ("llama", " with an entropy term, layers computed again", _RECOMPUTED, {"entropy": True}, ()),
    ("qwen3_moe", ", ep 2", {"ep": 2, "tp": 1, "pp": 1}, {}, ()),
)
CASES = (
    *CASES,
    *(Case(name, family, "fsdp", WORKERS, job={"rl": STEPPED}, away=away) for name, family, away in _SHARDED),
    *(
        Case(
            f"{one}, steps of GRPO{what}",
            f"{one}, wide",
            "megatron",
            MEGATRON_WORKERS,
            pins,
            1,
            {"rl": STEPPED | more},
            away,
        )
        for one, what, pins, more, away in _STEPS
    ),
)

# What is not started here, and why.
_PODS = "starts launch.sh in pods, and needs a Kubernetes with GPUs"
LEFT_OUT = {
    "axolotl": "has not been tried: its schema alone has read the files",
    "mindspeed": "its packages need an Ascend NPU, and are on no index",
    "ms-swift": "has not been tried without a GPU",
    "pytorchjob": _PODS,
    "trainjob": _PODS,
    **dict.fromkeys(
        (name for name in LEARNING if name not in (*PAIRED, *WORKERS, *MEGATRON_WORKERS)), "its engine needs a GPU"
    ),
    "openrlhf": "imports flash-attn, whose kernels are for GPUs, for pairs, too",
    "skypilot": "rents machines of a cloud",
}

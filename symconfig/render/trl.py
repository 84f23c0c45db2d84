"""Target trl: the YAML of TRL's scripts for GRPO, DPO, KTO and models of rewards, with the DeepSpeed JSON or
Accelerate's file of FSDP 2; of trainers that no script of TRL's starts, a script, too.

Names are those of TRL 1.16 (`trainer/{grpo,dpo,kto,reward}_config.py`, `experimental/`, `scripts/`), beside those of
Transformers' Trainer. All pad each sequence to the longest of their batch, and only the experimental ones make whole
logits. GRPO keeps the actor on the GPU while vLLM generates there; DPO and models of rewards read chosen and rejected
answers in one forward, and a reference stays on the GPU, sharded where the policy is (`models/utils.py`,
prepare_deepspeed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.tuning import LossName
from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import (
    accelerate,
    deepspeed,
    deepspeed_launch,
    deepspeed_limits,
    learning,
    monitors,
    rewarding,
    step_words,
    trainer,
)
from symconfig.render.files import File
from symconfig.render.fill import as_yaml
from symconfig.render.learning import Compares, Learns
from symconfig.render.refused import of_fsdp
from symconfig.render.rewarding import Rewarding
from symconfig.render.summary import predicted_for

NAME = "trl"
DOES = "TRL's YAML for GRPO with vLLM beside it, DPO, KTO and rewards, DeepSpeed's JSON or Accelerate's file, launch.sh"
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.STEPS
RELEASE = "1.16.0"
UNSAID = {
    "split": "TRL takes splits of a data set by their names",
    "tokenizer_model": "TRL takes the model's tokenizer",
    "tokenizer_type": "TRL takes the model's tokenizer",
    "manual_gc_interval": "TRL leaves the collection of garbage to Python",
}
DEEPSPEED = "ds_config_hf.json"
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "mask_truncated_completions": True},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
LEARNS = Learns(
    algorithms=tuple(_ALGORITHMS),
    engines=("vllm",),
    away=((),),
    sequences="padded",
    reference="resident",
    rewards={"colocated": Rewarding(by="workers", together=True)},  # trainer/grpo_trainer.py, _calculate_rewards
)
# Losses of trainers that no script of TRL's starts (trl/experimental/), by trainer. They have no reference.
_EXPERIMENTAL: Mapping[LossName, str] = {"orpo": "orpo", "simpo": "cpo", "cpo": "cpo"}
# What its trainer of CPO is told of each of its losses.
_OF_CPO: Mapping[LossName, Mapping[str, Any]] = {
    "simpo": {"loss_type": "simpo", "cpo_alpha": 0.0},
    "cpo": {"loss_type": "sigmoid"},
}
# KTO's own forward for the KL term is before that which is
# learnt from (trainer/kto_trainer.py, _compute_loss).
COMPARES = Compares(
    losses=("sigmoid", "hinge", "ipo", *_EXPERIMENTAL, "kto", "apo_zero_unpaired", "reward"),
    least=2,
    first=("model",),
)

# What a person brings, by the answers of an example.
_DATA = (
    ("prompts", "prompts, in TRL's conversational form"),
    ("labelled answers", "labelled answers: prompt, completion, label"),
    ("pairs", "pairs: prompt, chosen, rejected"),
)
_BEFORE = "--precompute_ref_log_probs true reads all pairs with it before the first step, and lets it go"


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what TRL cannot be told."""
    sharded = of_fsdp(plan)
    others = (*(_of_shards(plan) if sharded else deepspeed_limits.problems(plan)), *trainer.problems(plan))
    others = (*others, *trainer.schedule_problems(plan, unwrapped=sharded))
    others = (*others, *trainer.load_problems(plan), *trainer.program_problems(plan, "TRL"), *_problems(plan))
    learning.refuse(plan, COMPARES if plan.job.rl is None else LEARNS, NAME, others)
    on_gpu = deepspeed_launch.environment_variables(plan)
    return {
        "framework": f"TRL {RELEASE} and " + (accelerate.NAMED if sharded else f"DeepSpeed {DEEPSPEED_RELEASE}"),
        "release": RELEASE,
        "sharded": sharded,
        "script": plan.task if plan.job.rl is None else "grpo",
        "experimental": _experimental(plan),
        "data": _DATA[learning.per_example(plan) if plan.job.rl is None else 0],
        "sections": sections(plan),
        "phases": step_words.phases(plan),
        "variables": (*on_gpu, *monitors.trainer_variables(plan)),
        "notes": (*step_words.notes(plan, _BEFORE), *deepspeed_launch.notes(plan), *_notes(plan)),
        "predicted_for": "" if sharded else predicted_for(plan, "deepspeed"),
        "reward_model": rewarding.published(plan),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON, or Accelerate's file of FSDP 2."""
    if of_fsdp(plan):
        yield File(accelerate.CONFIG, as_yaml(accelerate.shards(plan)) + "\n")
        return
    yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML by what it is about."""
    data = plan.training.data_path
    return {
        "model": {
            "model_name_or_path": trainer.named(plan),
            "dtype": learning.dtype(plan),
            "attn_implementation": deepspeed_launch.attention(plan),
            **_adapter(plan),
        },
        "data": {"dataset_name": data[0]} if data else {},
        **(_pairs(plan) if plan.job.rl is None else _step(plan)),
        "train": trainer.arguments(plan, None if of_fsdp(plan) else DEEPSPEED),
    }


def _step(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return what a step of reinforcement learning is told."""
    rl, step = learning.section(plan), plan.rl[0] if plan.rl else None
    engine = (
        {}
        if step is None
        else {
            "vllm_tensor_parallel_size": step.rollout_tp,
            "vllm_gpu_memory_utilization": step.memory_share,
        }
    )
    return {
        "algorithm": {
            **_ALGORITHMS[rl.algorithm],
            **learning.clipped(rl, "epsilon", "epsilon_high"),
            "beta": 0.001 if rl.reference else 0.0,
            "num_iterations": rl.epochs,
            **({"entropy_coef": 0.001} if rl.entropy else {}),
        },
        "generation": {
            "generation_batch_size": rl.sequences,
            "num_generations": rl.samples,
            "max_completion_length": rl.response_length.max,
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_enable_sleep_mode": True,
            "vllm_max_model_length": rl.longest,
            **engine,
        },
    }


def _pairs(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return what training on preferences is told. Its dropout is off in the adapters, too, unless it is told
    otherwise."""
    preference, adapter = learning.preference(plan), plan.model.adapter
    loss = [preference.loss] if preference.means.task == "dpo" else preference.loss
    scaled: dict[str, Any] = {"loss_type": loss, "beta": preference.beta, "precompute_ref_log_probs": False}
    if _experimental(plan):
        scaled = {"beta": preference.beta, **_OF_CPO.get(preference.loss, {})}
    return {
        "preference": {
            **(scaled if preference.means.scaled else {}),
            "max_length": plan.best.batch.seq_length,
            **({"disable_dropout": False} if adapter is not None and adapter.lora_dropout else {}),
        }
    }


def _experimental(plan: Plan) -> str | None:
    """Return the trainer of a loss that no script of TRL's starts."""
    return None if plan.job.preference is None else _EXPERIMENTAL.get(plan.job.preference.loss)


def _adapter(plan: Plan) -> dict[str, Any]:
    lora = plan.model.adapter
    if lora is None:
        return {}
    quantised: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    quantised["bnb_4bit_quant_storage"] = learning.dtype(plan)  # what ZeRO-3 shards
    return {
        "use_peft": True,
        "lora_r": lora.r,
        "lora_alpha": int(lora.lora_alpha),
        "lora_dropout": lora.lora_dropout,
        "lora_target_modules": list(target_modules(plan.model)),
        **({"lora_task_type": "SEQ_CLS", "lora_modules_to_save": ["score"]} if plan.task == "reward" else {}),
        **(quantised if lora.method == "qlora" else {}),
    }


def _of_shards(plan: Plan) -> Iterator[Problem]:
    """Yield what PyTorch's FSDP 2 under TRL does not run, and what Transformers cannot be told of the model."""
    rl, pairs = plan.job.rl, plan.job.preference
    yield from accelerate.of_shards(plan)
    reference = rl.reference if rl is not None else pairs is not None and pairs.has_reference
    if reference and plan.model.adapter is None:
        what = "TRL has the whole reference as one group of FSDP 2, all of whose weights are gathered at once"
        yield Problem(what, field="reference", hint="--backend deepspeed, or adapters")


def _problems(plan: Plan) -> Iterator[Problem]:
    training = plan.training
    if len(training.data_path) > 1:
        got = " ".join(training.data_path)
        yield Problem("TRL's script takes one data set", field="training.data_path", got=got)


def _notes(plan: Plan) -> Iterator[str]:
    rl = plan.job.rl
    if rl is not None:
        yield (
            f"TRL cuts no prompts: take those of more than {rl.prompt_length.max} tokens out of the data, for vLLM has "
            f"room for {rl.longest} in all"
        )
    else:
        yield from trainer.padded(plan, "max_length")

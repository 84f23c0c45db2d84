"""Target trl: the YAML of TRL's GRPO script, with the DeepSpeed JSON that it names, and launch.sh.

Names are those of TRL 1.16 (`trainer/grpo_config.py`, `scripts/grpo.py`), beside those of Transformers' Trainer. It
pads each sequence to the longest that a rank has generated, and keeps the actor on the GPU while vLLM generates there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, deepspeed_launch, deepspeed_limits, learning, monitors, trainer
from symconfig.render.files import File
from symconfig.render.learning import Learns
from symconfig.render.summary import predicted_for

NAME = "trl"
DOES = "TRL's YAML for GRPO with DeepSpeed and vLLM on the same GPUs, the DeepSpeed JSON, launch.sh"
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.STEPS
RELEASE = "1.16.0"
UNSAID = {
    "split": "TRL takes splits of a data set by their names",
    "tokenizer_model": "TRL takes the model's tokenizer",
    "tokenizer_type": "TRL takes the model's tokenizer",
    "manual_gc_interval": "TRL leaves the collection of garbage to Python",
}
CONFIG, DEEPSPEED = "grpo.yaml", "ds_config_hf.json"
_ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
LEARNS = Learns(algorithms=tuple(_ALGORITHMS), engines=("vllm",), away=((),), sequences="padded", reference="resident")


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what TRL cannot be told."""
    others = (*deepspeed_limits.problems(plan), *trainer.problems(plan), *trainer.schedule_problems(plan))
    learning.refuse(plan, LEARNS, NAME, (*others, *trainer.load_problems(plan), *_problems(plan)))
    return {
        "framework": f"TRL {RELEASE} and DeepSpeed {DEEPSPEED_RELEASE}",
        "release": RELEASE,
        "sections": sections(plan),
        "phases": learning.phases(plan),
        "variables": (*deepspeed_launch.environment_variables(plan), *monitors.trainer_variables(plan)),
        "notes": (*learning.notes(plan), *deepspeed_launch.notes(plan), *_notes(plan)),
        "predicted_for": predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON."""
    yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML by what it is about."""
    rl, training, step = learning.section(plan), plan.training, plan.rl[0] if plan.rl else None
    engine = (
        {}
        if step is None
        else {
            "vllm_tensor_parallel_size": step.rollout_tp,
            "vllm_gpu_memory_utilization": step.memory_share,
        }
    )
    return {
        "model": {
            "model_name_or_path": training.hf_weights or plan.model.huggingface_id,
            "dtype": {"bf16": "bfloat16", "fp16": "float16"}[plan.best.options.precision],
            "attn_implementation": deepspeed_launch.attention(plan),
        },
        "data": {"dataset_name": training.data_path[0]} if training.data_path else {},
        "algorithm": {
            **_ALGORITHMS[rl.algorithm],
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
        "train": trainer.arguments(plan, DEEPSPEED),
    }


def _problems(plan: Plan) -> Iterator[Problem]:
    p, rl, training = plan.best.parallel, learning.section(plan), plan.training
    for name, what in (("tp", "AutoTP"), ("cp", "Ulysses")):
        if getattr(p, name) > 1:
            pins, got = (f"{name}=1",), str(getattr(p, name))
            yield Problem(f"TRL's GRPO has no words for DeepSpeed's {what}", field=name, got=got, pins=pins)
    if rl.samples == 1:
        yield Problem("the advantage is over the responses to a prompt", field="rl.samples", got="1", need="2 or more")
    if (training.hf_weights or plan.model.huggingface_id) is None:
        what = "TRL loads a model by name, and this one has none"
        yield Problem(what, field="huggingface_id", hint="--hf-weights ID, or a folder")
    if len(training.data_path) > 1:
        got = " ".join(training.data_path)
        yield Problem("TRL's script takes one data set", field="training.data_path", got=got)


def _notes(plan: Plan) -> Iterator[str]:
    rl = learning.section(plan)
    yield (
        f"TRL cuts no prompts: take those of more than {rl.prompt_length.max} tokens out of the data, for vLLM has "
        f"room for {rl.longest} in all"
    )

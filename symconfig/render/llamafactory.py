"""Target llamafactory: the YAML of `llamafactory-cli train`, with the DeepSpeed JSON that it names.

Keys are those of LLaMA-Factory 0.9.5 (`hparams/`), which runs Transformers 5.6 or older; template names are its own
(`data/template.py`). It trains with DeepSpeed's ZeRO, where AutoTP, Ulysses and AutoEP are refused, or in the shards of
PyTorch's FSDP 2, which Accelerate's launcher is told of: a reference lies in such shards, too (`train/dpo/trainer.py`),
and it recomputes layers by itself (`model/model_utils/checkpointing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import PLAIN
from symconfig.errors import InfeasibleError, Problem
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
    towers,
    trainer,
)
from symconfig.render.files import File
from symconfig.render.fill import as_yaml
from symconfig.render.learning import Compares
from symconfig.render.refused import of_fsdp
from symconfig.render.summary import predicted_for
from symconfig.render.weights import fine_tuned

NAME = "llamafactory"
DOES = "LLaMA-Factory's YAML for (pre-)training, preferences, LoRA, QLoRA, its JSON or Accelerate's file, launch.sh"
ASSUMES = {"backend": "deepspeed"}
COUNTS = counting.STEPS
TASKS = PLAIN
COMPARES = Compares(losses=("sigmoid", "hinge", "ipo", "orpo", "simpo", "kto", "reward"), both_heads=True)
RELEASE = "0.9.5"
UNSAID = {
    "tokenizer_model": "LLaMA-Factory takes the model's tokenizer",
    "tokenizer_type": "LLaMA-Factory takes the model's tokenizer",
    "manual_gc_interval": "LLaMA-Factory leaves garbage collection to Python",
}
_ACCELERATE = "Accelerate 1.11"  # the last that goes with it: all weights in shards are fp32 there, frozen ones, too
CONFIG, DEEPSPEED, DATASETS = "train.yaml", "ds_config_hf.json", "dataset_info.json"

# model_type -> the chat template of its family.
_TEMPLATES = {
    "mistral": "mistral",
    "mixtral": "mistral",
    "qwen2": "qwen",
    "qwen2_moe": "qwen",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek3",
    "gpt_oss": "gpt_oss",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi",
}
# The same of multimodal models.
TOWERS = {
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "gemma3": "gemma3",
    "glm4v": "glm4v",
    "glm4v_moe": "glm4_5v",
    "llama4": "llama4",
    "llava": "llava",
    "mistral3": "mistral_small",
    "internvl": "intern_vl",
}
_LLAMA3_VOCABULARY = 128256  # the tokenizer tells Llama 3, 3.1 and 3.3 from their forerunners of the same model_type
# Demonstration data that LLaMA-Factory publishes, by stage.
_DEMO = {"pt": "c4_demo", "sft": "identity,alpaca_en_demo", "dpo": "dpo_en_demo", "kto": "kto_en_demo"}
_DEMO["rm"] = _DEMO["dpo"]
_STAGES = {"reward": "rm"}  # of tasks whose stage has another name
_DEMO_IMAGES = "mllm_demo"
_DEMO_FOLDER = "REMOTE:llamafactory/demo_data"
_ATTENTION = {"sdpa": "sdpa", "eager": "disabled"}


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what LLaMA-Factory cannot run."""
    pairs = () if plan.job.preference is None else COMPARES.untold(plan, "LLaMA-Factory")
    sharded = of_fsdp(plan)
    others = (*trainer.schedule_problems(plan, unwrapped=sharded), *trainer.load_problems(plan), *_problems(plan))
    if sharded and (faults := (*_of_shards(plan), *trainer.problems(plan), *pairs, *others)):
        raise InfeasibleError(faults)
    if not sharded:
        trainer.refuse(plan, *pairs, *others)
    folder = trainer.output_dir(plan)
    return {
        "framework": f"LLaMA-Factory {RELEASE} and " + (_ACCELERATE if sharded else f"DeepSpeed {DEEPSPEED_RELEASE}"),
        "sharded": sharded,
        "sections": sections(plan),
        "relative_output": None if folder.startswith("/") else folder,
        "variables": (*deepspeed_launch.environment_variables(plan), *monitors.trainer_variables(plan)),
        "notes": tuple(_notes(plan)),
        "predicted_for": "" if sharded else predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON or Accelerate's file of FSDP 2, and the list of the job's data files."""
    if of_fsdp(plan):
        yield File(accelerate.CONFIG, as_yaml(accelerate.shards(plan, recomputes=False)) + "\n")
    else:
        yield trainer.json_file(DEEPSPEED, deepspeed.config_auto(plan))
    if plan.training.data_path:
        yield trainer.json_file(DATASETS, _datasets(plan))


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML by the headings of LLaMA-Factory's examples."""
    arguments = trainer.arguments(plan, None if of_fsdp(plan) else DEEPSPEED)
    del arguments["gradient_checkpointing"]
    output = {name: arguments.pop(name) for name in ("output_dir", "logging_steps", "save_steps")}
    return {
        "model": {
            "model_name_or_path": trainer.named(plan),
            **({} if fine_tuned(plan) else {"train_from_scratch": True}),
            "flash_attn": _ATTENTION[deepspeed_launch.attention(plan)],
            "disable_gradient_checkpointing": plan.best.options.recompute.granularity == "none",
            **_quantised(plan),
            **_image_size(plan),
        },
        "method": {"stage": stage(plan), "do_train": True, **_preference(plan), **_adapter(plan), **_tower(plan)},
        "dataset": _data(plan),
        "output": output,
        "train": arguments,
    }


def stage(plan: Plan) -> str:
    """Return LLaMA-Factory's stage. pt: every token is learnt; sft: answers only; dpo, kto, rm: preferences."""
    if plan.job.preference is not None:
        return _STAGES.get(plan.job.preference.means.task, plan.job.preference.means.task)
    return "pt" if plan.model.adapter is None and plan.job.task in (None, "pretrain") else "sft"


def _preference(plan: Plan) -> dict[str, Any]:
    """Return the loss of preferences. Its reference is the model itself, without adapters where there are some."""
    preference = plan.job.preference
    if preference is None or not preference.means.scaled:
        return {}
    chosen = {"pref_loss": preference.loss} if stage(plan) == "dpo" else {}
    return {**chosen, "pref_beta": preference.beta}


def template(model: ModelDescriptor) -> str | None:
    """Return the chat template of the model's family, if there is one of its name."""
    if model.vision is None and model.model_type == "llama":
        return "llama3" if model.vocab_size == _LLAMA3_VOCABULARY else "llama2"
    if model.vision is not None:
        return TOWERS.get(model.vision.model_type)
    return _TEMPLATES.get(model.model_type)


def _adapter(plan: Plan) -> dict[str, Any]:
    lora = plan.model.adapter
    if lora is None:
        return {"finetuning_type": "full"}
    return {
        "finetuning_type": "lora",
        "lora_rank": lora.r,
        "lora_alpha": int(lora.lora_alpha),
        "lora_dropout": lora.lora_dropout,
        "lora_target": ",".join(target_modules(plan.model)),
    }


def _tower(plan: Plan) -> dict[str, Any]:
    """Return what is not trained of the vision tower."""
    vision = plan.model.vision
    if vision is None:
        return {}
    return {"freeze_vision_tower": vision.frozen, "freeze_multi_modal_projector": vision.projector_frozen}


def _image_size(plan: Plan) -> dict[str, Any]:
    pixels = towers.pixels(plan)
    return {} if pixels is None else {"image_max_pixels": pixels}


def _quantised(plan: Plan) -> dict[str, Any]:
    if plan.model.adapter is None or plan.model.adapter.method != "qlora":
        return {}
    return {
        "quantization_bit": 4,
        "quantization_method": "bnb",
        "quantization_type": "nf4",
        "double_quantization": True,
    }


def _data(plan: Plan) -> dict[str, Any]:
    own, kind = _datasets(plan), stage(plan)
    packs = plan.job.sequences is not None and plan.job.sequences.batching == "packed"
    fields = {
        "dataset": ",".join(own) or (_DEMO[kind] if plan.model.vision is None else _DEMO_IMAGES),
        "dataset_dir": "." if own else _DEMO_FOLDER,
        "cutoff_len": plan.best.batch.seq_length + packs,  # packing that is said takes a token (`data_args.py`, 0.9.5)
        **({"val_size": plan.training.held_out} if plan.training.eval_iters else {}),
    }
    # Pre-training packs by itself.
    if kind == "pt":
        return fields
    # neat_packing: attention is within the sequences.
    return {**fields, **({"packing": True, "neat_packing": True} if packs else {}), "template": template(plan.model)}


def _datasets(plan: Plan) -> dict[str, Any]:
    """Return dataset_info.json: JSON lines with `text` for pre-training, with `messages` for fine-tuning, and beside
    these `chosen` and `rejected`, a message each, for pairs, and a `label` for single answers.
    """
    compares = plan.job.preference is not None
    pairs = learning.per_example(plan) > 1
    answers = {"chosen": "chosen", "rejected": "rejected"} if pairs else {"kto_tag": "label"}
    messages = {
        "formatting": "sharegpt",
        **({"ranking": True} if pairs else {}),
        "columns": {
            "messages": "messages",
            **(answers if compares else {}),
            **({} if plan.model.vision is None else {"images": "images"}),
        },
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    text = {"columns": {"prompt": "text"}}
    return {
        f"data_{place}": {"file_name": path, **(text if stage(plan) == "pt" else messages)}
        for place, path in enumerate(plan.training.data_path, 1)
    }


def _of_shards(plan: Plan) -> Iterator[Problem]:
    """Yield what it does not run in the shards of FSDP 2."""
    preference = plan.job.preference
    yield from accelerate.of_shards(plan)
    if preference is not None and preference.means.scores:
        what = "Accelerate knows no layers of a model with LLaMA-Factory's head of rewards, and gathers all at once"
        yield Problem(what, field="preference.loss", got=preference.loss, hint="--backend deepspeed")


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what the YAML has no words for."""
    model = plan.model
    yield from trainer.program_problems(plan, "LLaMA-Factory")
    if model.vision is not None and stage(plan) == "pt":
        yield Problem("LLaMA-Factory reads no images in pre-training", field="task", got="pretrain", need="sft or lora")
    if model.model_type == "qwen":
        yield Problem("Qwen-7B's own classes do not load in current Transformers", field="model_type")
    if stage(plan) != "pt" and template(model) is None:
        yield Problem("LLaMA-Factory has no chat template of this family", field="model_type", got=model.model_type)
    if plan.job.sequences is not None and plan.job.sequences.batching == "padding_free":
        what, need = "LLaMA-Factory pads sequences, or packs them", "padded or packed"
        yield Problem(what, field="sequences.batching", got="padding_free", need=need)
    yield from deepspeed_limits.data_problems(plan, "LLaMA-Factory")
    if plan.best.target.backend == "megatron" and plan.training.data_path:
        yield Problem(
            "LLaMA-Factory reads no dataset of Megatron-LM",
            field="training.data_path",
            got=", ".join(plan.training.data_path),
        )


def _notes(plan: Plan) -> Iterator[str]:
    yield from deepspeed_launch.notes(plan)
    yield from towers.notes(plan, "image_max_pixels")
    if stage(plan) != "pt":
        yield from trainer.padded(plan, "cutoff_len")

"""Target llamafactory: the YAML of `llamafactory-cli train`, with the DeepSpeed JSON that it names.

Keys are those of LLaMA-Factory 0.9.5 (`hparams/`), which runs Transformers 5.6 or older; template names are its own
(`data/template.py`). It trains with DeepSpeed's ZeRO, where AutoTP, Ulysses and AutoEP are refused, or in the shards of
PyTorch's FSDP 2, which Accelerate's launcher is told of: a reference lies in such shards, too (`train/dpo/trainer.py`),
and it recomputes layers by itself (`model/model_utils/checkpointing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace as Run
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import PLAIN
from symconfig.errors import Problem
from symconfig.formats.keys import write
from symconfig.formats.tuners import LLAMAFACTORY, LLAMAFACTORY_WRITTEN
from symconfig.frameworks import counting
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, learning, refusals, trainer, tuning, weights
from symconfig.render.files import File
from symconfig.render.learning import Compares
from symconfig.render.refusals import of_fsdp
from symconfig.render.target import Target

COMPARES = Compares(losses=("sigmoid", "hinge", "ipo", "orpo", "simpo", "kto", "reward"), both_heads=True)
_ACCELERATE = "Accelerate 1.11"  # the last that goes with it: all weights in shards are fp32 there, frozen ones, too
_DATASETS = "dataset_info.json"

# Chat templates by the model_type of their families, and of multimodal models.
_TEMPLATES = {
    "mistral": "mistral", "mixtral": "mistral", "qwen2": "qwen", "qwen2_moe": "qwen", "qwen3": "qwen3",
    "qwen3_moe": "qwen3", "deepseek_v2": "deepseek", "deepseek_v3": "deepseek3", "gpt_oss": "gpt_oss",
    "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi",
}  # fmt: skip
TOWERS = {
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl",
    "gemma3": "gemma3", "glm4v": "glm4v", "glm4v_moe": "glm4_5v", "llama4": "llama4", "llava": "llava",
    "mistral3": "mistral_small", "internvl": "intern_vl",
}  # fmt: skip
_LLAMA3_VOCABULARY = 128256  # the tokenizer tells Llama 3, 3.1 and 3.3 from their forerunners of the same model_type
# Demonstration data that LLaMA-Factory publishes, by stage.
_DEMO = {"pt": "c4_demo", "sft": "identity,alpaca_en_demo", "dpo": "dpo_en_demo", "kto": "kto_en_demo"}
_DEMO["rm"] = _DEMO["dpo"]
_STAGES = {"reward": "rm"}  # of tasks whose stage has another name
_DEMO_IMAGES = "mllm_demo"
_DEMO_FOLDER = "REMOTE:llamafactory/demo_data"


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables. Raises InfeasibleError for what LLaMA-Factory does not support."""
    pairs = () if plan.job.preference is None else COMPARES.untold(plan, "LLaMA-Factory")
    folder = trainer.output_dir(plan)
    common = tuning.variables(
        plan, "LLaMA-Factory", LLAMAFACTORY.release, *pairs, *_problems(plan), launcher=_ACCELERATE
    )
    return {
        **common,
        "sections": sections(plan),
        "relative_output": None if folder.startswith("/") else folder,
        "notes": tuple(_notes(plan)),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON or Accelerate's file for FSDP 2, and dataset_info.json if the job names data."""
    yield from tuning.texts(plan, recomputes=False)
    if plan.training.data_path:
        yield trainer.json_file(_DATASETS, _datasets(plan))


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by heading, as in LLaMA-Factory's examples."""
    kind, own, arguments, preference = stage(plan), _datasets(plan), tuning.arguments(plan), plan.job.preference
    del arguments["gradient_checkpointing"]
    packs = plan.job.sequences is not None and plan.job.sequences.batching == "packed"
    data = Run(
        names=",".join(own) or (_DEMO[kind] if plan.model.vision is None else _DEMO_IMAGES),
        folder="." if own else _DEMO_FOLDER,
        length=plan.best.batch.seq_length + packs,  # packing that is said takes a token (`data_args.py`, 0.9.5)
        held_out=plan.training.held_out if plan.training.eval_iters else None,
        packs=True if packs and kind != "pt" else None,  # pre-training packs by itself
        template=None if kind == "pt" else template(plan.model),
    )
    pairs = preference and Run(pref_loss=preference.loss if kind == "dpo" else None, beta=preference.beta)
    run = tuning.run_of(
        plan,
        stage=kind,
        data=data,
        pixels=weights.pixels(plan),
        preference=pairs if preference is not None and preference.means.scaled else None,
    )
    return {
        **{heading: write(table, run) for heading, table in LLAMAFACTORY_WRITTEN.items()},
        "output": {name: arguments.pop(name) for name in ("output_dir", "logging_steps", "save_steps")},
        "train": arguments,
    }


def stage(plan: Plan) -> str:
    """Return LLaMA-Factory's stage: "pt" (loss over every token), "sft" (answers only), or "dpo", "kto" or "rm" for
    preferences.
    """
    if plan.job.preference is not None:
        return _STAGES.get(plan.job.preference.means.task, plan.job.preference.means.task)
    return "pt" if plan.model.adapter is None and plan.job.task in (None, "pretrain") else "sft"


def template(model: ModelDescriptor) -> str | None:
    """Return the chat template of the model's family; None if LLaMA-Factory has none."""
    if model.vision is None and model.model_type == "llama":
        return "llama3" if model.vocab_size == _LLAMA3_VOCABULARY else "llama2"
    if model.vision is not None:
        return TOWERS.get(model.vision.model_type)
    return _TEMPLATES.get(model.model_type)


def _datasets(plan: Plan) -> dict[str, Any]:
    """Return dataset_info.json for the job's JSON-lines files; {} without any.

    The lines have `text` for pretraining, else `messages`, with `chosen` and `rejected` for pairs or a `label` for
    single answers.
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
        "tags": {f"{name}_tag": name for name in ("role", "content", "user", "assistant", "system")},
    }
    text = {"columns": {"prompt": "text"}}
    return {
        f"data_{place}": {"file_name": path, **(text if stage(plan) == "pt" else messages)}
        for place, path in enumerate(plan.training.data_path, 1)
    }


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what LLaMA-Factory does not support, in addition to limits of the Trainer."""
    model, preference = plan.model, plan.job.preference
    if of_fsdp(plan) and preference is not None and preference.means.scores:
        what = "Accelerate knows no layers of a model with LLaMA-Factory's head of rewards, and gathers all at once"
        yield Problem(what, field="preference.loss", got=preference.loss, hint="--backend deepspeed")
    if model.vision is not None and stage(plan) == "pt":
        yield Problem("LLaMA-Factory reads no images in pre-training", field="task", got="pretrain", need="sft or lora")
    if model.model_type == "qwen":
        yield Problem("Qwen-7B's own classes do not load in current Transformers", field="model_type")
    if stage(plan) != "pt" and template(model) is None:
        yield Problem("LLaMA-Factory has no chat template of this family", field="model_type", got=model.model_type)
    if plan.job.sequences is not None and plan.job.sequences.batching == "padding_free":
        what, need = "LLaMA-Factory pads sequences, or packs them", "padded or packed"
        yield Problem(what, field="sequences.batching", got="padding_free", need=need)
    yield from refusals.data_problems(plan, "LLaMA-Factory")
    if plan.best.target.backend == "megatron" and plan.training.data_path:
        yield Problem(
            "LLaMA-Factory reads no dataset of Megatron-LM",
            field="training.data_path",
            got=", ".join(plan.training.data_path),
        )


def _notes(plan: Plan) -> Iterator[str]:
    yield from deepspeed.notes(plan)
    yield from weights.notes(plan, "image_max_pixels")
    if stage(plan) != "pt":
        yield from trainer.padded(plan, "cutoff_len")


TARGET = Target(
    name="llamafactory",
    does="LLaMA-Factory's YAML for (pre-)training, preferences, LoRA, QLoRA, its JSON or Accelerate's file, launch.sh",
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    tasks=PLAIN,
    towers=TOWERS,
    compares=COMPARES,
    counts=counting.STEPS,
    ignored_fields={
        "tokenizer_model": "LLaMA-Factory takes the model's tokenizer",
        "tokenizer_type": "LLaMA-Factory takes the model's tokenizer",
        "manual_gc_interval": "LLaMA-Factory leaves garbage collection to Python",
    },
)

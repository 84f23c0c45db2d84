"""Targets axolotl and llamafactory, and what all targets have alike that fine-tune a published model with Trainer.

Axolotl 0.18 (`utils/schemas/`) tells Accelerate itself of DeepSpeed or FSDP (`utils/trainer.py`, prepare_optim_env).
LLaMA-Factory 0.9.5 (`hparams/`) runs Transformers 5.6 or older; template names are its own (`data/template.py`). It
trains with DeepSpeed's ZeRO, where AutoTP, Ulysses and AutoEP are refused, or in the shards of PyTorch's FSDP 2, which
Accelerate's launcher configures: a reference lies in such shards, too (`train/dpo/trainer.py`), and it recomputes
layers by itself (`model/model_utils/checkpointing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace as Run
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.task import PLAIN
from symconfig.errors import Problem
from symconfig.formats.keys import write
from symconfig.formats.tuners import AXOLOTL, AXOLOTL_WRITTEN, LLAMAFACTORY, LLAMAFACTORY_WRITTEN
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.plans.plan import Plan
from symconfig.render import accelerate, deepspeed, learning, shared, trainer
from symconfig.render.files import File
from symconfig.render.learning import Compares
from symconfig.render.shared import STEPS_COUNTING, fine_tuned, of_fsdp
from symconfig.render.target import Target, ignored


def run_of(plan: Plan, **more: object) -> Run:
    """Return the plan as namespaces for the tables of keys (`formats.tuners`); `more`: further fields, which replace
    others. `quantised` is None unless the adapter is QLoRA; its alpha becomes an int. Raises as `target_modules` for an
    adapter.
    """
    lora = plan.model.adapter
    run = learning.run_of(plan, target_modules(plan.model) if lora else ())
    if lora is not None:
        run.adapter.lora_alpha, run.adapter.scores = int(lora.lora_alpha), plan.task == "reward"
        run.adapter.targets = list(run.adapter.targets)
    run.named, run.tuned = trainer.named(plan), fine_tuned(plan)
    run.attention = deepspeed.attention(plan)
    run.recomputes = plan.best.configuration.recompute != "none"
    run.quantised = Run(dtype=run.dtype) if lora is not None and lora.method == "qlora" else None
    vars(run).update(more)
    return run


_ALPACA = {"path": "mhenrichsen/alpaca_2k_test", "type": "alpaca"}  # of its own examples


def axolotl_sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by section; without data of the job it names the small Alpaca set. Packing is on for
    pretraining, or if the job says so. Section shards has the version, fsdp_config and mesh of FSDP; train the
    Trainer's arguments by Axolotl's names.
    """
    best, training, arguments = plan.best, plan.training, accelerate.trainer_arguments(plan)
    for name in arguments.pop("report_to", ()):
        arguments["use_tensorboard" if name == "tensorboard" else "use_wandb"] = True
    if training.loads_its_own:
        arguments["auto_resume_from_checkpoints"] = True
    kind = "completion" if shared.pretrains(plan) else "chat_template"
    data = Run(
        sets=[{"path": path, "ds_type": "json", "type": kind} for path in training.data_path] or [_ALPACA],
        length=best.configuration.seq_length,
        packs=shared.pretrains(plan) or _packs(plan),
        held_out=training.held_out if training.eval_iters else None,
    )
    shards = None
    if of_fsdp(plan):
        config = {name.removeprefix("fsdp_"): value for name, value in accelerate.shards(plan)["fsdp_config"].items()}
        copies = None if best.shard_ranks is None else best.configuration.instances
        shards = Run(version=config.pop("version"), config=config, copies=copies, ranks=best.shard_ranks)
    run = run_of(plan, data=data, shards=shards)
    run.attention = "flash_attention_2" if _packs(plan) else run.attention
    return {**{name: write(table, run) for name, table in AXOLOTL_WRITTEN.items()}, "train": AXOLOTL.renamed(arguments)}


def _packs(plan: Plan) -> bool:
    return shared.batching(plan) == "packed"


def _padding_free(plan: Plan, name: str) -> Iterator[Problem]:
    if shared.batching(plan) == "padding_free":
        what, need = f"{name} pads sequences, or packs them", "padded or packed"
        yield Problem(what, field="sequences.batching", got="padding_free", need=need)


def _axolotl_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what Axolotl does not support: what `trainer_problems` names, padding_free, weighted data, and packing with
    eager attention.
    """
    yield from accelerate.trainer_problems(plan, "Axolotl")
    yield from _padding_free(plan, "Axolotl")
    if _packs(plan) and deepspeed.attention(plan) == "eager":
        what = "Axolotl keeps packed sequences apart by flash attention alone"
        yield Problem(what, field="attention", got="eager", hint="--target llamafactory")
    yield from shared.data_problems(plan, "Axolotl")


COMPARES = Compares(losses=("sigmoid", "hinge", "ipo", "orpo", "simpo", "kto", "reward"), both_heads=True)
_ACCELERATE = "Accelerate 1.11"  # the last that goes with it: all weights in shards are fp32 there, frozen ones, too
_DATASETS = "dataset_info.json"

# Chat templates by the model_type of their families, and of multimodal models.
_TEMPLATES = {
    "llama": "llama2", "mistral": "mistral", "mixtral": "mistral", "qwen2": "qwen", "qwen2_moe": "qwen",
    "qwen3": "qwen3", "qwen3_moe": "qwen3", "deepseek_v2": "deepseek", "deepseek_v3": "deepseek3", "gpt_oss": "gpt_oss",
    "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi",
}  # fmt: skip
TOWERS = {
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl",
    "gemma3": "gemma3", "glm4v": "glm4v", "glm4v_moe": "glm4_5v", "llama4": "llama4", "llava": "llava",
    "mistral3": "mistral_small", "internvl": "intern_vl",
}  # fmt: skip
# Demonstration data that LLaMA-Factory publishes, by stage.
_DEMO = {"pt": "c4_demo", "sft": "identity,alpaca_en_demo", "dpo": "dpo_en_demo", "kto": "kto_en_demo"}
_DEMO["rm"] = _DEMO["dpo"]
_STAGES = {"reward": "rm"}  # of tasks whose stage has another name
_DEMO_IMAGES = "mllm_demo"
_DEMO_FOLDER = "REMOTE:llamafactory/demo_data"


def _llamafactory(plan: Plan) -> dict[str, object]:
    """Return the templates' variables; relative_output is None if the checkpoint folder is an absolute path."""
    folder = trainer.output_dir(plan)
    padded = trainer.padded(plan, "cutoff_len") if stage(plan) != "pt" else ()
    return {
        **accelerate.trainer_variables(plan, "LLaMA-Factory", LLAMAFACTORY.release, launcher=_ACCELERATE),
        "sections": sections(plan),
        "relative_output": None if folder.startswith("/") else folder,
        "notes": (*deepspeed.notes(plan), *shared.image_notes(plan, "image_max_pixels"), *padded),
    }


def _llamafactory_texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON or Accelerate's file for FSDP 2, and dataset_info.json if the job names data."""
    yield accelerate.sharding_file(plan, recomputes=False)
    if plan.training.data_path:
        yield trainer.json_file(_DATASETS, _datasets(plan))


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by heading, as in LLaMA-Factory's examples; without data of the job it names demo data.
    gradient_checkpointing is left out; cutoff_len is one longer with packing. Preference fields only for losses with a
    beta, the chat template not for pretraining.
    """
    kind, own, arguments, preference = (
        stage(plan),
        _datasets(plan),
        accelerate.trainer_arguments(plan),
        plan.job.preference,
    )
    del arguments["gradient_checkpointing"]
    packs = _packs(plan)
    data = Run(
        names=",".join(own) or (_DEMO[kind] if plan.model.vision is None else _DEMO_IMAGES),
        folder="." if own else _DEMO_FOLDER,
        length=plan.best.configuration.seq_length + packs,  # packing that is said takes a token (`data_args.py`, 0.9.5)
        held_out=plan.training.held_out if plan.training.eval_iters else None,
        packs=True if packs and kind != "pt" else None,  # pre-training packs by itself
        template=None if kind == "pt" else template(plan.model),
    )
    pairs = preference and Run(pref_loss=preference.loss if kind == "dpo" else None, beta=preference.beta)
    run = run_of(
        plan,
        stage=kind,
        data=data,
        pixels=shared.pixels(plan),
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
    return shared.loss_of(plan)


def template(model: ModelDescriptor) -> str | None:
    """Return the chat template of the model's family, or of its vision tower; None if LLaMA-Factory has none."""
    return shared.template(model, _TEMPLATES if model.vision is None else TOWERS, "llama3")


def _datasets(plan: Plan) -> dict[str, Any]:
    """Return dataset_info.json as {data_N: entry} for the job's JSON-lines files, N from 1; {} without any. The lines
    have `text` for pretraining, else `messages`, with `chosen` and `rejected` for pairs, a `label` for other
    preferences, and `images` with a vision tower.
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


def _llamafactory_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what LLaMA-Factory does not support: what `trainer_problems` names, a scalar reward head with FSDP, images
    in pretraining, the first Qwen, families without a chat template (but for pretraining), padding_free, weighted data,
    and data of a Megatron plan.
    """
    yield from accelerate.trainer_problems(plan, "LLaMA-Factory")
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
    yield from _padding_free(plan, "LLaMA-Factory")
    yield from shared.data_problems(plan, "LLaMA-Factory")
    if plan.best.target.backend == "megatron" and plan.training.data_path:
        yield Problem(
            "LLaMA-Factory reads no dataset of Megatron-LM",
            field="training.data_path",
            got=", ".join(plan.training.data_path),
        )


TARGETS = (
    Target(
        name="axolotl",
        does="Axolotl's YAML for (pre-)training, LoRA and QLoRA, "
        "with DeepSpeed's JSON or in FSDP 2's shards, and launch.sh",
        variables=lambda plan: {
            **accelerate.trainer_variables(plan, "Axolotl", AXOLOTL.release),
            "sections": axolotl_sections(plan),
            "notes": (*deepspeed.notes(plan), *trainer.padded(plan, "sequence_len")),
        },
        problems=_axolotl_problems,
        texts=lambda plan: () if of_fsdp(plan) else (accelerate.sharding_file(plan),),  # the YAML configures FSDP
        assumes={"backend": "deepspeed"},
        tasks=PLAIN,
        counts=STEPS_COUNTING,
        ignored_fields=ignored("Axolotl"),
    ),
    Target(
        name="llamafactory",
        program="LLaMA-Factory",
        does="LLaMA-Factory's YAML for (pre-)training, preferences, LoRA, QLoRA, "
        "its JSON or Accelerate's file, launch.sh",
        variables=_llamafactory,
        problems=_llamafactory_problems,
        texts=_llamafactory_texts,
        assumes={"backend": "deepspeed"},
        tasks=PLAIN,
        towers=TOWERS,
        compares=COMPARES,
        counts=STEPS_COUNTING,
        ignored_fields=ignored("LLaMA-Factory"),
    ),
)

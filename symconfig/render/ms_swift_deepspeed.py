"""Target ms-swift-deepspeed: the YAML of `swift pt`, `swift sft` and `swift rlhf`, with the DeepSpeed JSON.

ms-swift trains with Transformers' Trainer there; LoRA and QLoRA, and preferences.

Arguments are those of ms-swift 4.6.0 (`arguments/`), beside those of Trainer. Pairs are in one forward; the reference
is a second model, sharded where ZeRO-3 shards the policy, and read between the policy's forward and its backward
(`rlhf_trainers/dpo_trainer.py`). Beside adapters it is the model without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.descriptor.task import PLAIN
from symconfig.descriptor.tuning import LossName
from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.deepspeed.adapters import target_modules
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, learning, monitors, ms_swift, refusals, step_words, trainer
from symconfig.render.files import File
from symconfig.render.learning import Compares
from symconfig.render.summary import predicted_for
from symconfig.render.target import Target

NAME = "ms-swift-deepspeed"
DEEPSPEED = "ds_config_hf.json"
# Losses that are an `rlhf_type` of their own; any other is a `loss_type` of dpo or kto.
_TYPES: Mapping[LossName, str] = {"orpo": "orpo", "simpo": "simpo", "cpo": "cpo", "reward": "rm"}
COMPARES = Compares(
    losses=("sigmoid", "hinge", "ipo", "kto", "apo_zero_unpaired", *_TYPES),
    batching=("padded", "padding_free"),
    padded=tuple(_TYPES),  # arguments/rlhf_args.py, _check_padding_free
    first=("model",),  # rlhf_trainers/kto_trainer.py, forward
)
TEMPLATES = {**ms_swift.TEMPLATES, "mistral": "llama", "mixtral": "llama"}


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables. Raises InfeasibleError for what ms-swift with DeepSpeed does not support."""
    pairs = () if plan.job.preference is None else COMPARES.untold(plan, NAME)
    others = (*trainer.schedule_problems(plan, unwrapped=True), *trainer.load_problems(plan), *_problems(plan))
    trainer.refuse(plan, *pairs, *trainer.program_problems(plan, "ms-swift"), *others)
    return {
        "framework": f"ms-swift {ms_swift.RELEASE} and DeepSpeed {DEEPSPEED_RELEASE}",
        "release": ms_swift.RELEASE,
        "command_name": "rlhf" if plan.job.preference else ms_swift.stage(plan),
        "sections": sections(plan),
        "last_checkpoint": None,
        "variables": (*deepspeed.environment_variables(plan), *monitors.trainer_variables(plan)),
        "notes": (*step_words.notes(plan), *deepspeed.notes(plan), *_notes(plan)),
        "predicted_for": predicted_for(plan, "deepspeed"),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the DeepSpeed JSON without an optimizer.

    ms-swift's Trainer accesses the optimizer before DeepSpeed makes one from the JSON (`trainers/mixin.py`,
    create_optimizer), so it must make it itself.
    """
    data = deepspeed.config_auto(plan)
    data.pop("optimizer", None)
    yield trainer.json_file(DEEPSPEED, {**data, "zero_allow_untested_optimizer": True})


def sections(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the YAML's fields by section, without the path of the DeepSpeed JSON, which launch.sh adds."""
    arguments, training, lora = trainer.arguments(plan, DEEPSPEED), plan.training, plan.model.adapter
    del arguments["deepspeed"]
    tuner: dict[str, Any] = {"tuner_type": "full"}
    if lora is not None:
        tuner = {"tuner_type": "lora", "lora_rank": lora.r, "lora_alpha": int(lora.lora_alpha)}
        tuner |= {"lora_dropout": lora.lora_dropout, "target_modules": list(target_modules(plan.model))}
    if lora is not None and lora.method == "qlora":
        tuner |= {
            "quant_method": "bnb",
            "quant_bits": 4,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        }
    model = {
        "model": trainer.named(plan),
        "use_hf": True,
        "model_type": plan.model.model_type,
        "template": ms_swift.template(plan.model, TEMPLATES),
        "torch_dtype": learning.dtype(plan),
        "attn_impl": "flash_attn" if _without_padding(plan) else deepspeed.attention(plan),
        **tuner,
    }
    data = {
        "max_length": plan.best.batch.seq_length,
        "packing": _packs(plan),
        "padding_free": _without_padding(plan),
        "split_dataset_ratio": training.held_out if training.eval_iters else 0.0,
        **({"dataset": list(training.data_path)} if training.data_path else {}),
    }
    result = {"MODEL": model, "DATA": data}
    if plan.job.preference is not None:
        preference = learning.preference(plan)
        kind, beta = _TYPES.get(preference.loss), {"beta": preference.beta}
        loss = {"rlhf_type": plan.task, "loss_type": preference.loss, **beta}
        result["PREFERENCE"] = (
            loss if kind is None else {"rlhf_type": kind, **(beta if preference.means.scaled else {})}
        )
    return {**result, "TRAINING": {"optim": "adamw_torch_fused", **arguments, "add_version": False}}


def _packs(plan: Plan) -> bool:
    """Return whether sequences are packed up to the sequence length: in pretraining, or if the job says so."""
    lengths = plan.job.sequences
    return ms_swift.stage(plan) == "pt" or (lengths is not None and lengths.batching == "packed")


def _without_padding(plan: Plan) -> bool:
    """Return whether the sequences of a micro-batch are concatenated without padding, each attending only to itself."""
    lengths = plan.job.sequences
    return _packs(plan) or (lengths is not None and lengths.batching == "padding_free")


def _notes(plan: Plan) -> Iterator[str]:
    if ms_swift.stage(plan) == "pt":
        yield "Training starts from the published weights: ms-swift has no random ones"
    else:
        yield from trainer.padded(plan, "max_length")


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what ms-swift does not support, in addition to limits of the Trainer."""
    model = plan.model
    if model.vision is not None or model.model_type not in TEMPLATES:
        what, need = "ms-swift is written for other families of models", " or ".join(TEMPLATES)
        yield Problem(what, field="model_type", got=model.model_type, need=need)
    if _without_padding(plan) and deepspeed.attention(plan) == "eager":
        what = "ms-swift puts sequences into one row for flash attention alone"
        yield Problem(what, field="attention", got="eager", hint="--target llamafactory")
    if plan.training.loads_its_own:
        what, need = "ms-swift goes on from one checkpoint, which is named", "FOLDER/checkpoint-STEP"
        yield Problem(what, field="training.load", got=plan.training.load, need=need)
    yield from refusals.data_problems(plan, "ms-swift")


TARGET = Target(
    name=NAME,
    does="ms-swift's YAML for `swift pt`, `sft` and `rlhf` (DPO, KTO, CPO and more, rewards), "
    "the DeepSpeed JSON, launch.sh",
    variables=variables,
    texts=texts,
    assumes={"backend": "deepspeed"},
    tasks=PLAIN,
    compares=COMPARES,
    counts=counting.STEPS,
    ignored_fields={
        **ms_swift.IGNORED_FIELDS,
        "manual_gc_interval": "ms-swift with a Trainer leaves garbage collection to Python",
    },
)

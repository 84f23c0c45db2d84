"""Target bridge: Megatron-Bridge's configuration as YAML and as overrides, and a train.py; LoRA, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.sections import Position
from symconfig.errors import InfeasibleError, Problem
from symconfig.formats.bridge import BRIDGE, RECIPES, SECTIONS
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import adapters, environment, flags
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.bridge import BRIDGE_MEGATRON, BRIDGE_RELEASE, fuses_rotations
from symconfig.plans.plan import Plan
from symconfig.render import bridge_model, going_on, megatron, preflight, summary
from symconfig.render.files import File, sh
from symconfig.render.refused import refused
from symconfig.render.target import Target
from symconfig.render.unsaid import Saving
from symconfig.render.weights import fine_tuned, hf_weights

# Of megatron-bridge 0.3.1, training/config.py: Hydra's overrides, which come last.
Sections = dict[str, dict[str, Any]]
PRETRAINED = "pretrained"  # the folder of a converted checkpoint where the job names none


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with all that cannot be expressed, InputError."""
    config, target, model = sections(plan), version(plan), plan.model
    module, name = bridge_model.provider(model)
    activation_module, activation = bridge_model.ACTIVATIONS[model.hidden_act]
    targets = adapters.targets(model)
    return {
        "framework": f"Megatron-Bridge {BRIDGE_RELEASE} on Megatron-LM {target}",
        "version": target,
        "release": BRIDGE_RELEASE,
        "config": config,
        "variables": environment.variables(plan, target),
        "wants": preflight.wants(plan),
        "notes": tuple(_notes(plan, target)),
        "provider_module": module,
        "provider": name,
        "activation_module": activation_module,
        "activation": activation,
        "variant_spec": bool(model.mixers),
        "own_windows": bridge_model.is_gemma3(model),
        "block_spec": model.experts is not None or model.latent is not None,
        "recipe": RECIPES[plan.best.options.precision],
        "fine_tuned": fine_tuned(plan),
        "adapter_class": targets.kind if targets else None,
        "peft": _peft(plan),
        "pretrained": PRETRAINED,
        "weights": hf_weights(plan),
        "predicted_for": summary.predicted_for(plan, megatron.NAME),
    }


def texts(plan: Plan) -> Iterator[File]:
    """Yield the overrides as a command line of its own would have them."""
    yield File("overrides.txt", " ".join(map(sh, words(plan))) + "\n")


def words(plan: Plan) -> list[str]:
    """Return the overrides, for a script that adds them to a recipe of its own. Raises as `variables`."""
    return overrides(sections(plan))


def version(plan: Plan) -> str:
    """Return the release of Megatron-LM whose options Bridge takes: the plan's, where Bridge goes with it."""
    planned = megatron.version(plan)
    return planned if planned in map(flags.resolve, BRIDGE_MEGATRON) else flags.resolve(BRIDGE_MEGATRON[-1])


def sections(plan: Plan) -> Sections:
    """Return the overrides by section, of the options that Megatron-LM itself would get. Raises InfeasibleError with
    all that Bridge cannot express.
    """
    problems, target = list(_refused(plan)), version(plan)
    try:
        groups = megatron.groups_at(replace(plan, model=bridge_model.plain(plan.model)), target)
    except InfeasibleError as error:
        raise InfeasibleError((*error.problems, *problems)) from None
    options = (option for group in groups for option in group.options)
    given, unknown = BRIDGE.write(options, flags.flags(target))
    if problems := [*problems, *unknown]:
        raise InfeasibleError(problems)
    fields = {**_defaults(plan), **given, **_always(plan)}
    split = [(path.partition("."), value) for path, value in fields.items()]
    by_section = {section: {name: value for (of, _, name), value in split if of == section} for section in SECTIONS}
    return {section: named for section, named in by_section.items() if named}


def _defaults(plan: Plan) -> dict[str, Any]:
    """Return what Megatron-LM's parser assumes and Bridge's classes do not; an option overrides it."""
    best, model = plan.best, plan.model
    fields: dict[str, Any] = {
        "model.apply_rope_fusion": fuses_rotations(model),
        "model.bias_dropout_fusion": True,
        "model.persist_layer_norm": True,
        "model.cross_entropy_loss_fusion": False,
        "model.overlap_p2p_comm": False,
        "mixed_precision.fp8_param_gather": False,
        "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False,
    }
    if best.options.precision == "fp8":
        fields["mixed_precision.first_last_layers_bf16"] = False
    if model.experts is not None:
        fields["model.moe_layer_freq"] = [1] * model.num_hidden_layers
    if model.sliding_window is not None and any(model.sliding_layers):
        fields["model.window_attn_skip_freq"] = None
    return fields


def _always(plan: Plan) -> dict[str, Any]:
    """Return what other options of Megatron-LM say, or the model by itself."""
    model, best, training = plan.model, plan.best, plan.training
    overlapped = best.parallel.vpp > 1 and (best.options.overlap.pp_p2p or best.parallel.pp <= 2)
    gelu = model.hidden_act in ("gelu", "gelu_tanh") and not model.gated_mlp
    fields: dict[str, Any] = {
        # used as it stands, and not padded (training/setup.py)
        "model.vocab_size": MEGATRON.padded_vocab(model.vocab_size, best.parallel.tp),
        "model.share_embeddings_and_output_weights": model.tie_word_embeddings,
        "model.gated_linear_unit": model.gated_mlp,
        "model.bias_activation_fusion": (model.hidden_act != "relu2" and not gelu)
        or (model.hidden_act == "gelu_tanh" and model.mlp_bias),
        "model.overlap_p2p_comm": overlapped,
        "model.batch_p2p_comm": not overlapped,
        **{f"model.{name}": value for name, value in bridge_model.fields(model).items()},
        "optimizer.use_distributed_optimizer": best.options.zero_stage >= 1,
        "ddp.use_distributed_optimizer": best.options.zero_stage >= 1,
        "scheduler.start_weight_decay": training.weight_decay,
        "scheduler.end_weight_decay": training.weight_decay,
        "mixed_precision.grad_reduce_in_fp32": best.options.grad_bytes == 4,
    }
    if fine_tuned(plan):
        fields["checkpoint.pretrained_checkpoint"] = PRETRAINED
        if best.parallel.cp > 1:  # some ranks may have no token of a loss (training/config.py, validate)
            fields |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    return fields


def _peft(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the adapters' class. They are no overrides: Bridge takes an object that can be called for
    none (training/utils/omegaconf_utils.py, _is_omegaconf_problematic).
    """
    adapter, targets = plan.model.adapter, adapters.targets(plan.model)
    if adapter is None or targets is None:
        return {}
    alpha = int(adapter.lora_alpha) if adapter.lora_alpha.is_integer() else adapter.lora_alpha
    return {"target_modules": list(targets.modules), "dim": adapter.r, "alpha": alpha, "dropout": adapter.lora_dropout}


def _refused(plan: Plan) -> Iterator[Problem]:
    """Yield what Bridge cannot express beside what no Megatron can."""
    model, best = plan.model, plan.best
    for _, reason in adapters.refusals(model):
        yield Problem(reason, field="adapter", hint="--backend deepspeed")
    of_adapters = (one for one in refused(plan, megatron.NAME, version(plan)) if one.constraint.asks & {"adapted"})
    yield from (one.problem() for one in of_adapters)
    if model.position is Position.LEARNED and best.batch.seq_length != model.max_position_embeddings:
        what, need = "Megatron-Bridge makes a table of positions as long as the sequence", model.max_position_embeddings
        yield Problem(what, field="seq_length", got=str(best.batch.seq_length), need=str(need))
    if bridge_model.provider(model)[1] == "GPTOSSProvider" and model.hidden_act != "clamped_swiglu":
        what = "Megatron-Bridge has YaRN for latent attention and for models like gpt-oss only"
        yield Problem(what, field="rope_scaling.rope_type", got="yarn")
    if best.target.backend != megatron.NAME:
        what = "the plan was made for DeepSpeed, whose ZeRO and parallelism Megatron-Bridge does not have"
        yield Problem(what, field="backend", got=best.target.backend, hint="symconfig plan --backend megatron")


def overrides(config: Sections) -> list[str]:
    """Return the sections as overrides on a command line, in Hydra's grammar."""
    return [f"{section}.{name}={_hydra(value)}" for section, fields in config.items() for name, value in fields.items()]


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if not isinstance(value, str):
        return repr(value)
    if value.replace("_", "").isalnum() and not value[0].isdigit() and value not in ("null", "true", "false"):
        return value
    # Backslashes are doubled before a quote, and only there (hydra-core 1.3.2, OverrideLexer.g4: QUOTED_VALUE).
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), value) + "'"


def _notes(plan: Plan, target: str) -> Iterator[str]:
    yield from (note for note in megatron.notes(plan) if "pretrain_gpt.py" not in note)
    planned = megatron.version(plan)
    if planned != target:
        yield (
            f"The plan was made for Megatron-LM {planned}; Megatron-Bridge {BRIDGE_RELEASE} goes with "
            f"{target}, as whose options these are written: symconfig plan --megatron-version {target} "
            "plans for it"
        )
    if plan.model.adapter is not None:
        yield "Adapters are Megatron-Bridge's, each of two parallel layers beside a frozen one"
    if fine_tuned(plan):
        weights = hf_weights(plan)
        start = "The weights that it starts from are a Megatron checkpoint in PRETRAINED_CHECKPOINT"
        yield f"{start} (default: {PRETRAINED}). " + (
            "HF_WEIGHTS names Hugging Face weights, of which launch.sh then makes it"
            if weights is None
            else f"Where there is none, launch.sh makes it of {weights}, or of what HF_WEIGHTS names, on the first node"
        )
        # FinetuningDatasetConfig without packed_sequence_specs (data/samplers.py, data/datasets/sft.py)
        yield (
            "Examples of a folder with training.jsonl are neither packed nor padded to seq_length, but to the "
            "longest of a data-parallel rank's share of a step: the prediction, for full sequences, is an "
            "upper bound of time and memory, and counts more tokens than a step then has"
        )


TARGET = Target(
    name="bridge",
    does="Megatron-Bridge's YAML, its overrides as a command line, train.py; adapters, too",
    variables=variables,
    texts=texts,
    assumes={"backend": "megatron", "megatron_version": BRIDGE_MEGATRON[-1]},
    counts=counting.MEGATRON,
    goes_on=going_on.translated(
        {
            "--load": "checkpoint.load={}",
            "--override-opt_param-scheduler": "scheduler.override_opt_param_scheduler=true",
            "--no-load-optim": "checkpoint.load_optim=false",
            "--no-load-rng": "checkpoint.load_rng=false",
            "--ddp-bucket-size": "ddp.bucket_size={}",
        }
    ),
    saving=Saving("checkpoint.save", "bash launch.sh checkpoint.save=DIR"),
)

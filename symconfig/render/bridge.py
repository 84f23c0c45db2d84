"""Target bridge: Megatron-Bridge's configuration as YAML and as overrides, and a train.py; LoRA, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm, Position
from symconfig.errors import InfeasibleError, Problem
from symconfig.format import nested
from symconfig.formats.megatron import LLAMA3_FIXED, MLA_FIXED
from symconfig.formats.renamed import BRIDGE, RECIPES, SECTIONS
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import adapters, environment, flags
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.releases import BRIDGE_MEGATRON, BRIDGE_RELEASE, fuses_rotations
from symconfig.plans.plan import Plan
from symconfig.render import megatron, shared
from symconfig.render.files import File, sh
from symconfig.render.shared import MEGATRON_COUNTING, fine_tuned, hf_weights, refused
from symconfig.render.target import Saving, Target, translated

# Of megatron-bridge 0.3.1, training/config.py: Hydra's overrides, which come last.
Sections = dict[str, dict[str, Any]]
PRETRAINED = "pretrained"  # the folder of a converted checkpoint where the job names none


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables: config, environment, the provider's and activation's module and name, adapter,
    weights. Raises InfeasibleError with all that cannot be expressed, InputError for bad values.
    """
    config, target, model = sections(plan), version(plan), plan.model
    module, name = provider(model)
    activation_module, activation = ACTIVATIONS[model.hidden_act]
    targets, adapter, peft = adapters.targets(model), model.adapter, dict[str, Any]()
    if adapter is not None and targets is not None:  # of the adapter's class; such an object is no override
        alpha = int(adapter.lora_alpha) if adapter.lora_alpha.is_integer() else adapter.lora_alpha
        peft = {"target_modules": list(targets.modules), "dim": adapter.r, "alpha": alpha}
        peft |= {"dropout": adapter.lora_dropout}
    return {
        "framework": f"Megatron-Bridge {BRIDGE_RELEASE} on Megatron-LM {target}",
        "release": BRIDGE_RELEASE,
        "config": config,
        "variables": environment.variables(plan, target),
        "wants": shared.modules_wanted(plan),
        "notes": tuple(_notes(plan, target)),
        "provider_module": module,
        "provider": name,
        "activation_module": activation_module,
        "activation": activation,
        "variant_spec": bool(model.mixers),
        "own_windows": is_gemma3(model),
        "block_spec": model.experts is not None or model.latent is not None,
        "recipe": RECIPES[plan.best.configuration.precision],
        "fine_tuned": fine_tuned(plan),
        "adapter_class": targets.kind if targets else None,
        "peft": peft,
        "pretrained": PRETRAINED,
        "weights": hf_weights(plan),
    }


def words(plan: Plan) -> list[str]:
    """Return the overrides as words, for a script with its own recipe. Raises as `variables`."""
    return overrides(sections(plan))


def version(plan: Plan) -> str:
    """Return the Megatron-LM release whose options are written: the plan's if Bridge supports it, else the newest that
    it does.
    """
    planned = megatron.version(plan)
    return planned if planned in map(flags.resolve, BRIDGE_MEGATRON) else flags.resolve(BRIDGE_MEGATRON[-1])


def sections(plan: Plan) -> Sections:
    """Return {section: {field: value}} of Bridge's configuration; sections without fields are left out.

    Megatron-LM's options are translated; they override Bridge's defaults (`_defaults`), `_always` overrides them.
    Raises InfeasibleError with all that Megatron-LM's options or Bridge lack, InputError as `megatron.groups_at`.
    """
    problems, target = list(_refused(plan)), version(plan)
    try:
        groups = megatron.groups_at(replace(plan, model=plain(plan.model)), target)
    except InfeasibleError as error:
        raise InfeasibleError((*error.problems, *problems)) from None
    options = (option for group in groups for option in group.options)
    given, unknown = BRIDGE.write(options, flags.flags(target))
    if problems := [*problems, *unknown]:
        raise InfeasibleError(problems)
    fields = {**_defaults(plan), **given, **_always(plan)}
    by_section = nested(fields)
    return {section: by_section[section] for section in SECTIONS if section in by_section}


def _defaults(plan: Plan) -> dict[str, Any]:
    """Return {"section.field": value} with the defaults of Megatron-LM's parser where Bridge's differ; translated
    options override them.

    With fp8 also first and last layers in fp8, with experts a list of layers with experts (all), with windows on some
    layers window_attn_skip_freq None.
    """
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
    if best.configuration.fp8_attention:
        fields["mixed_precision.fp8_dot_product_attention"] = True
    if best.configuration.precision == "fp8":
        fields["mixed_precision.first_last_layers_bf16"] = False
    if model.experts is not None:
        fields["model.moe_layer_freq"] = [1] * model.num_hidden_layers
    if model.sliding_window is not None and any(model.sliding_layers):
        fields["model.window_attn_skip_freq"] = None
    return fields


def _always(plan: Plan) -> dict[str, Any]:
    """Return {"section.field": value} of what Bridge derives or has instead of options; these override translated
    options.

    Padded vocabulary, tied embeddings, gate, fusions, p2p overlap (vpp > 1, and pp_p2p or pp <= 2; else batched),
    `model_fields`, distributed optimizer (ZeRO >= 1), weight decay, fp32 gradients. Fine-tuning adds the pretrained
    checkpoint, and with cp > 1 the loss per token.
    """
    model, best, training = plan.model, plan.best, plan.training
    overlapped = best.configuration.vpp > 1 and (best.configuration.overlap_pp_p2p or best.configuration.pp <= 2)
    gelu = model.hidden_act in ("gelu", "gelu_tanh") and not model.gated_mlp
    fields: dict[str, Any] = {
        # used as it stands, and not padded (training/setup.py)
        "model.vocab_size": MEGATRON.padded_vocab(model.vocab_size, best.configuration.tp),
        "model.share_embeddings_and_output_weights": model.tie_word_embeddings,
        "model.gated_linear_unit": model.gated_mlp,
        "model.bias_activation_fusion": (model.hidden_act != "relu2" and not gelu)
        or (model.hidden_act == "gelu_tanh" and model.mlp_bias),
        "model.overlap_p2p_comm": overlapped,
        "model.batch_p2p_comm": not overlapped,
        **{f"model.{name}": value for name, value in model_fields(model).items()},
        "optimizer.use_distributed_optimizer": best.configuration.zero_stage >= 1,
        "ddp.use_distributed_optimizer": best.configuration.zero_stage >= 1,
        "scheduler.start_weight_decay": training.weight_decay,
        "scheduler.end_weight_decay": training.weight_decay,
        "mixed_precision.grad_reduce_in_fp32": best.configuration.grad_bytes == 4,
    }
    if fine_tuned(plan):
        fields["checkpoint.pretrained_checkpoint"] = PRETRAINED
        if best.configuration.cp > 1:  # some ranks may have no token of a loss (training/config.py, validate)
            fields |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    return fields


def _refused(plan: Plan) -> Iterator[Problem]:
    """Yield what Bridge cannot express, in addition to what Megatron-LM's options cannot. These are adapters it lacks,
    constraints of Megatron-LM on adapters, learned positions of another length than the sequence, YaRN outside MLA and
    gpt-oss, and plans for another backend than Megatron.
    """
    model, best = plan.model, plan.best
    for reason in adapters.refusals(model):
        yield Problem(reason, field="adapter", hint="--backend deepspeed")
    failed = refused(plan, megatron.NAME, version(plan))
    yield from (problem for constraint, problem in failed.items() if "adapted" in constraint.asks)
    if model.position is Position.LEARNED and best.configuration.seq_length != model.max_position_embeddings:
        what, need = "Megatron-Bridge makes a table of positions as long as the sequence", model.max_position_embeddings
        yield Problem(what, field="seq_length", got=str(best.configuration.seq_length), need=str(need))
    if provider(model)[1] == "GPTOSSProvider" and model.hidden_act != "clamped_swiglu":
        what = "Megatron-Bridge has YaRN for latent attention and for models like gpt-oss only"
        yield Problem(what, field="rope_scaling.rope_type", got="yarn")
    if best.target.backend != megatron.NAME:
        what = (
            f"the plan was made for {BACKENDS[best.target.backend].label}, whose sharding Megatron-Bridge does not have"
        )
        yield Problem(what, field="backend", got=best.target.backend, hint="symconfig plan --backend megatron")


def overrides(config: Sections) -> list[str]:
    """Return the fields as section.name=value words in Hydra's grammar."""
    return [f"{section}.{name}={_hydra(value)}" for section, fields in config.items() for name, value in fields.items()]


def _hydra(value: Any) -> str:
    """Return a value in Hydra's grammar: null, true/false, [a,b], numbers by repr, text bare or in single quotes. Text
    is bare if it has only letters, digits and underscores, begins with no digit, and is not null, true or false.
    """
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
    """Yield Megatron-LM's notes; one if the plan's release is not `target`, the Megatron-LM release that is written
    for; one for adapters; and for fine-tuning one on the weights to start from and one on padding.
    """
    yield from megatron.notes(plan)
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


# The activation of Megatron-Core's MLP, as (module, name); gates are told apart from it.
ACTIVATIONS = {
    "silu": ("torch.nn.functional", "silu"), "gelu": ("torch.nn.functional", "gelu"),
    "gelu_tanh": ("torch.nn.functional", "gelu"), "relu": ("torch.nn.functional", "relu"),
    "gelu_sigmoid": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
    "relu2": ("megatron.core.activations", "squared_relu"),
    "clamped_swiglu": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
}  # fmt: skip


def provider(model: ModelDescriptor) -> tuple[str, str]:
    """Return (module, class) of Bridge's configuration: Gemma 3's, MLA's, gpt-oss's for YaRN outside
    MLA, else GPT's.
    """
    if is_gemma3(model):
        return "megatron.bridge.models.gemma.gemma3_provider", "Gemma3ModelProvider"
    if model.latent is not None:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if _scaling(model) == "yarn":
        return "megatron.bridge.models.gpt_oss.gpt_oss_provider", "GPTOSSProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


def _scaling(model: ModelDescriptor) -> str | None:
    return model.rope_scaling.rope_type if model.rope_scaling is not None else None


def is_gemma3(model: ModelDescriptor) -> bool:
    """Return whether the model has all of Gemma 3's features, for which Gemma3ModelProvider is needed. These are
    RMSNorm before and after each sublayer, scaled embeddings, qk_norm, a local rope base, a repeated window pattern,
    and no or linear rope scaling; never with experts, MLA, adapters or other mixers.
    """
    return (
        model.norm_before_sublayer
        and model.norm_after_sublayer
        and model.scale_embeddings
        and model.norm is Norm.RMSNORM
        and model.qk_norm
        and model.rope_local_base_freq is not None
        and _windows(model) is not None
        and _scaling(model) in (None, "linear")
        and not (model.experts or model.latent or model.adapter or model.mixers)
    )


def _windows(model: ModelDescriptor) -> int | None:
    """Return n if the pattern repeats n layers with a window and one without (the last repeat may be cut), else None.
    None also without windows, or if no layer or every layer has one.
    """
    listed = model.sliding_layers
    if model.sliding_window is None or all(listed) or not any(listed):
        return None
    local = listed.index(False)
    return local if all(window == ((place + 1) % (local + 1) != 0) for place, window in enumerate(listed)) else None


def plain(model: ModelDescriptor) -> ModelDescriptor:
    """Return a copy of the model without what `model_fields` or `_always` sets, so that Megatron-LM's options express
    the rest.

    Removed are Gemma 3's norms, scale and local base, linear scaling and YaRN outside MLA, and the softmax scale
    outside MLA; Llama 3's factor and MLA's YaRN numbers become the fixed ones; gated GELU (tanh) without experts
    becomes SiLU.
    """
    update: dict[str, object] = {}
    if is_gemma3(model):
        update = {"norm_after_sublayer": False, "scale_embeddings": False, "rope_local_base_freq": None}
    rope, kind = model.rope_scaling, _scaling(model)
    fixed = MLA_FIXED if model.latent is not None else {"factor": LLAMA3_FIXED["factor"]}
    if rope is not None and kind == ("yarn" if model.latent is not None else "llama3"):
        update["rope_scaling"] = rope.model_copy(update=fixed)
    elif model.latent is None and kind in ("linear", "yarn"):
        update["rope_scaling"] = None
    if model.latent is None:
        update["query_pre_attn_scalar"] = None
    # Whether an MLP's gate is GELU's tanh form, which is what the fused kernel of a gated GELU computes (megatron-core
    # 0.16.1, fusions/fused_bias_geglu.py): there is no option for it, but a field.
    if model.hidden_act == "gelu_tanh" and model.gated_mlp and model.experts is None:
        update["hidden_act"] = "silu"
    return model.model_copy(update=update)


def model_fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return {name: value} of the fields in Bridge's section `model` that no option sets: softmax scale (not with MLA),
    rope scaling, Gemma 3's windows and bases.

    YaRN's missing numbers get defaults (outside MLA 4096 positions, betas 32 and 1). {} if nothing applies.
    """
    result: dict[str, Any] = {}
    if model.latent is None and model.query_pre_attn_scalar is not None:
        result["softmax_scale"] = model.query_pre_attn_scalar**-0.5
    rope, kind = model.rope_scaling, _scaling(model)
    if rope is not None and model.latent is not None:
        if kind == "yarn":
            result |= {name: getattr(rope, name) or usual for name, usual in MLA_FIXED.items()}
    elif rope is not None and kind == "llama3":
        result["rope_scaling_factor"] = rope.factor
    elif rope is not None and kind == "linear":
        result["seq_len_interpolation_factor"] = rope.factor
    elif rope is not None:
        result |= {
            "position_embedding_type": "yarn",
            "yarn_rotary_scaling_factor": rope.factor,
            "yarn_original_max_position_embeddings": rope.original_max_position_embeddings or 4096,
            "yarn_beta_fast": rope.beta_fast or 32.0,
            "yarn_beta_slow": rope.beta_slow or 1.0,
            "yarn_mscale": rope.mscale,
            "yarn_mscale_all_dim": rope.mscale_all_dim,
            "yarn_correction_range_round_to_int": rope.truncate is not False,
        }
    if is_gemma3(model):
        result |= {  # a pair of bases, a window's keys beside the query's own, the scaling of layers without a window
            "rotary_base": [model.rope_local_base_freq, model.rope_theta],
            "rope_scaling_factor": 1.0 if rope is None else rope.factor,
            "seq_len_interpolation_factor": None,
            "window_size": (model.sliding_window or 1) - 1,
            "window_attn_skip_freq": None,
            "interleaved_attn_pattern": [_windows(model), 1],
        }
    return result


TARGETS = (
    Target(
        name="bridge",
        does="Megatron-Bridge's YAML, its overrides as a command line, train.py; adapters, too",
        variables=variables,
        words=words,
        texts=lambda plan: (File("overrides.txt", " ".join(map(sh, words(plan))) + "\n"),),
        assumes={"backend": "megatron", "megatron_version": BRIDGE_MEGATRON[-1]},
        counts=MEGATRON_COUNTING,
        resume_command=translated(
            {
                "--load": "checkpoint.load={}",
                "--override-opt_param-scheduler": "scheduler.override_opt_param_scheduler=true",
                "--no-load-optim": "checkpoint.load_optim=false",
                "--no-load-rng": "checkpoint.load_rng=false",
                "--ddp-bucket-size": "ddp.bucket_size={}",
            }
        ),
        saving=Saving("checkpoint.save", "bash launch.sh checkpoint.save=DIR"),
    ),
)

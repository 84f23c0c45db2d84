"""Plan -> the sections of Megatron-Bridge's ConfigContainer, from the options that Megatron-LM itself would get."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.megatron import adapters, flags
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.bridge import BRIDGE_MEGATRON, fuses_rotations
from symconfig.frameworks.megatron.hybrid import DELTA
from symconfig.plans.plan import Plan
from symconfig.render import bridge_gemma, bridge_rope, megatron
from symconfig.render.bridge_fields import LISTS, PATHS, SAID_OTHERWISE, UNSAYABLE
from symconfig.render.refused import refused
from symconfig.render.weights import fine_tuned

Sections = dict[str, dict[str, Any]]

# Names of Bridge's mixed-precision recipes (training/mixed_precision.py).
RECIPES = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
ORDER = (
    "model",
    "train",
    "optimizer",
    "scheduler",
    "ddp",
    "dist",
    "mixed_precision",
    "tokenizer",
    "rng",
    "logger",
    "checkpoint",
)
_READ = {"int": int, "float": float}
PRETRAINED = "pretrained"  # the folder of a converted checkpoint where the job names none


def version(plan: Plan) -> str:
    """Return the release of Megatron-LM whose options Bridge takes: the plan's, where Bridge goes with it."""
    planned = megatron.version(plan)
    return planned if planned in map(flags.resolve, BRIDGE_MEGATRON) else flags.resolve(BRIDGE_MEGATRON[-1])


def provider(model: ModelDescriptor) -> tuple[str, str]:
    """Return (module, class) of the model's configuration."""
    if bridge_gemma.fits(model):
        return bridge_gemma.PROVIDER
    if model.latent is not None:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if bridge_rope.is_yarn(model):
        return "megatron.bridge.models.gpt_oss.gpt_oss_provider", "GPTOSSProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


def sections(plan: Plan) -> Sections:
    """Return everything that Bridge is told, by section. Raises InfeasibleError with all that it cannot be told."""
    fields: dict[str, Any] = {}
    problems = list(_refused(plan))
    try:
        options = [option for group in megatron.groups_at(_plain(plan), version(plan)) for option in group.options]
    except InfeasibleError as error:
        raise InfeasibleError((*error.problems, *problems)) from None
    table = flags.flags(version(plan)).flags
    for option in options:
        name, joined, value = option[0].partition("=")
        flag, words = table[name], [value] if joined else list(option[1:])
        if flag.dest in SAID_OTHERWISE:
            continue
        if flag.dest not in PATHS:
            why = UNSAYABLE.get(flag.dest)
            what = f"Megatron-Bridge: {why}" if why else "Megatron-Bridge has no field for it"
            problems.append(
                Problem(
                    what, field="optimizer" if why else name, got=" ".join((name, *words) if why else words) or None
                )
            )
            continue
        fields |= dict.fromkeys(PATHS[flag.dest], _value(flag, words))
    if problems:
        raise InfeasibleError(problems)
    return _by_section({**_defaults(plan), **fields, **_always(plan)})


def _plain(plan: Plan) -> Plan:
    """Return the plan without what Bridge is told in other words than Megatron-LM's."""
    model = bridge_rope.plain(bridge_gemma.plain(plan.model))
    if model.latent is None:
        model = model.model_copy(update={"query_pre_attn_scalar": None})
    # Whether an MLP's gate is GELU's tanh form, which is what the fused kernel of a gated GELU computes (megatron-core
    # 0.16.1, fusions/fused_bias_geglu.py): there is no option for it, but a field.
    if model.hidden_act == "gelu_tanh" and model.gated_mlp and model.experts is None:
        model = model.model_copy(update={"hidden_act": "silu"})
    return plan if model == plan.model else replace(plan, model=model)


def _value(flag: flags.Flag, words: list[str]) -> Any:
    if flag.kind in ("true", "false"):
        return flag.kind == "true"
    read = _READ.get(flag.type or "", str)
    values = [read(word) for word in words]
    return values if flag.dest in LISTS and flag.nargs is not None else values[0]


def _by_section(fields: dict[str, Any]) -> Sections:
    result: Sections = {}
    for section in ORDER:
        mine = {path.partition(".")[2]: value for path, value in fields.items() if path.startswith(f"{section}.")}
        if mine:
            result[section] = mine
    return result


def _defaults(plan: Plan) -> dict[str, Any]:
    """Return what Megatron-LM's parser assumes and Bridge's classes do not; an option overrides it."""
    best = plan.best
    return {
        "model.apply_rope_fusion": fuses_rotations(plan.model),
        "model.bias_dropout_fusion": True,
        "model.persist_layer_norm": True,
        "model.cross_entropy_loss_fusion": False,
        "model.overlap_p2p_comm": best.parallel.vpp > 1,
        "mixed_precision.fp8_param_gather": False,
        **({"mixed_precision.first_last_layers_bf16": False} if best.options.precision == "fp8" else {}),
        "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False,
    }


def _always(plan: Plan) -> dict[str, Any]:
    """Return what other options of Megatron-LM say, or the model by itself."""
    model, best, training = plan.model, plan.best, plan.training
    rows = MEGATRON.padded_vocab(model.vocab_size, best.parallel.tp)
    gelu = model.hidden_act in ("gelu", "gelu_tanh") and not model.gated_mlp
    fields: dict[str, Any] = {
        "model.vocab_size": rows,  # used as it stands, and not padded (training/setup.py)
        "model.share_embeddings_and_output_weights": model.tie_word_embeddings,
        "model.gated_linear_unit": model.gated_mlp,
        "model.bias_activation_fusion": (model.hidden_act != "relu2" and not gelu)
        or (model.hidden_act == "gelu_tanh" and model.mlp_bias),
        "optimizer.use_distributed_optimizer": best.options.zero_stage >= 1,
        "ddp.use_distributed_optimizer": best.options.zero_stage >= 1,
        "scheduler.start_weight_decay": training.weight_decay,
        "scheduler.end_weight_decay": training.weight_decay,
        "mixed_precision.grad_reduce_in_fp32": best.options.grad_bytes == 4,
    }
    overlapped = best.parallel.vpp > 1 and (best.options.overlap.pp_p2p or best.parallel.pp <= 2)
    fields |= {"model.overlap_p2p_comm": overlapped, "model.batch_p2p_comm": not overlapped}
    if model.experts is not None:
        fields["model.moe_layer_freq"] = [int(moe) for moe in model.moe_layers]
    if model.sliding_window is not None and any(model.sliding_layers):
        fields["model.window_size"] = [model.sliding_window - 1, 0]
        fields["model.window_attn_skip_freq"] = None if all(model.sliding_layers) else [*map(int, model.sliding_layers)]
    if model.rope_layers is not None and not all(model.rope_layers):
        fields["model.no_rope_freq"] = [int(not turned) for turned in model.rope_layers]
    if model.mixers:
        fields["model.linear_attention_freq"] = [int(kind.mixer == DELTA) for kind in model.kind_of_layer]
    if model.latent is None and model.query_pre_attn_scalar is not None:
        fields["model.softmax_scale"] = model.query_pre_attn_scalar**-0.5
    for own in (bridge_rope.fields(model), bridge_gemma.fields(model)):
        fields |= {f"model.{name}": value for name, value in own.items()}
    if fine_tuned(plan):
        fields["checkpoint.pretrained_checkpoint"] = PRETRAINED
        if best.parallel.cp > 1:  # some ranks may have no token of a loss (training/config.py, validate)
            fields |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    return fields


def peft(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the adapters' class. They are no overrides: Bridge takes an object that can be called for
    none (training/utils/omegaconf_utils.py, _is_omegaconf_problematic).
    """
    adapter, targets = plan.model.adapter, adapters.targets(plan.model)
    if adapter is None or targets is None:
        return {}
    alpha = int(adapter.lora_alpha) if adapter.lora_alpha.is_integer() else adapter.lora_alpha
    return {"target_modules": list(targets.modules), "dim": adapter.r, "alpha": alpha, "dropout": adapter.lora_dropout}


def _refused(plan: Plan) -> Iterator[Problem]:
    """Yield what Bridge cannot be told beside what no Megatron can."""
    model, best = plan.model, plan.best
    for _, reason in adapters.refusals(model):
        yield Problem(reason, field="adapter", hint="--backend deepspeed")
    of_adapters = (one for one in refused(plan, megatron.NAME, version(plan)) if one.constraint.asks & {"adapted"})
    yield from (one.problem() for one in of_adapters)
    if model.position is Position.LEARNED and best.batch.seq_length != model.max_position_embeddings:
        yield Problem(
            "Megatron-Bridge makes a table of positions as long as the sequence",
            field="seq_length",
            got=str(best.batch.seq_length),
            need=str(model.max_position_embeddings),
        )
    yield from bridge_rope.refused(model)
    if plan.best.target.backend != megatron.NAME:
        yield Problem(
            "the plan was made for DeepSpeed, whose ZeRO and parallelism Megatron-Bridge does not have",
            field="backend",
            got=plan.best.target.backend,
            hint="symconfig plan --backend megatron",
        )


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

"""Target megatron-yaml: the file of Megatron-LM's --yaml-cfg, which stands for all options.

The loader (megatron/training/yaml_arguments.py) has no defaults: the file says every field of TransformerConfig, in one
of two sections, and every other destination of the parser at the top. It fills in little of what validate_args does,
so that the file says what is left after that. Read in core_v0.12.1 to core_v0.19.0 and main.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import environment, flags, hybrid
from symconfig.frameworks.megatron.environment import Variable
from symconfig.plans.plan import Plan
from symconfig.render import going_on, megatron
from symconfig.render.megatron_fields import Field, fields
from symconfig.render.megatron_namespace import namespace
from symconfig.render.unsaid import Saving

NAME = "megatron-yaml"
DOES = "the YAML file of Megatron-LM's --yaml-cfg, with what starts pretrain_gpt.py on it"
ASSUMES = {"backend": "megatron"}
SAVING = Saving(None, "save and save_interval in megatron.yaml")
COUNTS = counting.MEGATRON
SECTIONS = ("language_model", "model_parallel")
LAYER_WISE, LAYER_WISE_SINCE = "use_layer_wise_distributed_optimizer", "core_v0.18.2"
# Attributes that validate_args makes, and the loader does not, with the version that first reads them.
MADE = (
    ("use_dist_ckpt", True, "core_v0.12.1"),
    ("skipped_train_samples", 0, "core_v0.12.1"),
    ("gtp_weight_remat_size", 1, "core_v0.19.0"),
    ("expert_gtp_weight_remat_size", 1, "core_v0.19.0"),
    (LAYER_WISE, False, LAYER_WISE_SINCE),
)
# Set in every process by pretrain_yaml.py, or by the environment.
PER_PROCESS = ("local_rank", "yaml_cfg")

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
PLAIN_SINCE = "core_v0.14.0"  # before, ${NAME} is the environment's
ALLREDUCE = "async_tensor_model_parallel_allreduce"  # a destination until core_v0.16

Values = dict[str, Any]


def goes_on(plan: Plan, words: Sequence[str]) -> str:
    """Say which keys a person adds: --yaml-cfg goes without other options."""
    table = flags.flags(megatron.version(plan)).flags
    lines = (f"{table[name].dest}: {value or 'true'}" for name, value in going_on.options(words).items())
    return f"bash launch.sh, with {', '.join(lines)} in megatron.yaml"


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError with all that the file cannot say, InputError."""
    values = megatron.variables(plan)
    data = document(plan)
    exported: tuple[Variable, ...] = environment.variables(plan, megatron.version(plan))
    if one_connection(plan) and not any(item.name == CONNECTIONS for item in exported):
        exported = (
            *exported,
            Variable(
                CONNECTIONS,
                "1",
                "The loader of --yaml-cfg insists on it, on every GPU",
                "megatron/training/yaml_arguments.py, validate_yaml",
                forced=True,
            ),
        )
    chosen = {option[0].partition("=")[0] for group in megatron.groups(plan) for option in group.options}
    table = flags.flags(megatron.version(plan))
    dests = {table.flags[name].dest for name in chosen}
    top = {name: value for name, value in data.items() if name not in SECTIONS}
    return {
        **values,
        "variables": exported,
        "sections": {name: data[name] for name in SECTIONS},
        "chosen": {name: value for name, value in top.items() if name in dests},
        "defaults": {name: value for name, value in top.items() if name not in dests},
    }


def document(plan: Plan) -> Values:
    """Return the file as data. Raises InfeasibleError with all that it cannot say, InputError."""
    table = flags.flags(megatron.version(plan))
    args = namespace(table, megatron.groups(plan))
    declared = fields(table.version)
    if problems := list(_unsayable(plan, args, declared)):
        raise InfeasibleError(problems)
    _validated(plan, args)
    renamed = _renamed(args)
    sections: dict[str, Values] = {name: {} for name in reversed(SECTIONS)}
    for item in declared:
        if item.section in sections and not any(item.name in section for section in sections.values()):
            sections[item.section][item.name] = renamed.get(item.name, args.get(item.name, item.default))
    sections["language_model"]["bias_swiglu_fusion"] = args["bias_swiglu_fusion"]
    inside = {name for section in sections.values() for name in section}
    top = {name: value for name, value in sorted(args.items()) if name not in inside and name not in PER_PROCESS}
    made = {name: value for name, value, since in MADE if table.at_least(since) and name not in inside | args.keys()}
    return {**{name: sections[name] for name in SECTIONS}, **top, **made}


def one_connection(plan: Plan) -> bool:
    """Tell whether the loader insists on CUDA_DEVICE_MAX_CONNECTIONS=1."""
    asynchronous = flags.flags(megatron.version(plan)).at_least("core_v0.17.1")
    return plan.best.parallel.tp > 1 and (plan.best.options.sequence_parallel or not asynchronous)


def _validated(plan: Plan, args: Values) -> None:
    """Set what validate_args would change, of all that the loader leaves as it is."""
    model, parallel = plan.model, plan.best.parallel
    args["add_qkv_bias"] = args["add_qkv_bias"] or args["add_bias_linear"]
    args["bias_gelu_fusion"] = args["bias_gelu_fusion"] and args["add_bias_linear"]
    args["apply_rope_fusion"] = args["apply_rope_fusion"] and args["position_embedding_type"] == "rope"
    if args["num_experts"] is not None:
        _fill(args, "moe_ffn_hidden_size", args["ffn_hidden_size"])
    for name, layers in (
        ("moe_layer_freq", model.moe_layers),
        ("window_attn_skip_freq", model.sliding_layers),
        ("no_rope_freq", [not turned for turned in model.rope_layers or ()]),
        ("linear_attention_freq", [kind.mixer == hybrid.DELTA for kind in model.kind_of_layer]),
    ):
        if isinstance(args.get(name), str):  # a pattern, which the parser evaluates
            args[name] = [int(layer) for layer in layers]
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        if isinstance(args.get(name), list) and len(args[name]) == 1:
            (args[name],) = args[name]
    if ALLREDUCE in args and (parallel.tp == 1 or args["sequence_parallel"]):
        args[ALLREDUCE] = False  # there is none, but the loader would ask for its environment
    _fill(args, "expert_tensor_parallel_size", parallel.tp)
    _fill(args, "tensor_parallel_num_weight_shards", parallel.tp)
    _fill(args, "expert_tensor_parallel_num_weight_shards", args["expert_tensor_parallel_size"])
    _fill(args, "inference_cuda_graph_scope", "none")
    if "inprocess_active_world_size" in args:
        args["inprocess_active_world_size"] = parallel.world_size
    if "async_strategy" in args and not args["async_save"]:
        args["async_strategy"] = "mcore"
    if plan.job.optimizer.name == "muon":  # whole matrices for each rank, in the place of parts of a flat buffer
        args[LAYER_WISE], args["use_distributed_optimizer"] = args["use_distributed_optimizer"], False
    if parallel.vpp > 1:
        # The loader reads the one that says layers, and none of the others.
        args["num_layers_per_virtual_pipeline_stage"] = model.num_hidden_layers // (parallel.pp * parallel.vpp)
        args["num_virtual_stages_per_pipeline_rank"] = None
    else:
        args["align_param_gather"] = False


def _fill(args: Values, name: str, value: Any) -> None:
    """Set a value where the version has such a destination, and nothing is said for it."""
    if name in args and args[name] is None:
        args[name] = value


def _renamed(args: Values) -> Values:
    """Return the fields of TransformerConfig that have another name or form than the destination they come from, as
    core_transformer_config_from_args has it.
    """
    fields = {
        "num_moe_experts": args["num_experts"],
        "persist_layer_norm": not args["no_persist_layer_norm"],
        "num_layers_in_first_pipeline_stage": args["decoder_first_pipeline_num_layers"],
        "num_layers_in_last_pipeline_stage": args["decoder_last_pipeline_num_layers"],
        "fp8_param": args["fp8_param_gather"],
        "activation_func": "swiglu" if args["swiglu"] else "squaredrelu" if args["squared_relu"] else "gelu",
        "gated_linear_unit": args["swiglu"],
        "bias_activation_fusion": args["bias_swiglu_fusion" if args["swiglu"] else "bias_gelu_fusion"],
        "num_query_groups": args["num_query_groups"] if args["group_query_attention"] else None,
        "inference_sampling_seed": args["seed"],
        "deallocate_pipeline_outputs": True,
    }
    for field, dest in (("layernorm_epsilon", "norm_epsilon"), ("layernorm_zero_centered_gamma", "apply_layernorm_1p")):
        if dest in args:  # until core_v0.16 the destination had a name of its own
            fields[field] = args[dest]
    if len(args["cp_comm_type"]) == 1:
        fields["cp_comm_type"] = args["cp_comm_type"][0]
    return fields


def _unsayable(plan: Plan, args: Values, declared: tuple[Field, ...]) -> Iterator[Problem]:
    """Yield what the loader has no way to say, or says something else for."""
    parallel, options, model = plan.best.parallel, plan.best.options, plan.model
    if model.latent is not None:
        for item in declared:
            if item.section == "latent" and args.get(item.name, item.default) != item.default:
                yield _refused(
                    item.name,
                    "it fills multi-latent attention from the fields of TransformerConfig alone, "
                    f"so that this one is always {item.default}",
                    args[item.name],
                )
    if hybrid.hybrid(model):
        got = model.mixers[0].block if model.mixers else None
        yield _refused("mixers" if model.mixers else "mlp_layers", "only pretrain_gpt.py reads it", got)
    if parallel.vpp > 1:
        if options.pipeline_layout is not None:
            yield _refused(
                "pipeline_layout",
                "it takes virtual stages only as a number of layers that all of them have",
                options.pipeline_layout,
                ("vpp=1", "layout=equal"),
            )
        elif parallel.pp == 2 or model.num_hidden_layers % (parallel.pp * parallel.vpp):
            yield _refused(
                "vpp",
                "virtual stages need more than two pipeline stages, and as many layers each",
                f"{parallel.vpp} on {parallel.pp} stages of {model.num_hidden_layers} layers",
                ("vpp=1", "pp=3..") if parallel.pp == 2 else ("vpp=1", "layout=equal"),
            )
    table = flags.flags(megatron.version(plan))
    for dest, value in args.items():
        texts = value if isinstance(value, list) else [value]
        if not table.at_least(PLAIN_SINCE) and any(isinstance(text, str) and "${" in text for text in texts):
            yield _refused(dest, "until core_v0.13 its loader puts the environment in", value)
    connections = {item.name: item.value for item in environment.variables(plan, megatron.version(plan))}
    if one_connection(plan) and connections.get(CONNECTIONS, "1") != "1":
        yield _refused(
            "tp",
            f"beside tensor parallelism its loader insists on {CONNECTIONS}=1, and this plan needs "
            f"{connections[CONNECTIONS]}",
            parallel.tp,
            ("tp=1", "sp=0", "moe_overlap=off" if options.overlap.moe_a2a else "zero=..1"),
        )
    if options.precision != "fp16" and options.grad_bytes == 2:
        yield _refused(
            "grad_bytes",
            "it adds up and reduces the gradients of bf16 in fp32",
            options.grad_bytes,
            ("grad_dtype=fp32",),
        )
    if not args["swiglu"] and args.get("quick_geglu"):
        yield _refused("hidden_act", "it knows swiglu, squaredrelu and gelu", model.hidden_act)
    elif not args["swiglu"] and args["bias_gelu_fusion"]:
        yield _refused(
            "hidden_act",
            "with biases it never fuses gelu, and the one that is not fused is the exact one, not the tanh form",
            model.hidden_act,
        )


def _refused(field: str, why: str, got: object, pins: tuple[str, ...] = ()) -> Problem:
    hint = "".join(f"--pin {pin}, " for pin in pins) + "--target megatron or --target model-args"
    return Problem(f"cannot be said in a --yaml-cfg file: {why}", field=field, got=str(got), hint=hint, pins=pins)

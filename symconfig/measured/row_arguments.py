"""What a measured row states beside Megatron-LM's arguments: it stands in for those that it lacks, or is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from symconfig.cost.framework import Hide
from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.measurements import MeasuredModel, Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.behaviour import Switches, switched
from symconfig.frameworks.behaviour import options as choices
from symconfig.frameworks.megatron import mindspeed
from symconfig.frameworks.megatron.behaviour import GRAPHED
from symconfig.frameworks.megatron.flags import Value, defaults, first_with, versions
from symconfig.frameworks.megatron.options import precision
from symconfig.graph.implementation import Kernel
from symconfig.measured.assumptions import OF_FRAMEWORK, SIZES
from symconfig.measured.row_options import RowOptions, attention_of
from symconfig.solve.prospect import Setup

_Names = dict[str, Any]
_RECOMPUTE = ("recompute_granularity", "recompute_activations", "checkpoint_activations", "moe_layer_recompute")
_EXTENT = {
    "full": {"recompute_method": "recompute_method", "recompute_layers": "recompute_num_layers"},
    "selective": {"recompute_modules": "recompute_modules"},
}
_SHARDED = ("use_distributed_optimizer", "use_megatron_fsdp", "use_custom_fsdp")
# Switches of a run that arguments decide, by default, too.
_DECIDED = words(
    """
    accumulated_bytes deferred_gradients dispatcher engine fused_activation fused_rope gathers gradient_bytes graphed
    loss microbatch_group optimizer_instances quantised_weights routing sequential_experts torch_workspace
    vocab_multiple
    """
)
# Options of rows whose value Megatron-LM's argument has, too.
_SAME = {
    "cp_comm": "cp_comm_type",
    "first_layers": "decoder_first_pipeline_num_layers",
    "last_layers": "decoder_last_pipeline_num_layers",
    "layout": "pipeline_model_parallel_layout",
    "microbatch_group": "microbatch_group_size_per_vp_stage",
    "quantised_weights": "fp8_param_gather",
    "sequence_parallel": "sequence_parallel",
    "transformer_impl": "transformer_impl",
    "vocab_multiple": "make_vocab_size_divisible_by",
}
_OVERLAPS = {
    "grad_reduce": "overlap_grad_reduce",
    "param_gather": "overlap_param_gather",
    "tp_comm": "tp_comm_overlap",
    "moe_a2a": "overlap_moe_expert_parallel_comm",
}
_PRECISIONS: Mapping[str, _Names] = {
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "mxfp8": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1"},
}
# Fields of a row's model -> Megatron-LM's arguments, of a value that is not what they have by default.
_MODEL: Mapping[str, Callable[[Any], _Names]] = {
    "intermediate_size": lambda size: {"ffn_hidden_size": size or None},
    "num_key_value_heads": lambda heads: {"num_query_groups": heads, "group_query_attention": True},
    "head_dim": lambda width: {"kv_channels": width},
    "num_experts": lambda number: {"num_experts": number},
    "num_experts_per_tok": lambda number: {"moe_router_topk": number},
    "moe_intermediate_size": lambda size: {"moe_ffn_hidden_size": size},
    "shared_expert_intermediate_size": lambda size: {"moe_shared_expert_intermediate_size": size or None},
    "mtp_num_layers": lambda number: {"mtp_num_layers": number or None},
    "gated_mlp": lambda gated: {"swiglu": True} if gated else {},
    "tie_word_embeddings": lambda tied: {} if tied else {"untie_embeddings_and_output_weights": True},
    "position": lambda kind: {"position_embedding_type": "rope"} if kind == "rope" else {},
    "norm": lambda kind: {"normalization": "RMSNorm"} if kind == "rmsnorm" else {},
}
_OTHER_NAMES = {"first_k_dense": "first_k_dense_replace", "mtp_num_layers": "num_nextn_predict_layers"}
_ANY = object()
_NOT_COMPARED = ("name", "params", "lora", "attention", "vocab_size")


def of_model(names: Mapping[str, Value], stated: MeasuredModel) -> _Names:
    """Return the arguments by destination that a row's model states and `names`, which have its shape, lack."""
    given = stated.model_dump(exclude_none=True)
    if names.get("multi_latent_attention") or given.get("num_key_value_heads") == names.get("num_attention_heads"):
        given.pop("num_key_value_heads", None)
    if names.get("multi_latent_attention") or names.get("squared_relu") or names.get("quick_geglu"):
        given = {name: value for name, value in given.items() if name not in ("head_dim", "gated_mlp")}
    added = dict[str, Any]()
    for name, arguments in _MODEL.items():
        said = arguments(given[name]) if name in given else {}
        if all(names.get(dest) is None for dest in said):
            added |= said
    return added


def of_options(names: Mapping[str, Value], options: RowOptions) -> _Names:
    """Return the arguments by destination that a row's options state and `names` lack; its precision is bf16 if neither
    states one.
    """
    stated, added = options.stated, dict[str, Any]()

    def lacks(*dests: str) -> bool:
        return all(names.get(dest) is None for dest in dests)

    if precision(names) is None:
        added |= _PRECISIONS[options.option("precision", "bf16")]
    kind = str(stated.get("recompute", ""))
    if lacks(*_RECOMPUTE) and (kind == "full" or kind.startswith("selective")):
        added["recompute_granularity"] = "full" if kind == "full" else "selective"
        extent = _EXTENT[added["recompute_granularity"]]
        added |= {dest: stated[name] for name, dest in extent.items() if name in stated and lacks(dest)}
    added |= {dest: stated[name] for name, dest in _SAME.items() if stated.get(name) and lacks(dest)}
    if (stated.get("distributed_optimizer") or stated.get("zero_stage") == 1) and lacks(*_SHARDED):
        added["use_distributed_optimizer"] = True
    overlaps = stated.get("overlap") or {}
    return added | {dest: True for name, dest in _OVERLAPS.items() if overlaps.get(name) and lacks(dest)}


def with_switches(options: RowOptions, names: Mapping[str, Value], c: Setup) -> Setup:
    """Return the configuration of a row's arguments, `names` by destination, with the row's attention kernel, if they
    name none or the same, and with its switches of a kind that no argument decides.
    """
    stated, how = options.stated, dict[str, Any]()
    own = {name: stated[name] for name in OF_FRAMEWORK if name in stated.keys() - _DECIDED}
    if "attention_kernel" in stated:
        kernel, rate = attention_of(str(stated["attention_kernel"]), options.cluster.gpu.architecture)
        same = _flash(options) == _runs_flash(c)
        if not same and names.get("attention_backend") in (None, "auto") and not names.get("use_flash_attn"):
            how["attention"], same = kernel, True
        own |= {"attention_rate": rate} if same and rate != 1.0 else {}
    how |= {name: stated[name] for name in choices(c.framework.implementation).keys() & stated.keys() - _DECIDED}
    sizes = {name: stated[f"{name}_bytes"] for name in SIZES if f"{name}_bytes" in stated.keys() - _DECIDED}
    hide = {part.name: stated[f"hide_{part.name}"] for part in fields(Hide) if f"hide_{part.name}" in stated}
    switches = Switches(implementation=how, bytes=sizes, hide=hide, framework=own)
    return replace(c, framework=switched(c.framework, options.cluster.gpu.architecture, switches))


def check_model(stated: MeasuredModel, model: ModelDescriptor) -> None:
    """Raise InputError with each field of a row's model, `stated`, that differs from the model of its arguments."""
    problems = []
    for name, value in stated.model_dump(exclude_none=True).items():
        have = _of(model, _OTHER_NAMES.get(name, name))
        # A model whose layers all have experts has no other MLP, whatever size it would be of.
        if name in _NOT_COMPARED or have == value or (name == "intermediate_size" and have == 0):
            continue
        if not (have is None and value == 0):
            what = "is not what the row's megatron_args say"
            problems.append(Problem(what, field=f"model.{name}", got=str(value), need=str(have)))
    if problems:
        raise InputError(problems)


def _of(model: ModelDescriptor, name: str) -> Any:
    """Return a field of the model, else of its experts or latent attention; None without it. Enums by their value."""
    sections = (model.latent, model.experts, model)
    have = next((getattr(part, name) for part in sections if getattr(part, name, None) is not None), None)
    return getattr(have, "value", have)


def mark_repeated(options: RowOptions, names: Mapping[str, Value], c: Setup) -> None:
    """Mark the row's options as read that the configuration of its arguments, `names` by destination, repeats; others
    stay to be listed as ignored.
    """
    stated, have = options.stated, dict(_of_configuration(options.stated, c))
    for name, value in stated.items():
        if name in have and have[name] in (value, _ANY):
            options.option(name, None)
    word = str(stated.get("recompute"))
    if ("selective" if word.startswith("selective") else "full" if word == "full" else "none") == c.recompute:
        options.option("recompute", None, False)
    if _runs_flash(c) == _flash(options):
        options.option("attention_kernel", None, False)
    if (names.get("transformer_impl") or "transformer_engine") == stated.get("transformer_impl"):
        options.option("transformer_impl", None)
    if bool(stated.get("fsdp")) == bool(names.get("use_megatron_fsdp") or names.get("use_custom_fsdp")):
        options.option("fsdp", None, False)
    if all(getattr(c, f"overlap_{name}", None) == value for name, value in (stated.get("overlap") or {}).items()):
        options.overlap(False)


def _flash(options: RowOptions) -> bool:
    """Return whether the row states flash attention or no kernel."""
    name = str(options.stated.get("attention_kernel", "flash"))
    return attention_of(name, options.cluster.gpu.architecture)[0] == "flash"


def _runs_flash(c: Setup) -> bool:
    return c.framework.implementation.attention.kernel is Kernel.FLASH


def _of_configuration(stated: Mapping[str, Any], c: Setup) -> Iterator[tuple[str, Any]]:
    """Yield (option of rows, its value in a configuration), _ANY where any value would mean the same."""
    how, full, alone = c.framework, c.recompute == "full", c.dp * c.cp == 1
    yield from choices(how.implementation).items()
    yield from ((name, getattr(how, name)) for name in OF_FRAMEWORK)
    yield from ((f"{name}_bytes", getattr(how.bytes, name)) for name in SIZES)
    yield from ((f"hide_{part.name}", getattr(how.hide, part.name)) for part in fields(Hide))
    yield "graphed", next((name for name, graphed in GRAPHED.items() if graphed == how.graphed), "")
    yield from ((name, getattr(c, name)) for name in ("precision", "activation_offload", "etp"))
    yield "sequence_parallel", _ANY if c.tp == 1 else c.sequence_parallel
    yield "zero_stage", _ANY if alone else c.zero_stage
    yield "distributed_optimizer", _ANY if alone else c.zero_stage > 0
    yield "cp_comm", _ANY if c.cp == 1 else c.cp_comm
    yield "optimizer_offload", c.optimizer_offload > 0
    yield "moe_a2a", c.overlap_moe_a2a
    yield "layout", c.pipeline_layout
    yield "first_layers", c.first_stage_layers
    yield "last_layers", c.last_stage_layers
    yield "ends_as_layers", (int(c.account_for_embedding), int(c.account_for_loss))
    yield "recompute_method", c.recompute_method if full else ""
    yield "recompute_layers", c.recompute_layers if full else 0
    said = stated.get("recompute_modules", ())
    modules = c.recompute_modules if c.recompute == "selective" else ()
    yield "recompute_modules", said if set(said) == set(modules) else ()


def unread(row: Row, model: ModelDescriptor) -> tuple[str, ...]:
    """Return as `name: value` what no option says and is not predicted, where `model` is that of the arguments: a
    vocabulary of another size, and arguments that no release of Megatron-LM has, nor MindSpeed, by name alone.
    """
    mine = {flag.dest for flag in mindspeed.own().values()}
    dests = mine.union(DEGREES.values(), *map(defaults, versions()))
    unknown = [name for name in row.options.megatron_args or {} if name.replace("-", "_") not in dests]
    left = [f"megatron_args: {name}" for name in unknown if first_with(f"--{name}") is None]
    size = row.model.vocab_size
    return (*left, *([f"model.vocab_size: {size}"] if size not in (None, model.vocab_size) else ()))

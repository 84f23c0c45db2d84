"""A measured row as model, cluster and configuration; what it does not state comes from its source's assumption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from symconfig.cost.framework import FRAMEWORKS, Framework
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.graph.blocks.common import Kernel
from symconfig.graph.operator import LAYER
from symconfig.measured.assumptions import Assumption, assumptions
from symconfig.solve.predict import Configuration
from symconfig.targets import MEGATRON_VOCAB_MULTIPLE
from symconfig.units import GIB

_EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_PLAIN = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "gated_mlp",
    "tie_word_embeddings",
    "position",
    "norm",
    "attention",
)
# Spellings of attention kernels in the sources -> (implementation, rate over the newest flash kernel's). Version 2 has
# half of version 3's rate on Hopper (arXiv 2407.08608, section 1: 35 and 75 % of the peak), and is the newest before
# it; version 1 has 0.56 of version 2's (arXiv 2307.08691, section 1: 25-40 and 50-73 %).
_ATTENTION: dict[str, tuple[Kernel, float]] = {
    "flash": ("flash", 1.0),
    "flash2": ("flash", 0.5),
    "flash1": ("flash", 0.28),
    "fused-softmax": ("fused_softmax", 1.0),
    "unfused": ("fused_softmax", 1.0),
    "not flash": ("fused_softmax", 1.0),
    "torch-unfused": ("torch", 1.0),
}
_BEFORE_HOPPER = ("volta", "ampere", "ada")
_BEFORE_HOPPER_RATE = {"flash2": 1.0, "flash1": 0.56}
_IMPLEMENTATION = (
    "fused_linears",
    "fused_norm",
    "fused_activation",
    "fused_rope",
    "loss",
    "copied_attention",
    "gathered_logits",
)
_FRAMEWORK = ("vocab_multiple", "attention_rate", "kept_gradient_buffers", "scattered_sends", "fragmentation")
_SELECTIVE = frozenset({"core_attn"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a row ran. assumed: options that the row does not state and that change the prediction.

    others: configurations of which the source ran the best one without printing which.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    configuration: Configuration
    assumed: tuple[str, ...]
    others: tuple[Configuration, ...] = ()


def case(source: str, row: Row) -> Case:
    """Raises InputError when the row leaves out what no assumption gives."""
    assumption = assumptions().of(source, row.software.version if row.software else None)
    asked = _Asked(row, assumption)
    micro, seq_length = asked.batch("micro"), asked.batch("seq_length")
    model = _model(row, assumption, seq_length)
    p = row.parallel
    tp, pp, cp = p.tp or 1, p.pp or 1, p.cp or 1
    dp = p.dp or max(1, (row.cluster.gpus or tp * pp * cp) // (tp * pp * cp))
    configuration = Configuration(
        tp,
        pp,
        dp,
        micro,
        row.batch.global_ or micro * dp * (row.batch.grad_accum or 1),
        seq_length,
        p.vpp or 1,
        cp,
        p.ep or 1,
        p.etp or (1 if not row.model.num_experts or p.ep else tp),
        asked.option("precision", "bf16"),
        bool(tp > 1 and asked.option("sequence_parallel", False)),
        "p2p",
        _recompute(asked),
        _repeated_layers(asked, model, p.pp or 1),
        asked.zero(),
        _framework(asked, assumption),
        _pair(asked.option("ends_as_layers", (0, 0))),
        assumption.packing if row.task != "pretrain" else None,
    )
    sizes = assumption.tuned_micro if row.batch.micro is None else ()
    others = [replace(configuration, micro=size) for size in sizes if configuration.global_batch % (dp * size) == 0]
    return Case(model, _cluster(row, assumption), configuration, tuple(asked.assumed), tuple(others))


class _Asked:
    """Options of a row, then of its source's assumption; keeps which were assumed."""

    def __init__(self, row: Row, assumption: Assumption) -> None:
        self.row, self.assumption = row, assumption
        self.stated: dict[str, Any] = row.options.model_dump(exclude_none=True)
        if self.stated.get("megatron_args"):
            self.stated = _from_arguments(self.stated["megatron_args"]) | self.stated
        self.assumed: list[str] = []

    def option(self, name: str, default: Any) -> Any:
        if name in self.stated:
            return self.stated[name]
        self.assumed.append(name)
        return self.assumption.options.get(name, default)

    def batch(self, name: str) -> int:
        value = getattr(self.row.batch, name)
        if value is not None:
            return int(value)
        value = getattr(self.assumption.batch, name)
        if name == "micro" and value is None and self.assumption.batch.grad_accum:
            p, whole = self.row.parallel, self.row.batch.global_ or 0
            value = max(1, whole // ((p.dp or 1) * self.assumption.batch.grad_accum))
        if value is None:
            raise InputError(Problem("is not stated, and nothing is assumed for this source", field=f"batch.{name}"))
        self.assumed.append(name)
        return int(value)

    def zero(self) -> int:
        if "zero_stage" not in self.stated and "distributed_optimizer" in self.stated:
            return int(self.stated["distributed_optimizer"])
        if self.stated.get("fsdp") and "zero_stage" not in self.stated:
            return 3
        return int(self.option("zero_stage", 0))


def _from_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Options that a Megatron-LM argument list states; what it leaves out is Megatron's default."""
    local = arguments.get("transformer-impl") == "local"
    kernel = "torch-unfused" if arguments.get("no-masked-softmax-fusion") else "fused-softmax"
    result: dict[str, Any] = {
        "kept_gradient_buffers": not (local or arguments.get("no-gradient-accumulation-fusion")),
        "loss": "fused" if arguments.get("cross-entropy-fusion-impl") == "te" else "parallel",
        "vocab_multiple": int(arguments.get("make-vocab-size-divisible-by", MEGATRON_VOCAB_MULTIPLE)),
    }
    if local and not arguments.get("use-flash-attn"):
        result["attention_kernel"] = kernel
    if arguments.get("account-for-embedding-in-pipeline-split") or arguments.get("account-for-loss-in-pipeline-split"):
        ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
        result["ends_as_layers"] = [int(bool(arguments.get(name))) for name in ends]
    return result


def _model_arguments(row: Row) -> dict[str, Any]:
    """The same for fields of the model."""
    arguments = row.options.megatron_args
    if not arguments:
        return {}
    biased = not arguments.get("disable-bias-linear")
    return {
        "attention_dropout": float(arguments.get("attention-dropout", 0.1)),
        "hidden_dropout": float(arguments.get("hidden-dropout", 0.1)),
        "qk_norm": bool(arguments.get("qk-layernorm")),
        "mlp_bias": biased,
        "attention_out_bias": biased,
        "qkv_bias": biased or bool(arguments.get("add-qkv-bias")),
    }


def _pair(places: Sequence[int]) -> tuple[int, int]:
    first, last = places
    return int(first), int(last)


def _recompute(asked: _Asked) -> frozenset[str]:
    word = str(asked.option("recompute", "none"))
    if word == "full":
        return frozenset({LAYER})
    return _SELECTIVE if word.startswith("selective") else frozenset()


def _repeated_layers(asked: _Asked, model: ModelDescriptor, pp: int) -> int:
    """Layers of a stage that run again whole, where a framework's selective recompute takes every n-th layer."""
    every = int(asked.assumption.options.get("selective_every", 0))
    if not every or not str(asked.option("recompute", "none")).startswith("selective"):
        return 0
    return -(-model.num_hidden_layers // (pp * every))


def _framework(asked: _Asked, assumption: Assumption) -> Framework:
    """The source's framework with the row's kernels and overlaps."""
    base, habits = FRAMEWORKS[assumption.framework], assumption.habits.model_dump(exclude_none=True)
    habits |= {name: asked.stated[name] for name in (*_IMPLEMENTATION, *_FRAMEWORK) if name in asked.stated}
    name = str(asked.option("attention_kernel", "flash"))
    name = assumption.flash if name == "flash" and assumption.flash else name
    kernel, rate = _ATTENTION[name]
    if _cluster(asked.row, assumption).gpu.architecture in _BEFORE_HOPPER:
        rate = _BEFORE_HOPPER_RATE.get(name, rate)
    how = {name: habits[name] for name in _IMPLEMENTATION if name in habits}
    if asked.stated.get("torch_compile"):  # fuses chains of element-wise kernels
        how |= {"fused_norm": True, "fused_activation": True, "fused_rope": True}
    if asked.stated.get("fused_rmsnorm") is not None:
        how["fused_norm"] = asked.stated["fused_rmsnorm"]
    if asked.stated.get("cross_entropy_fusion"):
        how["loss"] = "fused"
    hide = {name.removeprefix("hide_"): value for name, value in habits.items() if name.startswith("hide_")}
    overlap = asked.stated.get("overlap") or {}
    if overlap.get("grad_reduce") is False:
        hide["data"] = 0.0
    sizes = {name.removesuffix("_bytes"): habits[name] for name in habits if name.endswith("_bytes")}
    return replace(
        base,
        implementation=replace(base.implementation, attention=kernel, **how),
        bytes=replace(base.bytes, **sizes),
        hide=replace(base.hide, **hide),
        attention_rate=rate,
        **{name: habits[name] for name in _FRAMEWORK if name in habits},
    )


def _model(row: Row, assumption: Assumption, seq_length: int) -> ModelDescriptor:
    """The row's shape over the public model's, over what such models share."""
    stated = row.model.model_dump(exclude_none=True)
    zoo = next((item.zoo for item in assumptions().models if item.name == row.model.name), None)
    fields: dict[str, Any] = _dump(zoo) if zoo else _typical(stated, seq_length)
    fields |= {name: value for name, value in assumption.model.items() if name != "shared_expert_gate"}
    fields |= _model_arguments(row)
    fields |= {name: stated[name] for name in _PLAIN if name in stated}
    fields |= {
        "name": row.model.name,
        "source": "the measured row",
        "num_nextn_predict_layers": stated.get("mtp_num_layers", 0),
    }
    if fields["attention"] == "mla":
        fields["latent"] = {name: stated.get(name) for name in _LATENT}
    if "num_experts" in stated:
        moe = fields.get("experts") or {"norm_topk_prob": True}
        moe |= {name: stated[name] for name in _EXPERTS if name in stated}
        moe["first_k_dense_replace"] = stated.get("first_k_dense", 0)
        moe["shared_expert_gate"] = bool(assumption.model.get("shared_expert_gate", False))
        fields["experts"] = moe
    if "head_dim" not in stated and not zoo:
        fields["head_dim"] = fields["hidden_size"] // fields["num_attention_heads"]
    if fields.get("sliding_window_pattern") and len(fields["sliding_window_pattern"]) != fields["num_hidden_layers"]:
        fields["sliding_window_pattern"] = None
    if row.task == "lora":
        if assumption.lora is None:
            raise InputError(Problem("rank and targets of LoRA are not stated", field="model.lora"))
        fields["adapter"] = assumption.lora.model_dump(mode="json")
    missing = [name for name in ("hidden_size", "num_hidden_layers", "vocab_size") if fields.get(name) is None]
    if missing:
        raise InputError(
            [Problem("is not stated and no public model is known", field=f"model.{name}") for name in missing]
        )
    return ModelDescriptor.model_validate(fields, strict=False)


def _typical(stated: dict[str, Any], seq_length: int) -> dict[str, Any]:
    """What GPT-like (no gate: LayerNorm, biases, learned positions) and Llama-like models share."""
    gated = stated.get("gated_mlp", True)
    return {
        "schema": "symconfig.model/1",
        "model_type": "llama" if gated else "gpt2",
        "intermediate_size": 0,
        "num_key_value_heads": stated.get("num_attention_heads"),
        "max_position_embeddings": seq_length,
        "gated_mlp": gated,
        "hidden_act": "silu" if gated else "gelu",
        "mlp_bias": not gated,
        "qkv_bias": not gated,
        "attention_out_bias": not gated,
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "rope" if gated else "learned",
        "attention": "gqa",
        "tie_word_embeddings": not gated,
    }


@cache
def _zoo_model(name: str) -> ModelDescriptor:
    return load_model(name)


def _dump(name: str) -> dict[str, Any]:
    return _zoo_model(name).model_dump(mode="json", by_alias=True)


@cache
def _zoo_clusters() -> dict[str, ClusterDescriptor]:
    known = [load_cluster(name) for name in zoo_clusters()]
    return {name: cluster for cluster in known for name in (cluster.name, *cluster.aliases)}


def _cluster(row: Row, assumption: Assumption) -> ClusterDescriptor:
    name = row.cluster.gpu or assumption.gpu
    if name is None:
        raise InputError(Problem("is not stated", field="cluster.gpu"))
    change = next((item for item in assumptions().clusters if item.gpu == name), None)
    base = _zoo_clusters().get(change.base if change else name)
    if base is None:
        raise InputError(Problem("is no GPU of the zoo", field="cluster.gpu", got=name))
    if change is None:
        return base
    gpu, levels = base.gpu, base.levels
    if change.memory_gib:
        gpu = gpu.model_copy(
            update={"memory_bytes": gpu.memory_bytes.model_copy(update={"value": change.memory_gib * GIB})}
        )
    if change.memory_bandwidth_bytes_per_s:
        rate = gpu.memory_bandwidth_bytes_per_s.model_copy(update={"value": change.memory_bandwidth_bytes_per_s})
        gpu = gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    if change.nvlink_domain:
        levels = (levels[0].model_copy(update={"size": change.nvlink_domain}), *levels[1:])
    return base.model_copy(update={"gpu": gpu, "levels": levels})

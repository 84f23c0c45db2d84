"""A measured row as model, cluster and configuration; what it does not state comes from its source's assumption."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from symconfig.cost.framework import FRAMEWORKS, USER_BUFFERS, Framework
from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.cluster import ClusterDescriptor, Level
from symconfig.descriptor.document import nearest
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.graph.blocks.common import Kernel
from symconfig.graph.operator import LAYER
from symconfig.measured.assumptions import Assumption, assumptions
from symconfig.measured.flops import COUNTING, Counting
from symconfig.solve.predict import Configuration
from symconfig.targets import MEGATRON_VOCAB_MULTIPLE
from symconfig.units import GIB, MIB

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
# it; version 1 has 0.56 of version 2's (arXiv 2307.08691, section 1: 25-40 and 50-73 %), its Triton form 1/1.3 to 1/2.5
# (section 4.1; the upper end is taken, chosen after seeing residuals). flash-2024 is what Transformer Engine took on
# Hopper in 2024, between version 2 and the newest: fitted to the sequences of 16k and more of nemo_2407.
_ATTENTION: dict[str, tuple[Kernel, float]] = {
    "flash": ("flash", 1.0),
    "flash2": ("flash", 0.5),
    "flash1": ("flash", 0.28),
    "triton": ("flash", 0.38),
    "flash-2024": ("flash", 0.75),
    # Transformer Engine's (dot_product_attention/utils.py): cuDNN's on Hopper, elsewhere version 2 of flash attention.
    "deterministic": ("flash", 1.0),
    "fused-softmax": ("fused_softmax", 1.0),
    "unfused": ("fused_softmax", 1.0),
    "not flash": ("fused_softmax", 1.0),
    "torch-unfused": ("torch", 1.0),
}
_BEFORE_HOPPER_RATE = {"flash2": 1.0, "flash1": 0.56, "triton": 0.77}
_RATE_ON = {  # where it is another than Hopper's
    "volta": _BEFORE_HOPPER_RATE,
    "ampere": _BEFORE_HOPPER_RATE,
    "ada": _BEFORE_HOPPER_RATE,
    "blackwell": {"flash-2024": 1.0, "deterministic": 0.5},  # which came with kernels of its own
}
_IMPLEMENTATION = (
    "fused_linears",
    "fused_norm",
    "fused_activation",
    "fused_rope",
    "loss",
    "copied_attention",
    "gathered_logits",
    "wide_norm",
    "viewed_values",
    "kept_outputs",
    "fused_bias",
    "stops_early",
    "held_logits",
    "deferred_gradients",
    "logged_losses",
    "dispatcher",
    "fused_experts",
)
_FRAMEWORK = (
    "adam_bytes",
    "reduced_bytes",
    "vocab_multiple",
    "attention_rate",
    "kept_gradient_buffers",
    "quantised_weights",
    "scattered_sends",
    "fragmentation",
    "keeps_gathered",
    "accumulated_bytes",
    "handover_s",
    "stepped_bytes",
    "reduced_bytes",
    "all_reduced_gradients",
    "torch_workspace",
    "engine",
    "graphed",
    "microbatch_group",
    "optimizer_instances",
    "grouped_streams",
)
# --data-parallel-sharding-strategy of Megatron's FSDP -> ZeRO stage.
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_SIZES = ("weight", "gradient", "optimizer")
# Words of a model's name -> what such a run holds beside what its arguments state.
_UNSTATED = {"distill": "a teacher"}
_GRAPHS = re.compile(r"(?P<which>full|router/preprocess)? ?CG\b")  # or "partial CG"
_GRAPHED = {"full": "all", "router/preprocess": "router"}
_SELECTIVE = frozenset({"core_attn"})


@dataclass(frozen=True, slots=True)
class Case:
    """What a row ran. taken: what the row does not state, and changes the prediction, with the assumed value.

    documented: the same, where the source states it for all its rows, in its text, recipes or code.

    others: configurations of which the source ran the best one without printing which. counting: how its FLOPs count.
    reason: of its source's assumptions.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    configuration: Configuration
    taken: tuple[tuple[str, str], ...]
    others: tuple[Configuration, ...] = ()
    counting: Counting = COUNTING
    reason: str = ""
    documented: tuple[tuple[str, str], ...] = ()

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of what was assumed; empty: the row states everything."""
        return tuple(name for name, _ in self.taken)


def case(
    source: str, row: Row, model: ModelDescriptor | None = None, cluster: ClusterDescriptor | None = None
) -> Case:
    """model, cluster: what ran, where the caller knows it better than the row says.

    Raises InputError when the row leaves out what no assumption gives.
    """
    for word, held in _UNSTATED.items():
        if word in row.model.name.split("_"):
            raise InputError(Problem(f"the run holds {held} that it does not state", field="model.name"))
    version = row.software.version if row.software else None
    assumption = assumptions().of(source, version, row.cluster.gpu).at(row)
    asked = _Asked(row, assumption, cluster)
    micro, seq_length = asked.batch("micro"), asked.batch("seq_length")
    model = model or _model(row, asked, seq_length)
    p = row.parallel
    tp, pp, cp = p.tp or 1, p.pp or 1, p.cp or 1
    dp = _data_parallel(row, asked, tp * cp, pp, micro)
    chunks = p.vpp or (1 if pp == 1 or row.options.megatron_args else assumption.vpp)
    asked.guess("vpp", chunks, p.vpp is None and pp > 1 and not row.options.megatron_args)
    asked.guess("lora", assumption.lora, row.task == "lora")
    asked.guess("packing", assumption.packing, row.task != "pretrain")
    configuration = Configuration(
        tp,
        pp,
        dp,
        micro,
        row.batch.global_ or micro * dp * (row.batch.grad_accum or 1),
        seq_length,
        chunks,
        cp,
        p.ep or 1,
        _expert_tensor_parallel(row, asked),
        asked.option("precision", "bf16"),
        bool(tp > 1 and asked.option("sequence_parallel", False)),
        asked.stated.get("cp_comm", "p2p"),
        _recompute(asked),
        _repeated_layers(asked, model, p.pp or 1),
        asked.zero(dp * cp > 1),
        _framework(asked, model, (tp, pp, dp * cp)),
        _pair(asked.option("ends_as_layers", (0, 0), pp > 1 and "ends_as_layers" in assumption.options)),
        assumption.packing if row.task != "pretrain" else None,
        str(asked.stated.get("layout", "")),
        bool(asked.stated.get("activation_offload")),
    )
    sizes = assumption.tuned_micro if row.batch.micro is None else ()
    others = [replace(configuration, micro=size) for size in sizes if configuration.global_batch % (dp * size) == 0]
    taken, documented = tuple(asked.taken.items()), tuple(asked.documented.items())
    return Case(
        model, asked.cluster, configuration, taken, tuple(others), assumption.flops, assumption.reason, documented
    )


class _Asked:
    """Options of a row, then of its source's assumption; keeps what was assumed."""

    def __init__(self, row: Row, assumption: Assumption, cluster: ClusterDescriptor | None = None) -> None:
        self.row, self.assumption = row, assumption
        self.cluster = cluster or _cluster(row, assumption)
        self.stated: dict[str, Any] = row.options.model_dump(exclude_none=True)
        if self.stated.get("megatron_args"):
            arguments = _from_arguments(self.stated["megatron_args"])
            self.stated = arguments | {"deferred_gradients": _deferred(row)} | self.stated
        if graphs := _GRAPHS.search(str(self.stated.get("features", ""))):
            self.stated["graphed"] = _GRAPHED.get(graphs["which"], "outside experts")
        self.taken: dict[str, str] = {}
        self.documented: dict[str, str] = {}
        self.guess("gpu", assumption.gpu, row.cluster.gpu is None)
        nodes = row.cluster.gpus is None or row.cluster.gpus > (row.cluster.gpus_per_node or 8)
        self.guess("network_ports", assumption.network_ports, nodes)

    def guess(self, name: str, value: object, matters: bool) -> None:
        """Keep an assumed value, where it can change the prediction."""
        if matters and value is not None:
            into = self.documented if name in self.assumption.documented else self.taken
            into[name] = str(value).lower() if isinstance(value, bool) else str(value)

    def option(self, name: str, default: Any, matters: bool = True) -> Any:
        if name in self.stated:
            return self.stated[name]
        value = self.assumption.options.get(name, default)
        self.guess(name, value, matters)
        return value

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
        tuned = self.assumption.tuned_micro if name == "micro" else ()
        self.guess(name, f"the best of {', '.join(map(str, (value, *tuned)))}" if tuned else value, True)
        return int(value)

    def zero(self, replicated: bool) -> int:
        if "zero_stage" not in self.stated and "distributed_optimizer" in self.stated:
            return int(self.stated["distributed_optimizer"])
        if self.stated.get("fsdp") and "zero_stage" not in self.stated:
            return 3
        return int(self.option("zero_stage", 0, replicated))


def _from_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Options that a Megatron-LM argument list states; what it leaves out is Megatron's default."""
    local = arguments.get("transformer-impl") == "local"
    kernel = "torch-unfused" if arguments.get("no-masked-softmax-fusion") else "fused-softmax"
    result: dict[str, Any] = {
        "kept_gradient_buffers": not (local or arguments.get("no-gradient-accumulation-fusion")),
        "quantised_weights": bool(arguments.get("fp8-param-gather")),
        "loss": "fused" if arguments.get("cross-entropy-fusion-impl") == "te" else "parallel",
        "vocab_multiple": int(arguments.get("make-vocab-size-divisible-by", MEGATRON_VOCAB_MULTIPLE)),
        "engine": not local,
        "layout": arguments.get("pipeline-model-parallel-layout") or "",
        "activation_offload": bool(arguments.get("fine-grained-activation-offloading")),
        "etp": arguments.get("expert-tensor-parallel-size") or arguments.get("tensor-model-parallel-size", 1),
    }
    result["microbatch_group"] = int(arguments.get("microbatch-group-size-per-virtual-pipeline-stage") or 0)
    result["optimizer_instances"] = int(arguments.get("num-distributed-optimizer-instances") or 1)
    if arguments.get("use-megatron-fsdp"):
        result["zero_stage"] = _SHARDED[str(arguments.get("data-parallel-sharding-strategy", "no_shard"))]
    if arguments.get("num-experts") and not arguments.get("moe-grouped-gemm"):
        result["grouped_streams"] = 0
    if arguments.get("recompute-granularity") == "selective":
        result["recompute_modules"] = str(arguments.get("recompute-modules", "[core_attn]")).strip("[]").split()
    if arguments.get("deterministic-mode"):  # wants CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4 MiB
        result["torch_workspace"] = 32 * MIB
        result["attention_kernel"] = "deterministic"
    if arguments.get("no-gradient-accumulation-fusion"):  # a bf16 gradient is read and added to the fp32 one
        result["accumulated_bytes"] = 10.0
    if local and not arguments.get("use-flash-attn"):
        result["attention_kernel"] = kernel
    if arguments.get("account-for-embedding-in-pipeline-split") or arguments.get("account-for-loss-in-pipeline-split"):
        ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
        result["ends_as_layers"] = [int(bool(arguments.get(name))) for name in ends]
    sizes = [int(arguments.get(f"decoder-{end}-pipeline-num-layers") or 0) for end in ("first", "last")]
    if all(sizes) and (middle := int(arguments["pipeline-model-parallel-size"]) - 2):
        each = (int(arguments["num-layers"]) - sum(sizes)) // middle
        result["ends_as_layers"] = [each - size for size in sizes]
    return result


def _deferred(row: Row) -> int:
    """Microbatches whose gradient of the logits waits beside the one that is running."""
    arguments, batch = row.options.megatron_args or {}, row.batch
    if not arguments.get("defer-embedding-wgrad-compute"):
        return 0
    ran = (batch.global_ or 1) // ((batch.micro or 1) * (row.parallel.dp or 1))
    return min(int(arguments.get("wgrad-deferral-limit") or ran), ran - 1)


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


def _expert_tensor_parallel(row: Row, asked: _Asked) -> int:
    """Megatron's default is the rest's tensor parallelism; where only the experts' degree is stated, they are whole."""
    p = row.parallel
    if p.etp or not row.model.num_experts:
        return p.etp or 1
    return int(asked.stated.get("etp", 1 if p.ep else p.tp or 1))


def _data_parallel(row: Row, asked: _Asked, inner: int, pp: int, micro: int) -> int:
    """inner: ranks of one replica of a stage. Experts need as many ranks as their degrees say."""
    p, whole = row.parallel, row.batch.global_
    ranks = (p.ep or 1) * _expert_tensor_parallel(row, asked)
    found = p.dp or (row.cluster.gpus or 0) // (inner * pp)
    dp = max(1, found, -(-ranks // inner))
    asked.guess("dp", dp, (p.dp is None and row.cluster.gpus is None) or dp != found)
    if whole and whole < micro * dp:  # these GPUs cannot have run this batch
        dp = max(1, whole // micro)
        asked.guess("dp", dp, True)
    return dp


def _pair(places: Sequence[int]) -> tuple[int, int]:
    first, last = places
    return int(first), int(last)


def _recompute(asked: _Asked) -> frozenset[str]:
    word = str(asked.option("recompute", "none"))
    if word == "full":
        return frozenset({LAYER})
    if word == "selective" and "recompute_modules" in asked.stated:
        return frozenset(asked.stated["recompute_modules"])
    if not word.startswith("selective"):
        return frozenset()
    if "selective_modules" in asked.assumption.options:
        asked.guess("selective_modules", asked.assumption.options["selective_modules"], True)
    return frozenset(asked.assumption.options.get("selective_modules", _SELECTIVE))


def _repeated_layers(asked: _Asked, model: ModelDescriptor, pp: int) -> int:
    """Layers of a stage that run again whole, where only the first ones do, or where a framework's selective recompute
    takes every n-th layer.
    """
    if asked.stated.get("recompute") == "full" and asked.stated.get("recompute_method") == "block":
        return int(asked.stated["recompute_layers"])
    every = int(asked.assumption.options.get("selective_every", 0))
    if not every or not str(asked.option("recompute", "none")).startswith("selective"):
        return 0
    asked.guess("selective_every", every, True)
    return -(-model.num_hidden_layers // (pp * every))


def _framework(asked: _Asked, model: ModelDescriptor, degrees: tuple[int, int, int]) -> Framework:
    """The source's framework with the row's kernels and overlaps. degrees: tp, pp and data-parallel ranks."""
    name = str(asked.option("attention_kernel", "flash"))
    if name == "flash" and asked.assumption.flash:
        name = asked.assumption.flash
        asked.guess("flash", name, True)
    habits = asked.assumption.habits.model_dump(exclude_none=True)
    found = _with_habits(asked, name, habits)
    for habit, value in habits.items():
        without = _with_habits(asked, name, {key: habits[key] for key in habits if key != habit})
        precise = habit == "quantised_weights" and asked.stated.get("precision") not in LOW_PRECISION
        matters = found != without and _matters(habit, model.vocab_size, found, without, degrees)
        asked.guess(habit, value, matters and not precise)
    return found


def _matters(
    habit: str, vocab_size: int, found: Framework, without: Framework, degrees: tuple[int, int, int]
) -> bool:
    """Whether a habit can change the prediction at these degrees."""
    tp, pp, replicas = degrees
    if habit == "vocab_multiple":
        one, other = (-(-vocab_size // multiple) * multiple for multiple in
                      (found.vocab_multiple * tp, without.vocab_multiple * tp))
        return one != other
    if habit in ("hide_tp_forward", "hide_tp_backward", "gathered_logits"):
        return tp > 1
    if habit == "handover_s":
        return pp > 1
    if habit in ("hide_data", "hide_sharded_weights", "reduced_bytes", "all_reduced_gradients"):
        return replicas > 1
    return tp > 1 and pp > 1 if habit == "scattered_sends" else True


def _with_habits(asked: _Asked, attention: str, habits: dict[str, Any]) -> Framework:
    base = FRAMEWORKS[asked.assumption.framework]
    habits = habits | {name: asked.stated[name] for name in (*_IMPLEMENTATION, *_FRAMEWORK) if name in asked.stated}
    kernel, rate = _ATTENTION[attention]
    rate = _RATE_ON.get(asked.cluster.gpu.architecture, {}).get(attention, rate)
    how = {name: habits[name] for name in _IMPLEMENTATION if name in habits}
    if asked.stated.get("torch_compile"):  # fuses chains of element-wise kernels
        how |= {"fused_norm": True, "fused_activation": True, "fused_rope": True, "fused_yarn": True}
    if asked.stated.get("fused_rmsnorm") is not None:
        how["fused_norm"] = asked.stated["fused_rmsnorm"]
    if asked.stated.get("cross_entropy_fusion"):
        how["loss"] = "fused"
    hide = {name.removeprefix("hide_"): value for name, value in habits.items() if name.startswith("hide_")}
    p = asked.row.parallel
    overlap = asked.option("overlap", {}, max(p.tp or 1, p.pp or 1) > 1 and "overlap" in asked.assumption.options)
    if overlap.get("grad_reduce") is False:
        hide["data"] = 0.0
    if overlap.get("pp_p2p") is False:
        hide["pp"] = 0.0
    if overlap.get("tp_comm") or asked.stated.get("async_tp"):  # PyTorch cuts a product in pieces likewise
        hide |= USER_BUFFERS
    sizes = {name: habits[f"{name}_bytes"] for name in _SIZES if f"{name}_bytes" in habits}
    if asked.stated.get("fsdp_mixed_precision") == "PURE":
        habits["reduced_bytes"] = 2.0
    return replace(
        base,
        implementation=replace(base.implementation, attention=kernel, **how),
        bytes=replace(base.bytes, **sizes),
        hide=replace(base.hide, **hide),
        attention_rate=rate,
        **{name: habits[name] for name in _FRAMEWORK if name in habits},
    )


def _model(row: Row, asked: _Asked, seq_length: int) -> ModelDescriptor:
    """The row's shape over the public model's, over what such models share."""
    assumption, stated = asked.assumption, row.model.model_dump(exclude_none=True)
    zoo = next((item.zoo for item in assumptions().models if item.name == row.model.name), None)
    fields: dict[str, Any] = _dump(zoo) if zoo else _typical(stated, seq_length)
    own = _model_arguments(row) | {name: stated[name] for name in _PLAIN if name in stated}
    for name, value in assumption.model.items():
        gate = name == "shared_expert_gate"
        asked.guess(name, value, "num_experts" in stated if gate else name not in own and fields.get(name) != value)
        if not gate:
            fields[name] = value
    fields |= own
    fields |= {
        "name": row.model.name,
        "source": "the measured row",
        "num_nextn_predict_layers": stated.get("mtp_num_layers", 0),
    }
    _check_shape(fields, row.model.name)
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
    return ModelDescriptor.model_validate(fields, strict=False)


def _check_shape(fields: dict[str, Any], name: str) -> None:
    """Raises InputError: what neither the row nor a public model of this name says."""
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [field for field in needed if fields.get(field) is None]
    if missing:
        what = f"no public model is known by this name, and the row does not state {', '.join(missing)}"
        known = {item.name.lower(): item.name for item in assumptions().models}
        raise InputError(Problem(what, field="model.name", got=name, hint=known.get(nearest(name, known) or "")))


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


def forget_zoo() -> None:
    """After a file of the zoo has changed."""
    _zoo_clusters.cache_clear()


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
    if assumption.network_ports is not None:
        base = _with_ports(base, assumption.network_ports)
    if change is None:
        return base
    gpu, levels, kernels = base.gpu, base.levels, base.kernels
    if change.memory_gib:
        gpu = gpu.model_copy(
            update={"memory_bytes": gpu.memory_bytes.model_copy(update={"value": change.memory_gib * GIB})}
        )
    if change.memory_bandwidth_bytes_per_s:
        rate = gpu.memory_bandwidth_bytes_per_s.model_copy(update={"value": change.memory_bandwidth_bytes_per_s})
        gpu = gpu.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    if change.power_w and gpu.power_w:
        # Dynamic power goes with the clock and the square of the voltage, which goes with the clock, too.
        # Attention leaves the tensor cores idle for half of the time or more and stays below the limit.
        clock = (change.power_w / gpu.power_w.value) ** (1 / 3)
        peaks = {name: getattr(gpu.peak_flops, name) for name in type(gpu.peak_flops).model_fields}
        slower = {name: q.model_copy(update={"value": q.value * clock}) for name, q in peaks.items() if q is not None}
        gpu = gpu.model_copy(update={"peak_flops": gpu.peak_flops.model_copy(update=slower)})
        rate = kernels.attention_efficiency
        rate = rate.model_copy(update={"value": rate.value / clock})
        kernels = kernels.model_copy(update={"attention_efficiency": rate})
    if change.nvlink_domain:
        levels = (levels[0].model_copy(update={"size": change.nvlink_domain}), *levels[1:])
    return base.model_copy(update={"gpu": gpu, "levels": levels, "kernels": kernels})


def _with_ports(base: ClusterDescriptor, ports: int) -> ClusterDescriptor:
    """The cluster with so many network ports a node: each GPU has its share of them."""

    def shared(level: Level) -> Level:
        rate = level.bandwidth_bytes_per_s
        share = rate.model_copy(update={"value": rate.value * ports / base.gpus_per_node})
        return level.model_copy(update={"bandwidth_bytes_per_s": share})

    return base.model_copy(update={"levels": (base.levels[0], *map(shared, base.levels[1:]))})

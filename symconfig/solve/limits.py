"""What each target can run, as data for the search: recompute choices, ZeRO stages, offload, and named refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.machine import LOW_PRECISION
from symconfig.cost.stages import Offload, Points
from symconfig.descriptor import bridge_adapters
from symconfig.descriptor.model import Attention, ModelDescriptor
from symconfig.graph.operator import DISCARDING, LAYER
from symconfig.solve.stages.problem import Layouts
from symconfig.targets import (
    AUTOEP_MODELS,
    AUTOTP_MODELS,
    LAYOUT_MTP_ALONE_SINCE,
    LAYOUT_MTP_SINCE,
    LAYOUT_SINCE,
    RECOMPUTE_SINCE,
    megatron_release,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Degrees:
    """Points of the lattice at one pipeline degree, as the refusals see them: arrays, or a number for all."""

    tp: Ints
    pp: int
    cp: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    micro: Ints
    num_microbatches: Ints
    seq_length: int
    sequence_parallel: bool
    cp_comm: str
    precision: str


Refusal = tuple[str, str, Callable[[ModelDescriptor, Degrees], Any]]  # the test gives one truth value a point
OfDegrees = tuple[str, str, Callable[[Any, Degrees], Any]]  # one that asks nothing of the model


@dataclass(frozen=True, slots=True)
class Common:
    """What a framework can be told whatever the model: choices of sequence parallelism when tp > 1, and refusals.

    fsdp_alone: ZeRO 2 and 3 go with data parallelism only.
    """

    tensor_with_sequence: tuple[bool, ...]
    fsdp_alone: bool
    refusals: tuple[OfDegrees, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """A target's space.

    refusals: (name, reason, test that is true where a point cannot run); interleaved: with several chunks a stage.
    """

    pipeline: bool
    layouts: Layouts
    tensor_with_sequence: tuple[bool, ...]  # choices of sequence parallelism when tp > 1
    cp_comms: tuple[str, ...]
    zero: tuple[int, ...]
    modules: tuple[str, ...]
    block_recompute: bool
    activation_offload: bool
    refusals: tuple[Refusal, ...]
    interleaved: tuple[Refusal, ...]
    fsdp_alone: bool  # ZeRO 2 and 3 go with data parallelism only
    full_recompute: bool = True
    least_stages: int = 1
    least_chunks: int = 1  # of each stage, where there are several

    def zero_refused(self, zero: int, pp: int, points: Points) -> Any:
        """Per point: the target cannot run this ZeRO stage there."""
        if zero < 2 or not self.fsdp_alone:
            return np.zeros(points.dp.shape, dtype=bool)
        return (points.tp * points.cp * points.ep * points.etp * pp) != 1


def _divides(what: str, size: Callable[[ModelDescriptor], int], axis: str) -> Refusal:
    return (what, f"{what} must divide over {axis}", lambda model, p: size(model) % getattr(p, axis) != 0)


SHARED: tuple[Refusal, ...] = (
    _divides("num_attention_heads", lambda m: m.num_attention_heads, "tp"),
    (
        "num_key_value_heads",
        "key/value heads must divide over tp",
        lambda m, p: (m.attention is Attention.GQA) & (m.num_key_value_heads % p.tp != 0),
    ),
    _divides("intermediate_size", lambda m: m.intermediate_size, "tp"),
    (
        "shared_expert_intermediate_size",
        "the shared expert's width must divide over tp",
        lambda m, p: m.experts is not None and m.experts.shared_expert_intermediate_size % p.tp != 0,
    ),
    (
        "num_experts",
        "experts must divide over ep",
        lambda m, p: m.experts is not None and m.experts.num_experts % p.ep != 0,
    ),
    (
        "moe_intermediate_size",
        "the experts' width must divide over etp",
        lambda m, p: m.experts is not None and m.experts.moe_intermediate_size % p.etp != 0,
    ),
    ("expert grid", "ep x etp must divide tp x cp x dp", lambda m, p: (p.tp * p.cp * p.dp) % (p.ep * p.etp) != 0),
    (
        "ulysses heads",
        "heads must divide over tp x cp for all-to-all context parallelism",
        lambda m, p: (
            (p.cp > 1)
            & (p.cp_comm == "a2a")
            & ((m.num_attention_heads % (p.tp * p.cp) != 0) | (m.num_key_value_heads % (p.tp * p.cp) != 0))
        ),
    ),
)

_MEGATRON: tuple[Refusal, ...] = (
    *SHARED,
    (
        "sequence parallel",
        "the sequence must divide over tp x cp",
        lambda m, p: p.sequence_parallel and p.seq_length % (p.tp * p.cp) != 0,
    ),
    (
        "context parallel",
        "the sequence must divide by 2 cp",
        lambda m, p: (p.cp > 1) & (p.seq_length % (2 * p.cp) != 0),
    ),
    (
        "context parallel window",
        "context parallelism does not go with sliding-window attention here",
        lambda m, p: (p.cp > 1) & any(m.sliding_layers),
    ),
    (
        "context parallel sinks",
        "context parallelism does not go with attention sinks",
        lambda m, p: (p.cp > 1) & m.attention_sinks,
    ),
    (
        "experts with tp",
        "experts with tensor parallelism need sequence parallelism",
        lambda m, p: (m.experts is not None and not p.sequence_parallel) & (p.tp > 1),
    ),
    (
        "ulysses latent",
        "all-to-all context parallelism takes one head size for queries and values",
        lambda m, p: (p.cp > 1) & (p.cp_comm == "a2a" and m.attention is Attention.MLA),
    ),
    (
        "expert bias",
        "biases of experts need etp 1",
        lambda m, p: (m.experts is not None and m.experts.expert_bias) & (p.etp > 1),
    ),
    (
        "fp8 sizes",
        "low precision needs local dims that divide by 16 (fp8) or 32",
        lambda m, p: (
            (p.precision in LOW_PRECISION)
            & (
                (p.seq_length * p.micro // (p.cp * (p.tp if p.sequence_parallel else 1)))
                % (16 if p.precision == "fp8" else 32)
                != 0
            )
        ),
    ),
)


def _rank_over_tp(model: ModelDescriptor, points: Degrees) -> Any:
    """Megatron-Bridge splits the rank itself beside column-parallel layers (peft/utils.py, ParallelLinearAdapter)."""
    found = bridge_adapters.targets(model)
    if found is None or model.adapter is None or not found.by_columns:
        return np.zeros_like(points.tp, dtype=bool)
    return model.adapter.r % points.tp != 0


_MEGATRON_ADAPTERS: tuple[Refusal, ...] = (
    ("adapter rank", "the adapter's rank must divide over tp beside column-parallel layers", _rank_over_tp),
    (
        "adapter columns",
        "hidden_size must divide over tp beside row-parallel layers with adapters",
        lambda m, p: m.hidden_size % p.tp != 0,
    ),
)

# Asked for every interleaving of the points that one chunk a stage leaves; the others do not depend on it.
_INTERLEAVED: tuple[Refusal, ...] = (
    (
        "interleaving",
        "interleaving needs microbatches that divide by pp",
        lambda m, p: p.num_microbatches % p.pp != 0,
    ),
)

# Refusals that a later version lifts: (first version without it, refusal).
_MEGATRON_UNTIL: tuple[tuple[tuple[int, int], Refusal], ...] = (
    (
        (0, 14),
        (
            "mtp context",
            "multi-token prediction does not go with context parallelism before core_v0.14",
            lambda m, p: (m.num_nextn_predict_layers > 0) & (p.cp > 1),
        ),
    ),
    (
        (0, 16),
        (
            "fp16 experts",
            "expert parallelism does not go with fp16 before core_v0.16",
            lambda m, p: (p.precision == "fp16") & (p.ep > 1),
        ),
    ),
)

# Transformer Engine 2.x, pytorch/attention/dot_product_attention/utils.py, get_attention_backend: flash and fused
# attention are disabled below compute capability 8.0, and unfused attention under context parallelism.
NO_FLASH = ("volta",)
_WITHOUT_FLASH: tuple[Refusal, ...] = (
    (
        "context parallel kernel",
        "context parallelism needs flash attention, which this GPU or job does not have",
        lambda m, p: p.cp > 1,
    ),
)

_DEEPSPEED_DEGREES: tuple[OfDegrees, ...] = (
    ("ring", "DeepSpeed's context parallelism is Ulysses", lambda m, p: (p.cp > 1) & (p.cp_comm != "a2a")),
    ("autotp with ulysses", "AutoTP and Ulysses do not combine", lambda m, p: (p.tp > 1) & (p.cp > 1)),
    ("autoep with ulysses", "AutoEP with Ulysses is not validated", lambda m, p: (p.ep > 1) & (p.cp > 1)),
    ("autoep with etp", "AutoEP has no tensor parallelism inside an expert", lambda m, p: p.etp > 1),
)
_DEEPSPEED: tuple[Refusal, ...] = (
    *SHARED,
    *_DEEPSPEED_DEGREES,
    ("ulysses sequence", "the sequence must divide over cp", lambda m, p: (p.cp > 1) & (p.seq_length % p.cp != 0)),
    (
        "autoep preset",
        "AutoEP knows Mixtral, Qwen3-MoE and DeepSeek-V3 only",
        lambda m, p: (p.ep > 1) & (m.model_type not in AUTOEP_MODELS),
    ),
    (
        "autotp model",
        "AutoTP is known to split dense Llama, Mistral and Qwen models only",
        lambda m, p: (p.tp > 1) & (m.experts is not None or m.model_type not in AUTOTP_MODELS),
    ),
    (
        "multi-token prediction",
        "Transformers trains no multi-token-prediction layers",
        lambda m, p: (p.tp > 0) & (m.num_nextn_predict_layers > 0),
    ),
    (
        "ulysses latent",
        "Ulysses takes one head size for queries and values",
        lambda m, p: (p.cp > 1) & (m.attention is Attention.MLA),
    ),
    ("ulysses sinks", "Ulysses refuses eager attention, which sinks need", lambda m, p: (p.cp > 1) & m.attention_sinks),
    ("ulysses window", "Ulysses drops the mask of a sliding window", lambda m, p: (p.cp > 1) & any(m.sliding_layers)),
    ("adapter with tp", "AutoTP does not split adapter layers", lambda m, p: (m.adapter is not None) & (p.tp > 1)),
    ("adapter with ep", "AutoEP does not know adapter layers", lambda m, p: (m.adapter is not None) & (p.ep > 1)),
)

COMMON: Mapping[str, Common] = {
    "megatron": Common((True, False), fsdp_alone=True),
    "deepspeed": Common((False,), fsdp_alone=False, refusals=_DEEPSPEED_DEGREES),
}

_OFFLOADED = frozenset(
    {"qkv_proj", "q_proj", "k_proj", "v_proj", "q_up_proj", "kv_up_proj", "flash_attention", "o_proj"}
) | {"scores", "softmax", "attention_dropout", "context"}  # the core, where it is not fused
_OFFLOADED_LATENT = frozenset({"input_norm"})
_OFFLOADED_EXPERTS = frozenset({"mlp_norm", "expert_gate_up_proj", "expert_activation"})


def offloaded(model: ModelDescriptor) -> frozenset[str]:
    """Operators whose kept tensors Megatron's fine-grained offloading moves, with the modules that are rendered."""
    latent = _OFFLOADED_LATENT if model.attention is Attention.MLA else frozenset[str]()
    return _OFFLOADED | latent | (_OFFLOADED_EXPERTS if model.experts else frozenset[str]())


def limits(backend: str, version: str, model: ModelDescriptor, architecture: str, flash: bool = True) -> Limits:
    """The space of a target's version for this model on this kind of GPU. flash: whether the job may use such kernels.

    DeepSpeed's Ulysses refuses Transformers' eager attention as Transformer Engine refuses its own unfused one.
    """
    common = COMMON[backend]
    if backend == "deepspeed":
        # p2p stands for none: the scheme of Ulysses keeps the heads a second time, after their exchange.
        return Limits(
            pipeline=False, layouts=Layouts(any_cut=False), tensor_with_sequence=common.tensor_with_sequence,
            cp_comms=("p2p", "a2a"), zero=(0, 1, 2, 3), modules=(), block_recompute=False, activation_offload=False,
            refusals=_DEEPSPEED if flash else _DEEPSPEED + _WITHOUT_FLASH,
            interleaved=(), fsdp_alone=common.fsdp_alone,
        )
    number = megatron_release(version)
    there = (name for name, since in RECOMPUTE_SINCE.items() if number >= megatron_release(since))
    modules = tuple(name for name in there if _applies(name, model))
    refusals = _MEGATRON + tuple(refusal for until, refusal in _MEGATRON_UNTIL if number < until)
    if architecture in NO_FLASH or not flash:
        refusals += _WITHOUT_FLASH
    if model.adapter is not None:
        return _with_adapters(number, model, refusals)
    return Limits(
        pipeline=True, layouts=_layouts(number, model), tensor_with_sequence=common.tensor_with_sequence,
        cp_comms=("p2p", "a2a"), zero=(0, 1, 2, 3), modules=modules, block_recompute=True,
        activation_offload=number >= (0, 16), refusals=refusals, interleaved=_INTERLEAVED, fsdp_alone=common.fsdp_alone,
    )


def _with_adapters(number: tuple[int, int], model: ModelDescriptor, refusals: tuple[Refusal, ...]) -> Limits:
    """Megatron-Bridge's. Only whole layers and the core of attention, which trains nothing, are recomputed: a module's
    own recompute needs an input with a gradient, which Bridge sees to for whole layers alone (peft/recompute.py).
    Megatron-FSDP and offloaded activations are not known to go with its adapters."""
    never = tuple(
        (name, reason, lambda m, p: np.ones_like(p.tp, dtype=bool)) for name, reason in bridge_adapters.refusals(model)
    )
    return Limits(
        pipeline=True, layouts=_layouts(number, model), tensor_with_sequence=COMMON["megatron"].tensor_with_sequence,
        cp_comms=("p2p", "a2a"), zero=(0, 1), modules=("core_attn",), block_recompute=True, activation_offload=False,
        refusals=(*refusals, *never, *_MEGATRON_ADAPTERS), interleaved=_INTERLEAVED, fsdp_alone=True,
    )


def _layouts(number: tuple[int, int], model: ModelDescriptor) -> Layouts:
    """What Megatron-LM can say of the stages. An end that counts as a layer may be all that its chunk holds; with a
    layout string a chunk may be empty ("Empty stages are allowed": docs/user-guide/features/
    pipeline_parallel_layout.md).

    Multi-token prediction stays with the loss, also from core_v0.16 on, where it need not: elsewhere it makes every
    message ask for its shape first and wait for the device (p2p_communication.py, _communicate_shapes).
    """
    any_cut = number >= megatron_release(LAYOUT_MTP_SINCE if model.num_nextn_predict_layers else LAYOUT_SINCE)
    return Layouts(any_cut, empty_ends=True, empty=any_cut, mtp_with_head=True, first_last=True, account=True)


def pinnable(limits: Limits, version: str) -> Limits:
    """The same for a pinned layout: multi-token prediction may lie before the loss where the version builds it there.
    That its messages take longer then is not in the prediction."""
    together = megatron_release(version) < megatron_release(LAYOUT_MTP_ALONE_SINCE)
    return replace(limits, layouts=replace(limits.layouts, mtp_with_head=together))


def _applies(module: str, model: ModelDescriptor) -> bool:
    if module in ("moe", "moe_act"):
        return model.experts is not None
    if module == "shared_experts":
        return model.experts is not None and model.experts.shared_expert_intermediate_size > 0
    if module == "layernorm":  # else Transformer Engine's linear layers take their norms in
        return model.experts is not None or model.attention is Attention.MLA
    if module == "mla_up_proj":
        return model.attention is Attention.MLA
    return module != "mlp" or not all(model.moe_layers)


def policies(limits: Limits, precision: str) -> tuple[frozenset[str], ...]:
    """Sets of recomputed modules: nothing, every sensible selection, whole layers.

    A module inside another that is recomputed anyway adds nothing. Modules whose output is thrown away do not go
    with low precision, whose quantised copies would still hold it. Megatron recomputes the experts' activation only
    behind its grouped kernels, which are rendered for bf16 and its low precisions.
    """
    discarding = {"bf16": (), "fp16": ("moe_act",)}.get(precision, DISCARDING)
    names = [name for name in limits.modules if name not in discarding]
    chosen = [frozenset[str]()]
    for count in range(1, len(names) + 1):
        for group in combinations(names, count):
            if "moe" in group and ("moe_act" in group or "shared_experts" in group):
                continue
            chosen.append(frozenset(group))
    return (*chosen, frozenset({LAYER})) if limits.full_recompute else tuple(chosen)


def offloads(backend: str, zero: int) -> tuple[Offload, ...]:
    """What may live in host memory at a ZeRO stage."""
    if backend == "megatron":
        return tuple(Offload(share) for share in ((0.0, 0.25, 0.5, 0.75, 1.0) if zero == 1 else (0.0,)))
    if zero == 0:
        return (Offload(),)
    if zero < 3:
        return (Offload(), Offload(1.0))
    return (Offload(), Offload(0.25), Offload(0.5), Offload(0.75), Offload(1.0), Offload(1.0, True))

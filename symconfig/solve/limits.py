"""What each target can run, as data for the search: recompute choices, ZeRO stages, offload, what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from symconfig.cost.stages import Offload
from symconfig.descriptor.model import Attention, ModelDescriptor
from symconfig.frameworks.megatron import adapters
from symconfig.frameworks.megatron.releases import (
    LAYOUT_MTP_ALONE_SINCE,
    LAYOUT_MTP_SINCE,
    LAYOUT_SINCE,
    RECOMPUTE_SINCE,
    megatron_release,
)
from symconfig.graph.operator import DISCARDING, LAYER
from symconfig.graph.scheme import CpComm
from symconfig.plans.choices import ZeroStage
from symconfig.plans.columns import Columns
from symconfig.solve.refusals import (
    DEEPSPEED,
    DEEPSPEED_DEGREES,
    INTERLEAVED,
    MEGATRON,
    MEGATRON_ADAPTERS,
    MEGATRON_UNTIL,
    NO_FLASH,
    WITHOUT_FLASH,
    OfDegrees,
    Refusal,
)
from symconfig.solve.stages.problem import Layouts


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
    cp_comms: tuple[CpComm, ...]
    zero: tuple[ZeroStage, ...]
    modules: tuple[str, ...]
    block_recompute: bool
    activation_offload: bool
    refusals: tuple[Refusal, ...]
    interleaved: tuple[Refusal, ...]
    fsdp_alone: bool  # ZeRO 2 and 3 go with data parallelism only
    full_recompute: bool = True
    least_stages: int = 1
    least_chunks: int = 1  # of each stage, where there are several

    def zero_refused(self, zero: int, pp: int, points: Columns) -> Any:
        """Per point: the target cannot run this ZeRO stage there."""
        if zero < 2 or not self.fsdp_alone:
            return np.zeros(points.dp.shape, dtype=bool)
        return (points.tp * points.cp * points.ep * points.etp * pp) != 1


COMMON: Mapping[str, Common] = {
    "megatron": Common((True, False), fsdp_alone=True),
    "deepspeed": Common((False,), fsdp_alone=False, refusals=DEEPSPEED_DEGREES),
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
            pipeline=False,
            layouts=Layouts(any_cut=False),
            tensor_with_sequence=common.tensor_with_sequence,
            cp_comms=("p2p", "a2a"),
            zero=(0, 1, 2, 3),
            modules=(),
            block_recompute=False,
            activation_offload=False,
            refusals=DEEPSPEED if flash else DEEPSPEED + WITHOUT_FLASH,
            interleaved=(),
            fsdp_alone=common.fsdp_alone,
        )
    number = megatron_release(version)
    there = (name for name, since in RECOMPUTE_SINCE.items() if number >= megatron_release(since))
    modules = tuple(name for name in there if _applies(name, model))
    refusals = MEGATRON + tuple(refusal for until, refusal in MEGATRON_UNTIL if number < until)
    if architecture in NO_FLASH or not flash:
        refusals += WITHOUT_FLASH
    if model.adapter is not None:
        return _with_adapters(number, model, refusals)
    return Limits(
        pipeline=True,
        layouts=_layouts(number, model),
        tensor_with_sequence=common.tensor_with_sequence,
        cp_comms=("p2p", "a2a"),
        zero=(0, 1, 2, 3),
        modules=modules,
        block_recompute=True,
        activation_offload=number >= (0, 16),
        refusals=refusals,
        interleaved=INTERLEAVED,
        fsdp_alone=common.fsdp_alone,
    )


def _with_adapters(number: tuple[int, int], model: ModelDescriptor, refusals: tuple[Refusal, ...]) -> Limits:
    """Megatron-Bridge's. Only whole layers and the core of attention, which trains nothing, are recomputed: a module's
    own recompute needs an input with a gradient, which Bridge sees to for whole layers alone (peft/recompute.py).
    Megatron-FSDP and offloaded activations are not known to go with its adapters."""
    never = tuple(
        (name, reason, lambda m, p: np.ones_like(p.tp, dtype=bool)) for name, reason in adapters.refusals(model)
    )
    return Limits(
        pipeline=True,
        layouts=_layouts(number, model),
        tensor_with_sequence=COMMON["megatron"].tensor_with_sequence,
        cp_comms=("p2p", "a2a"),
        zero=(0, 1),
        modules=("core_attn",),
        block_recompute=True,
        activation_offload=False,
        refusals=(*refusals, *never, *MEGATRON_ADAPTERS),
        interleaved=INTERLEAVED,
        fsdp_alone=True,
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

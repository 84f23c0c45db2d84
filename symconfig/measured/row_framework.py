"""The framework of a measured row: its source's habits, with the row's kernels and overlaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.cost.framework import Framework
from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.frameworks.behaviour import COMPILED, Switches, switched
from symconfig.frameworks.fsdp.behaviour import NARROW_REDUCTION
from symconfig.frameworks.kernels import options
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON
from symconfig.measured.assumptions import EXCHANGE, OF_FRAMEWORK, SIZES
from symconfig.measured.row_options import RowOptions, known_word

# Spellings of attention kernels in the sources -> (implementation, rate over the newest flash kernel's). Version 2 has
# half of version 3's rate on Hopper (arXiv 2407.08608, section 1: 35 and 75 % of the peak), and is the newest before
# it; version 1 has 0.56 of version 2's (arXiv 2307.08691, section 1: 25-40 and 50-73 %), its Triton form 1/1.3 to 1/2.5
# (section 4.1; the upper end is taken, chosen after seeing residuals). flash-2024 is what Transformer Engine took on
# Hopper in 2024, between version 2 and the newest: fitted to the sequences of 16k and more of nemo_2407.
_ATTENTION: dict[str, tuple[str, float]] = {
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
    "masked": ("masked", 1.0),
}
_BEFORE_HOPPER_RATE = {"flash2": 1.0, "flash1": 0.56, "triton": 0.77}
_RATE_ON = {  # where it is another than Hopper's
    "volta": _BEFORE_HOPPER_RATE,
    "ampere": _BEFORE_HOPPER_RATE,
    "ada": _BEFORE_HOPPER_RATE,
    "blackwell": {"flash-2024": 1.0, "deterministic": 0.5},  # which came with kernels of its own
}
_IMPLEMENTATION = tuple(name for name in options(MEGATRON.implementation) if name != "attention")


def attention_of(name: str, architecture: str) -> tuple[str, float]:
    """Return a kernel's implementation by its spelling, and its rate on this GPU over the newest flash kernel's.

    Raises InputError for a spelling that is not known.
    """
    spelling = known_word(name, _ATTENTION)
    if spelling is None:
        need = ", ".join(_ATTENTION)
        raise InputError("is not understood", field="options.attention_kernel", got=name, need=need)
    name, (kernel, rate) = spelling, _ATTENTION[spelling]
    return kernel, _RATE_ON.get(architecture, {}).get(name, rate)


def framework_of(options: RowOptions, model: ModelDescriptor, degrees: tuple[int, int, int]) -> Framework:
    """Return the source's framework with the row's kernels and overlaps. degrees: tp, pp and data-parallel ranks."""
    name = str(options.option("attention_kernel", "flash"))
    if name == "flash" and options.assumption.flash:
        name = options.assumption.flash
        options.guess("flash", name, True)
    switches = options.assumption.habits.model_dump(exclude_none=True)
    framework = _with_habits(options, name, switches)
    for habit, value in switches.items():
        without = _with_habits(options, name, {key: switches[key] for key in switches if key != habit})
        precise = habit == "quantised_weights" and options.stated.get("precision") not in LOW_PRECISION
        matters = framework != without and _matters(habit, model.vocab_size, framework, without, degrees)
        options.guess(habit, value, matters and not precise)
    return framework


def _matters(
    habit: str, vocab_size: int, framework: Framework, without: Framework, degrees: tuple[int, int, int]
) -> bool:
    """Tell whether a habit can change the prediction at these degrees."""
    tp, pp, replicas = degrees
    if habit == "vocab_multiple":
        one, other = (
            -(-vocab_size // multiple) * multiple
            for multiple in (framework.vocab_multiple * tp, without.vocab_multiple * tp)
        )
        return one != other
    if habit in ("hide_tp_forward", "hide_tp_backward", "gathered_logits"):
        return tp > 1
    if habit == "handover_s":
        return pp > 1
    if habit in ("hide_data", "hide_sharded_weights", "reduced_bytes", "all_reduced_gradients", *EXCHANGE):
        return replicas > 1
    return tp > 1 and pp > 1 if habit == "scattered_sends" else True


def _with_habits(options: RowOptions, attention: str, switches: dict[str, Any]) -> Framework:
    base, architecture = FRAMEWORKS[options.assumption.framework], options.cluster.gpu.architecture
    names = (*_IMPLEMENTATION, *OF_FRAMEWORK, *(f"{name}_bytes" for name in SIZES))
    switches = switches | {name: options.stated[name] for name in names if name in options.stated}
    kernel, rate = attention_of(attention, architecture)
    how: dict[str, Any] = {"attention": kernel} | {name: switches[name] for name in _IMPLEMENTATION if name in switches}
    if options.stated.get("torch_compile"):
        how |= COMPILED
    if options.stated.get("fused_rmsnorm") is not None:
        how["fused_norm"] = options.stated["fused_rmsnorm"]
    if options.stated.get("cross_entropy_fusion"):
        how["loss"] = "fused"
    own = {"attention_rate": rate} | {name: switches[name] for name in OF_FRAMEWORK if name in switches}
    if "graphed" in own:
        own["graphed"] = GRAPHED[own["graphed"]]
    p = options.row.parallel
    overlap = options.overlap(max(p.get("tp", 1), p.get("pp", 1)) > 1)
    implementation = Switches(
        implementation=how,
        bytes={name: switches[f"{name}_bytes"] for name in SIZES if f"{name}_bytes" in switches},
        hide={name.removeprefix("hide_"): value for name, value in switches.items() if name.startswith("hide_")},
        framework=own,
        reduces_beside=overlap.get("grad_reduce") is not False,
        sends_beside=overlap.get("pp_p2p") is not False,
        # PyTorch cuts a product in pieces likewise.
        cuts_products=bool(overlap.get("tp_comm") or options.stated.get("async_tp")),
        pairs_microbatches=bool(overlap.get("moe_a2a") or options.stated.get("moe_a2a")),
    )
    if options.stated.get("fsdp_mixed_precision") == "PURE":
        implementation = replace(implementation, framework={**implementation.framework, **NARROW_REDUCTION})
    stages = p.get("pp", 1) > 1 and p.get("vpp", 1) == 1
    reduces = implementation.hides().get("data", base.hide.data) > 0
    demanded = stages and reduces and overlap.get("param_gather") is not False
    return switched(replace(base, demanded_gathers=demanded), architecture, implementation)

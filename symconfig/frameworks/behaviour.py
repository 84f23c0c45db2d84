"""The one way from a framework, a GPU and what a run switches to the behaviour that the cost model counts with.

First the names by which options and measured runs speak of kernels, and what each of them changes; then a run's
switches; last what another optimizer than AdamW keeps and moves of each parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from symconfig.cost.framework import Framework, Orthogonal, OverTensor, Stepping
from symconfig.descriptor.training import Optimizer
from symconfig.frameworks.constraint import flash
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, NARROW_REDUCTION, WIDE_FROZEN
from symconfig.frameworks.known import FRAMEWORKS, OWN_LAYERS
from symconfig.frameworks.megatron.behaviour import USER_BUFFERS, TransformerImpl, beside_another
from symconfig.graph.implementation import (
    Adapters,
    Angles,
    Dispatch,
    ExpertKernels,
    Implementation,
    Kernel,
    LossKernel,
    NormKernel,
    RotationKernel,
    Routing,
)
from symconfig.schedule.timeline import Start

KERNELS: dict[str, Kernel] = {
    "flash": Kernel.FLASH,
    "fused_softmax": Kernel.FUSED_SOFTMAX,
    "torch": Kernel.IN_TURN,
    "masked": Kernel.MASKED,
    "narrow": Kernel.NARROW,
    "wide": Kernel.WIDE,
}
LOSSES: dict[str, LossKernel] = {
    "fused": LossKernel.IN_PLACE,  # one kernel; torchtune's in chunks, of which one at a time is widened to fp32
    "flash": LossKernel.APART,  # flash-attn's CrossEntropyLoss, whose inplace_backward is off by default
    "parallel": LossKernel.WIDE_IN_PLACE,  # Megatron-LM's on a split vocabulary, its default
    "torch": LossKernel.WIDE,  # PyTorch's cross_entropy
    "linear": LossKernel.LINEAR,  # Liger's fused linear cross-entropy (ops/fused_linear_cross_entropy.py)
    "tiled": LossKernel.TILED,  # TRL's head since 1.15 (kernels/chunked_logprob.py)
}
DISPATCHERS: dict[str, Dispatch] = {
    "alltoall": Dispatch.SLOTS,
    "allgather": Dispatch.EVERYWHERE,
    "deepep": Dispatch.ONCE_A_RANK,
    "hybridep": Dispatch.ONCE_A_NODE,
}


# Options that are one field, by its path; with names where its values have names of their own.
_FIELDS: dict[str, str] = {
    "fused_linears": "linear.joined",
    "norms_in_linears": "linear.norm_inside",
    "fused_bias": "linear.bias_inside",
    "viewed_values": "linear.views",
    "fused_activation": "fused_activation",
    "fp8_activation_store": "fp8_activation_store",
    "fp8_attention": "attention.in_fp8",
    "copied_attention": "attention.copies_result",
    "repeated_heads": "attention.copies_shared_heads",
    "gathered_logits": "gathered_logits",
    "whole_look_up": "whole_look_up",
    "weighted_experts": "experts.weighted_inside",
    "stops_early": "stops_early",
    "deferred_gradients": "loss.deferred_gradients",
    "logged_losses": "loss.logged",
}
_NAMED: dict[str, tuple[str, Mapping[str, Any]]] = {
    "attention": ("attention.kernel", KERNELS),
    "loss": ("loss.kernel", LOSSES),
    "dispatcher": ("experts.dispatch", DISPATCHERS),
    "routing": ("experts.routing", {each.value: each for each in Routing}),
    "adapters": ("adapters", {each.value: each for each in Adapters}),
}


def options(how: Implementation) -> dict[str, Any]:
    """Return an implementation's choices as options by name, so that `changed` with all of them gives the same.

    Options are switches, numbers or words of a named choice. kept_outputs is at least 1; held_logits says whether any
    are kept.
    """
    return {
        **{name: attrgetter(path)(how) for name, path in _FIELDS.items()},
        **{name: _name(names, attrgetter(path)(how)) for name, (path, names) in _NAMED.items()},
        "fused_norm": how.norm is NormKernel.FUSED,
        "wide_norm": how.norm is NormKernel.EAGER_WIDE,
        "fused_rope": how.rotation.kernel is not RotationKernel.EAGER,
        "fused_yarn": how.rotation.kernel is RotationKernel.FUSED_STRETCHED,
        "own_rotations": how.rotation.angles is Angles.APART,
        "sequential_experts": how.experts.kernels is ExpertKernels.IN_TURN,
        "fused_experts": how.experts.kernels is ExpertKernels.FUSED,
        "kept_outputs": max(how.loss.kept_outputs, 1),
        "held_logits": how.loss.kept_outputs > 0,
    }


def kinds(how: Implementation) -> dict[str, Any]:
    """Return the type of each option of an implementation by name: a Literal for named choices."""
    return {name: type(value) for name, value in options(how).items()} | {
        name: Literal[tuple(names)] for name, (_, names) in _NAMED.items()
    }


def changed(how: Implementation, **changes: Any) -> Implementation:
    """Return a copy of the implementation with some options changed; the others keep their values.

    Raises:
        TypeError: a name is no option.
        KeyError: a named choice has no such value.
    """
    given = options(how)
    if unknown := changes.keys() - given.keys():
        raise TypeError(f"no options of an implementation: {', '.join(sorted(unknown))}")
    given |= changes
    norm = NormKernel.EAGER_WIDE if given["wide_norm"] else NormKernel.EAGER
    norm = NormKernel.FUSED if given["fused_norm"] else norm
    rotation = RotationKernel.FUSED_STRETCHED if given["fused_yarn"] else RotationKernel.FUSED
    rotation = rotation if given["fused_rope"] else RotationKernel.EAGER
    experts = ExpertKernels.IN_TURN if given["sequential_experts"] else ExpertKernels.GROUPED
    experts = ExpertKernels.FUSED if given["fused_experts"] else experts
    values = {
        **{path: given[name] for name, path in _FIELDS.items()},
        **{path: names[given[name]] for name, (path, names) in _NAMED.items()},
        "norm": norm,
        "rotation.kernel": rotation,
        "rotation.angles": Angles.APART if given["own_rotations"] else Angles.ONCE,
        "loss.kept_outputs": given["kept_outputs"] if given["held_logits"] else 0,
        "experts.kernels": experts,
    }
    parts = {path: value for path, value in values.items() if "." not in path}
    for part in {path.partition(".")[0] for path in values.keys() - parts.keys()}:
        fields = {path.partition(".")[2]: value for path, value in values.items() if path.startswith(f"{part}.")}
        parts[part] = replace(getattr(how, part), **fields)
    return replace(how, **parts)


def _name(names: Mapping[str, Any], value: object) -> str:
    return next(name for name, meant in names.items() if meant is value)


# torch.compile fuses chains of element-wise kernels: options of `changed`.
COMPILED: Mapping[str, Any] = {"fused_norm": True, "fused_activation": True, "fused_rope": True, "fused_yarn": True}

# Liger's kernels of layers; its loss is another switch.
LIGER: Mapping[str, Any] = {"fused_norm": True, "fused_activation": True, "fused_rope": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Choices of a run that differ from its framework's usual behaviour.

    Every reader of a configuration (Megatron-LM's options, a DeepSpeed JSON, a measured row) fills in this class.

    implementation: options of `changed`. bytes, hide, framework: fields of `Bytes`, `Hide` and `Framework` with their
    values. reduces_beside: gradient reductions overlap with the backward. gathers_ahead: sharded weights are
    prefetched. sends_beside: an interleaved pipeline's sends overlap with the next chunk. cuts_products:
    tensor-parallel products are split to overlap with their collectives. pairs_microbatches: the experts' all-to-all
    overlaps with another microbatch.
    """

    implementation: Mapping[str, Any] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)
    hide: Mapping[str, float] = field(default_factory=dict)
    framework: Mapping[str, Any] = field(default_factory=dict)
    reduces_beside: bool = True
    gathers_ahead: bool = True
    sends_beside: bool = True
    cuts_products: bool = False
    pairs_microbatches: bool = False

    def hides(self) -> dict[str, Any]:
        """Return the fields of `Hide` that the switches set: `hide`, 0.0 for what is off, and USER_BUFFERS if used."""
        never = {"data": self.reduces_beside, "sharded_weights": self.gathers_ahead, "pp": self.sends_beside}
        pieces = USER_BUFFERS if self.cuts_products else {}
        return {**self.hide, **{name: 0.0 for name, overlaps in never.items() if not overlaps}, **pieces}


def usual(
    name: str, architecture: str, transformer_impl: TransformerImpl = "transformer_engine", attention: str | None = None
) -> Framework:
    """Return the framework `name` with its usual behaviour on a GPU architecture.

    transformer_impl: `local` takes Megatron-LM's own layers; other frameworks stay. attention: the kernel that the job
    asks for, None: no wish. Where flash attention does not run (`flash`), a framework that would use it gets
    Transformer Engine's fused softmax, or without Transformer Engine PyTorch's operators one by one. An unknown name
    raises KeyError.
    """
    own = transformer_impl == "transformer_engine"
    framework = FRAMEWORKS[name] if own else OWN_LAYERS.get(name, FRAMEWORKS[name])
    if not flash(architecture, attention, framework.engine):
        kernel = Kernel.FUSED_SOFTMAX if framework.engine else Kernel.IN_TURN
        if framework.implementation.attention.kernel is Kernel.FLASH:
            return replace(framework, implementation=framework.implementation.attending(kernel))
    return framework


def switched(framework: Framework, architecture: str, switches: Switches) -> Framework:
    """Return the framework with a run's switches applied; what they do not name stays.

    If microbatches are paired, experts' all-to-alls overlap as `beside_another` says for this GPU architecture.

    Raises:
        TypeError: a switch is no option of an implementation or no field of its dataclass.
        KeyError: a named choice has no such value.
    """
    as_run = replace(
        framework,
        implementation=changed(framework.implementation, **switches.implementation),
        bytes=replace(framework.bytes, **switches.bytes),
        hide=replace(framework.hide, **switches.hides()),
        **switches.framework,
    )
    return beside_another(as_run, architecture) if switches.pairs_microbatches else as_run


# By target and framework; of no target: of all that are not named.
PROGRAMS: Mapping[tuple[str, str], Switches] = {
    # verl 0.9.1 hands new weights to its engine before any forward, so none of them may wait for one: its optimizer
    # gathers them at once (verl/utils/megatron_utils.py, register_megatron_training_hooks).
    ("verl", "megatron"): Switches(framework={"gathers": Start.APART}),
    # It passes --moe-permute-fusion on, and not --moe-router-fusion (nemo_rl/models/megatron/setup.py).
    ("nemo-rl", "megatron"): Switches(implementation={"routing": "fused_sort"}),
    # flash-attn's cross-entropy (verl/utils/torch_functional.py, logprobs_from_logits); torch.optim.AdamW with no word
    # of its kernels (workers/config/optimizer.py, build_optimizer). It loads in fp32 (workers/engine/fsdp/
    # transformer_impl.py, model_dtype).
    ("verl-fsdp", "fsdp"): Switches(implementation={"loss": "fused"}, framework=EAGER_ADAM, bytes=WIDE_FROZEN),
    # Accelerate reduces in the precision of its products (utils/dataclasses.py, set_mixed_precision). LLaMA-Factory
    # 0.9.5 goes with 1.11. All others around it are the Trainer's.
    ("llamafactory", "fsdp"): Switches(framework=NARROW_REDUCTION, bytes=WIDE_FROZEN),
    ("", "fsdp"): Switches(framework=NARROW_REDUCTION),
}


FP32_BYTES = 4.0
WIDTHS = {"fp32": FP32_BYTES, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
ADAM_MOMENTS = 2 * FP32_BYTES
# bitsandbytes quantises blocks of 256 elements, each with a scale in fp32 (optim/optimizer.py, Optimizer2State: state1
# and state2 in uint8, absmax1 and absmax2).
EIGHT_BIT_BLOCK = 256.0
EIGHT_BIT_MOMENTS = 2 * (1.0 + FP32_BYTES / EIGHT_BIT_BLOCK)
# Transformer Engine's FusedAdam keeps of an fp32 master weight the 16 bits that the bf16 weight lacks
# (store_param_remainders: Megatron-LM core_v0.13 to 0.19, optimizer/optimizer_config.py). With MXFP8's recipe Megatron
# keeps the whole one itself (use_precision_aware_optimizer_no_fp8_or_ds_fp8).
REMAINDER_BYTES = 2.0
# Of an element that is made orthogonal, moved beside the products and the step: the momentum read (4) and cast (2), its
# norm taken (2), the result read (2) and written as the update (4), which the step reads (4).
ORTHOGONAL_BYTES = 18.0
# Megatron-LM's buckets (core_v0.18 to 0.19, distributed/distributed_data_parallel.py: bucket_size), and when one with
# whole matrices is closed (optimizer/layer_wise_optimizer.py, PADDING_FLOOR).
BUCKET, BUCKET_OF_RANK, FILLED = 40e6, 1e6, 0.9


def stepping(
    framework: Framework, optimizer: Optimizer, precision: str | None = None, *, precise: bool = False
) -> Framework:
    """Return the framework, which runs AdamW in fp32, with another optimizer; itself if the states are as large.

    Changed are the bytes of optimizer state, those that a step moves (all of the state is read and written; gradient
    and weight move as with AdamW), and the stepping, which is FUSED. Muon keeps AdamW for other parameters, and sets
    only `orthogonal`. precision: of matmuls. precise: Megatron-LM's precision-aware optimizer runs, which narrow states
    require.
    """
    usual = framework.bytes.optimizer
    if optimizer.name == "muon":
        state = usual - ADAM_MOMENTS + FP32_BYTES  # one momentum (emerging_optimizers' and torch's Muon alike)
        touched = _touched(framework, state) + ORTHOGONAL_BYTES
        orthogonal = Orthogonal(
            state=state,
            touched=touched,
            iterations=optimizer.ns_steps,
            bucket=BUCKET,
            bucket_of_rank=BUCKET_OF_RANK,
            filled=FILLED,
            over_tensor=OverTensor(optimizer.tp_mode),
        )
        return replace(framework, orthogonal=orthogonal)
    master = FP32_BYTES
    if optimizer.narrow or precise:
        remainder = optimizer.main_params == "fp32" and precision not in ("mxfp8", "fp16")
        master = REMAINDER_BYTES if remainder else WIDTHS[optimizer.main_params]
    state = usual - ADAM_MOMENTS + moments(optimizer) + master - FP32_BYTES
    if state == usual:
        return framework
    bytes_, touched = replace(framework.bytes, optimizer=state), _touched(framework, state)
    return replace(framework, bytes=bytes_, adam_bytes=touched, stepping=Stepping.FUSED)


def moments(optimizer: Optimizer) -> float:
    """Return the bytes per parameter of an optimizer's state without the master weight; KeyError for muon.

    Adafactor's second moment is a sum over rows and one over columns of a matrix; DeepSpeed hands it flat parts of the
    parameters, of each of which it keeps all (transformers/optimization.py, Adafactor._get_options).
    """
    if optimizer.name == "adam":
        return WIDTHS[optimizer.exp_avg] + WIDTHS[optimizer.exp_avg_sq]
    return {"adam8bit": EIGHT_BIT_MOMENTS, "adafactor": FP32_BYTES, "sgd": FP32_BYTES}[optimizer.name]


def _touched(framework: Framework, state: float) -> float:
    return framework.adam_bytes + 2 * (state - framework.bytes.optimizer)

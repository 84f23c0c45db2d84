"""The one way from a framework, a GPU and what a run switches to the behaviour that the cost model counts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.cost.framework import Framework
from symconfig.frameworks.constraint import flash
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, NARROW_REDUCTION, WIDE_FROZEN
from symconfig.frameworks.kernels import changed
from symconfig.frameworks.known import FRAMEWORKS, OWN_LAYERS
from symconfig.frameworks.megatron.behaviour import USER_BUFFERS, TransformerImpl, beside_another
from symconfig.graph.implementation import Kernel
from symconfig.schedule.timeline import Start

# torch.compile fuses chains of element-wise kernels: options of `changed`.
COMPILED: Mapping[str, Any] = {"fused_norm": True, "fused_activation": True, "fused_rope": True, "fused_yarn": True}

# Liger's kernels of layers; its loss is another switch.
LIGER: Mapping[str, Any] = {"fused_norm": True, "fused_activation": True, "fused_rope": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Choices of a run that differ from its framework's usual behaviour.

    Every reader of a configuration (Megatron-LM's options, a DeepSpeed JSON, a measured row) fills in this class.

    implementation: options of `kernels.changed`. bytes, hide, framework: fields of `Bytes`, `Hide` and `Framework` with
    their values. reduces_beside: gradient reductions overlap with the backward. gathers_ahead: sharded weights are
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
        """Return the fields of `Hide` that the switches set: 0.0 for an overlap that is off."""
        never = {"data": self.reduces_beside, "sharded_weights": self.gathers_ahead, "pp": self.sends_beside}
        pieces = USER_BUFFERS if self.cuts_products else {}
        return {**self.hide, **{name: 0.0 for name, overlaps in never.items() if not overlaps}, **pieces}


def usual(
    name: str,
    architecture: str,
    transformer_impl: TransformerImpl = "transformer_engine",
    attention: str | None = None,
) -> Framework:
    """Return the framework `name` with its usual behaviour on a GPU architecture.

    transformer_impl: `local` takes Megatron-LM's own layers; other frameworks stay. attention: the kernel that the job
    asks for, None: no wish. Where flash attention does not run, a framework that would use it gets Transformer Engine's
    fused softmax, or PyTorch's operators one by one. An unknown name raises KeyError.
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

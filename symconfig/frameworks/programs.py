"""What the programs that targets write for do not run of their framework's plans, beside what the framework refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from symconfig.frameworks.constraint import Constraint, only
from symconfig.plans.configuration_set import among, no

# Programs that take the layers of the first and the last stage, and no layout string (so verl's and NeMo-RL's examples
# of Qwen3-235B and DeepSeek-V3).
ENDS_ONLY = frozenset(("nemo-rl", "slime", "verl"))
# Programs in which the patches of a vision tower enter the first layers, which must be in the first chunk.
TOWER_IN_FIRST_CHUNK = frozenset(("ms-swift",))


def _of_megatron(name: str, source: str) -> tuple[Constraint, ...]:
    """Return the constraints of a program that trains by reinforcement learning on Megatron-LM.

    It has ZeRO 1 and 16 bits; no CUDA graphs, user buffers, overlap of experts, offload of activations, fused loss,
    weight shards, expert capacity or fp8 attention. name: of the program, for the sentences.
    """
    own, sized = partial(only, source=source), f"of one size, and {name}'s sequences are not"
    sharding, bits = "runs Megatron-LM's distributed optimizer, and no other sharding", f"{name} trains in 16 bits"
    return (
        own("zero_stage", (1,), 3, "zero=1", f"{name} {sharding}"),
        own("precision", ("bf16", "fp16"), "fp8", "precision=bf16 precision=fp16", bits),
        own("cuda_graphs", ("none",), "all", "cuda_graphs=none", f"CUDA graphs are {sized}"),
        own(
            "overlap_tp_comm", (False,), True, "user_buffers=off", f"user buffers are {sized}"
        ),
        own(
            "overlap_moe_a2a", (False,), True, "moe_overlap=off", f"{name} waits for the experts' all-to-all"
        ),
        own("activation_offload", (False,), True, "activation_offload=0", f"{name} keeps activations on the GPU"),
        own("fused_loss", (False,), True, "fused_loss=off", f"{name} has a loss of its own"),
        own("gtp", (1,), 2, "gtp=1", f"weight shards are not written for {name}"),
        own("expert_capacity", (0.0,), 1.5, "expert_capacity=none", f"{name} repeats no step beyond it"),
        own("fp8_attention", (False,), True, "fp8_attention=off", bits),
    )  # fmt: skip


def _samples(rule: str, source: str) -> Constraint:
    """Return the constraint that dp divides the samples of an update of reinforcement learning."""
    return Constraint(
        name="samples over replicas",
        predicate=lambda f, p: f.samples % p.dp != 0,
        rule=rule,
        got="{p.dp} for {f.samples} samples",
        pins=("dp",),
        source=source,
        example={"samples": 12, "dp": 8},
    )


def _recomputed(predicate: Callable[[Any, Any], Any]) -> Constraint:
    """Return the constraint that all layers are recomputed or none. predicate: true where only some are."""
    return Constraint(
        name="recompute of some layers",
        predicate=predicate,
        rule="Transformers recomputes all layers or none",
        got="the first {p.recompute_layers} of {f.num_hidden_layers}",
        pins=("recompute=none", "recompute=full"),
        source="transformers/modeling_layers.py, GradientCheckpointingLayer",
        example={"num_hidden_layers": 32, "recompute": "full", "recompute_method": "block", "recompute_layers": 1},
    )


def _some_layers(f: Any, p: Any) -> Any:
    return (p.recompute_method == "block") & (p.recompute_layers < f.num_hidden_layers)


def _pairs(name: str, source: str) -> Constraint:
    """Return the constraint that a micro-batch has whole examples: of two sequences each if answers come in pairs."""
    return Constraint(
        name="whole pairs",
        predicate=lambda f, p: p.micro % f.per_example != 0,
        rule=f"{name} has whole pairs in a micro-batch",
        got="{p.micro}",
        pins=("mbs",),
        source=source,
        example={"per_example": 2, "micro": 1},
    )


_EXPERTS = only(
    "ep", (1,), 2, "ep=1", "AutoEP is started by the generated training script only",
    source="templates/deepspeed/train.py",
)  # fmt: skip
_AROUND_TRANSFORMERS = (_EXPERTS, _recomputed(_some_layers))


def _tuner(name: str, source: str) -> tuple[Constraint, ...]:
    """Return the constraints of a program around Transformers' Trainer, which has no AutoEP, AutoTP or Ulysses."""
    own, switch = partial(only, source=source), f"{name} has no switch for DeepSpeed's"
    degrees = (own("tp", (1,), 2, "tp=1", f"{switch} AutoTP"), own("cp", (1,), 2, "cp=1", f"{switch} Ulysses"))
    return (*_AROUND_TRANSFORMERS, *degrees, _pairs(name, source))


_OF_FSDP = frozenset(("fsdp",))
_SLIME, _NEMO_RL, _VERL = "slime/backends/megatron_utils", "nemo_rl/models/megatron/setup.py", "verl/workers"
_OPENRLHF, _MS_SWIFT, _TRL = "openrlhf/cli/train_ppo_ray.py", "ms-swift 4.6.0, megatron/arguments", "trl/trainer"
_of_mindspeed = partial(only, source="MindSpeed, mindspeed/features_manager")
_of_swift = partial(only, source=_MS_SWIFT)
_BUFFERS = "user buffers are of one size (Transformer Engine, copy_into_buffer), and its packed sequences are not"
# By target. What depends on the job alone, or on the layers of stages, its renderer refuses.
PROGRAMS: Mapping[str, tuple[Constraint, ...]] = {
    "megatron": (
        only("fp8_attention", (False,), True, "fp8_attention=off", "no option of Megatron-LM's sets fp8 attention",
              source="megatron/training/arguments.py: fp8_dot_product_attention is left out of its options"),
    ),
    "slime": (
        *_of_megatron("slime", _SLIME),
        _samples("slime counts the samples of an update in micro-batches of each rank", _SLIME),
        only(
            "moe_dispatcher", (None, "alltoall", "flex"), "allgather",
            "dispatcher=alltoall dispatcher=deepep dispatcher=hybridep",
            "slime's sequences are of any length, for which Megatron-LM's allgather is not", source=_SLIME,
        ),
    ),
    "nemo-rl": (
        *_of_megatron("NeMo-RL", _NEMO_RL),
        _samples("NeMo-RL divides the samples of an update over data-parallel ranks", _NEMO_RL),
        only("vpp", (1,), 2, "vpp=1", "NeMo-RL's stages are of one chunk", source=_NEMO_RL),
        only(
            "optimizer_offload", (0.0, 1.0), 0.5, "optimizer_offload=0 optimizer_offload=1",
            "NeMo-RL's optimizer is on the host as a whole, or not at all", source=_NEMO_RL,
        ),
        Constraint(
            name="recompute of some layers",
            predicate=lambda f, p: (p.recompute_method == "block") | (p.recompute == "full") & (p.recompute_layers > 1),
            rule="NeMo-RL runs every layer again, one by one, or parts of all",
            got="some layers",
            pins=("recompute=none", "recompute=selective"),
            source=_NEMO_RL,
            example={"num_hidden_layers": 32, "recompute": "full", "recompute_method": "block", "recompute_layers": 1},
        ),
    ),
    "verl": (
        *_of_megatron("verl", _VERL),
        only(
            "optimizer_offload", (0.0,), 1.0, "optimizer_offload=0",
            "an optimizer that steps on the host is not written for verl", source=_VERL,
        ),
        Constraint(
            name="vocabulary over tp",
            predicate=lambda f, p: f.vocab_size % p.tp != 0,
            rule="verl's workers do not pad the vocabulary, which must divide over tp",
            sentence=(
                "verl's workers do not pad the vocabulary, and {f.vocab_size:,} words cannot be split over tp {p.tp}"
            ),
            got="{p.tp}",
            pins=("tp",),
            source="megatron-bridge, GPTModelProvider.should_pad_vocab, which verl leaves off",
            example={"vocab_size": 32001, "tp": 2},
        ),
    ),
    "verl-fsdp": (
        only(
            "precision", ("bf16",), "fp16", "precision=bf16", "verl's FSDP workers are planned in bf16", source=_VERL
        ),
        only(
            "recompute_method", (None, "uniform"), "block", "recompute=none",
            "verl's FSDP workers run all layers again, or none", source=_VERL,
        ),
    ),
    "openrlhf": (
        *_AROUND_TRANSFORMERS,
        only(
            "cp", (1,), 2, "cp=1", "OpenRLHF divides sequences by ring attention, which is not priced", source=_OPENRLHF
        ),
        only(
            "param_offload", (False,), True, "zero=..2 optimizer_offload=0",
            "OpenRLHF keeps the trained model's weights on the GPU", source=_OPENRLHF,
        ),
        only(
            "optimizer_offload", (0.0, 1.0), 0.5, "optimizer_offload=0 optimizer_offload=1",
            "OpenRLHF's optimizer is on the host as a whole, or not at all", source=_OPENRLHF,
        ),
        _samples("OpenRLHF divides the samples of an update over data-parallel ranks", _OPENRLHF),
        _pairs("OpenRLHF", _OPENRLHF),
    ),
    "accelerate": _AROUND_TRANSFORMERS,
    "transformers": (
        _EXPERTS,
        # Beside FSDP the Trainer recomputes every n-th layer, too.
        _recomputed(lambda f, p: no(among(f.backend, _OF_FSDP)) & _some_layers(f, p)),
        Constraint(
            name="ulysses beside FSDP",
            predicate=lambda f, p: among(f.backend, _OF_FSDP) & (p.cp > 1),
            rule="Accelerate runs Ulysses with DeepSpeed alone",
            got="{p.cp}",
            pins=("cp=1",),
            source="accelerate/parallelism_config.py",
            example={"backend": "fsdp", "cp": 2},
        ),
    ),
    "trl": (
        *_tuner("TRL", _TRL),
        Constraint(
            name="answers of a KL term",
            predicate=lambda f, p: f.reads_others & (p.micro < 2),
            rule="TRL makes the KL term of other answers of a micro-batch, of which it needs two",
            got="{p.micro}",
            pins=("mbs=2..",),
            source=_TRL,
            example={"reads_others": True, "micro": 1},
        ),
    ),
    "llamafactory": _tuner("LLaMA-Factory", "LLaMA-Factory 0.9.5, hparams"),
    "axolotl": (
        *_tuner("Axolotl", "Axolotl 0.18, utils/schemas"),
        Constraint(
            name="recompute of unpacked Nemotron-H",
            predicate=lambda f, p: (
                among(f.model_type, frozenset(("nemotron_h",))) & (p.recompute != "none") & no(f.packed)
            ),
            rule="Axolotl recomputes layers of this family only where sequences are packed",
            got="{p.recompute}",
            pins=("recompute=none",),
            source="Axolotl 0.18",
            example={"model_type": "nemotron_h", "recompute": "full", "packed": False},
        ),
    ),
    "mindspeed": (
        _of_mindspeed("precision", ("bf16", "fp16"), "fp8", "precision=bf16 precision=fp16",
                      "MindSpeed has 8-bit kernels for Transformer Engine's layers alone, unpriced here"),
        _of_mindspeed("cp_comm", (None, "p2p", "a2a"), "all_gather", "cp_comm=p2p cp_comm=a2a",
                      "MindSpeed's local layers exchange context by rings or by Ulysses"),
        _of_mindspeed("moe_dispatcher", (None, "alltoall"), "flex", "dispatcher=alltoall",
                      "DeepEP and HybridEP are for NVIDIA's GPUs"),
        _of_mindspeed("zero_stage", (0, 1), 3, "zero=..1", "Megatron-FSDP with MindSpeed is not priced"),
        _of_mindspeed("gtp", (1,), 2, "gtp=1", "weight shards are Transformer Engine's, which Ascend has not"),
        _of_mindspeed("cuda_graphs", ("none",), "all", "cuda_graphs=none", "CUDA graphs are NVIDIA's"),
        _of_mindspeed("fp8_attention", (False,), True, "fp8_attention=off", "MindSpeed trains in 16 bits here"),
        _of_mindspeed("overlap_tp_comm", (False,), True, "user_buffers=off",
                      "user buffers are of Transformer Engine, which Ascend has not"),
        _of_mindspeed("optimizer_offload", (0.0,), 1.0, "optimizer_offload=0",
                      "MindSpeed swaps states by --swap-optimizer, which is not priced"),
    ),
    "ms-swift-deepspeed": _tuner("ms-swift", "ms-swift 4.6.0, arguments"),
    "ms-swift": (
        _of_swift("zero_stage", (0, 1), 2, "zero=..1", "ms-swift leaves the gradients of Megatron-FSDP in bf16"),
        _of_swift("overlap_tp_comm", (False,), True, "user_buffers=off", _BUFFERS),
        _of_swift("gtp", (1,), 2, "gtp=1", "weight shards are not written for ms-swift"),
        _of_swift("cuda_graphs", ("none",), "all", "cuda_graphs=none", "ms-swift's trainer captures no CUDA graphs"),
        _of_swift("expert_capacity", (0.0,), 1.5, "expert_capacity=none",
                  "ms-swift's trainer repeats no step whose tokens exceed it"),
        _of_swift("fp8_attention", (False,), True, "fp8_attention=off", "ms-swift has no argument for fp8 attention"),
        _of_swift("overlap_moe_a2a", (False,), True, "moe_overlap=off",
                  "ms-swift's trainer does not hide the experts' all-to-all"),
        _of_swift("activation_offload", (False,), True, "activation_offload=0",
                  "ms-swift's trainer keeps activations on the GPU"),
        Constraint(
            name="gradients in bf16",
            predicate=lambda f, p: (p.grad_bytes == 2) & no(among(p.precision, frozenset(("fp16",)))),
            rule="ms-swift accumulates and reduces the gradients of bf16 in fp32",
            pins=("grad_dtype=fp32",),
            source=_MS_SWIFT,
            example={"grad_bytes": 2, "precision": "bf16"},
        ),
        Constraint(
            name="gathered weights in mxfp8",
            predicate=lambda f, p: p.fp8_param_gather & (p.precision == "mxfp8"),
            rule="ms-swift has no argument for the buffer through which weights in mxfp8 are gathered",
            pins=("fp8_param_gather=off",),
            source=_MS_SWIFT,
            example={"fp8_param_gather": True, "precision": "mxfp8"},
        ),
    ),
}  # fmt: skip


def of_program(target: str | None) -> tuple[Constraint, ...]:
    """Return the constraints of a target's program beside its framework's; () for None and a framework's own target."""
    return PROGRAMS.get(target or "", ())

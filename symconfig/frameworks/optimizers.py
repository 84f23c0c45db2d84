"""What an optimizer keeps and moves of each parameter: a framework that runs AdamW made one that runs another."""

from __future__ import annotations

from dataclasses import replace

from symconfig.cost.framework import Framework, Orthogonal, OverTensor, Stepping
from symconfig.descriptor.training import Optimizer

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

    A step reads and writes all of its state, and moves gradient and weight as AdamW does. Muon keeps AdamW for other
    parameters, and sets only `orthogonal`. precision: of matmuls. precise: Megatron-LM's precision-aware optimizer
    runs, which narrow states require.
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

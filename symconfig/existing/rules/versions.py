"""Old names of Megatron-LM's options, and what says the same today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# refused: the parser takes it, and validate_args stops. idle: taken, and does nothing. old: taken, and means the new.
# gone: in no release that symconfig knows (core_v0.11 on), or not in the later ones.
State = Literal["refused", "idle", "old", "gone"]


@dataclass(frozen=True, slots=True)
class Old:
    """today: options that say it now; None: nothing does, or need not."""

    state: State
    today: str | None
    why: str


# arguments.py of core_v0.11.0 to d98e8a64; of what is gone the releases before, v2.5 to core_v0.10.
OLD: Mapping[str, Old] = {
    "--batch-size": Old("refused", "--micro-batch-size", "validate_args asserts that it is absent"),
    "--model-parallel-size": Old("refused", "--tensor-model-parallel-size", "validate_args asserts that it is absent"),
    "--warmup": Old("refused", "--lr-warmup-fraction", "validate_args asserts that it is absent"),
    "--checkpoint-activations": Old(
        "refused",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        "validate_args prints a line and exits",
    ),
    "--no-position-embedding": Old(
        "old", "--position-embedding-type rope or none", "without rotary embeddings validate_args raises"
    ),
    "--use-rotary-position-embeddings": Old("old", "--position-embedding-type rope", "means the same"),
    "--use-mcore-models": Old("idle", None, "Megatron-LM builds megatron-core's models anyway"),
    "--use-dist-ckpt": Old("idle", "--ckpt-format torch_dist", "it has no effect"),
    "--dist-ckpt-format": Old("idle", "--ckpt-format", "it has no effect"),
    "--ckpt-fully-parallel-save": Old("idle", None, "it is the default"),
    "--fp8-interval": Old("idle", None, "it is ignored"),
    "--moe-layer-recompute": Old(
        "old",
        "--recompute-granularity selective --recompute-modules moe",
        "TransformerConfig turns it into that, and refuses it beside full recompute",
    ),
    "--enable-cuda-graph": Old("old", "--cuda-graph-impl local", "validate_args turns it into that"),
    "--external-cuda-graph": Old("old", "--cuda-graph-impl transformer_engine", "validate_args turns it into that"),
    "--cuda-graph-scope": Old("old", "--cuda-graph-modules", "validate_args turns it into that"),
    "--hybrid-override-pattern": Old("old", "--hybrid-layer-pattern", "validate_args turns it into that"),
    "--no-weight-decay-cond-type": Old("old", "--apply-wd-to-qk-layernorm", "validate_args turns it into that"),
    "--rampup-batch-size": Old(
        "old", "--step-batch-size-schedule", "num_microbatches_calculator.py announces its removal"
    ),
    "--use-custom-fsdp": Old("gone", "--use-megatron-fsdp", "renamed in core_v0.14"),
    "--keep-fp8-transpose-cache-when-using-custom-fsdp": Old(
        "gone", "--keep-fp8-transpose-cache", "renamed in core_v0.14"
    ),
    "--use-legacy-models": Old("gone", None, "the models before megatron-core left in core_v0.18"),
    "--moe-use-legacy-grouped-gemm": Old("gone", "--moe-grouped-gemm", "left in core_v0.17"),
    "--moe-extended-tp": Old("gone", "--expert-tensor-parallel-size", "left in core_v0.17"),
    "--no-async-tensor-model-parallel-allreduce": Old("gone", None, "left in core_v0.17"),
    "--pipeline-model-parallel-split-rank": Old("gone", None, "left in core_v0.14"),
    "--encoder-tensor-model-parallel-size": Old("gone", None, "left in core_v0.14"),
    "--encoder-pipeline-model-parallel-size": Old("gone", None, "left in core_v0.14"),
    "--no-scatter-gather-tensors-in-pipeline": Old("gone", None, "left in core_v0.18"),
    "--hybrid-attention-ratio": Old("gone", "--hybrid-layer-pattern", "left in core_v0.17"),
    "--hybrid-mlp-ratio": Old("gone", "--hybrid-layer-pattern", "left in core_v0.17"),
    "--tiktoken-special-tokens": Old("gone", None, "left in core_v0.18"),
    "--DDP-impl": Old("gone", "--use-distributed-optimizer", "there is one implementation of data parallelism"),
    "--no-contiguous-buffers-in-local-ddp": Old("gone", None, "gradients always lie in contiguous buffers"),
    "--checkpoint-num-layers": Old("gone", "--recompute-num-layers", "renamed"),
    "--checkpoint-method": Old("gone", "--recompute-method", "renamed"),
    "--activations-checkpoint-method": Old("gone", "--recompute-method", "renamed"),
    "--activations-checkpoint-num-layers": Old("gone", "--recompute-num-layers", "renamed"),
    "--distribute-checkpointed-activations": Old("gone", "--distribute-saved-activations", "renamed"),
    "--layernorm-epsilon": Old("gone", "--norm-epsilon", "renamed"),
    "--fp8-hybrid": Old("gone", "--fp8-format hybrid", "renamed"),
    "--fp8-e4m3": Old("gone", "--fp8-format e4m3", "renamed"),
    "--no-query-key-layer-scaling": Old("gone", None, "it is the default"),
    "--delay-grad-reduce": Old("gone", None, "gradients are reduced as early as they are there"),
    "--no-delay-grad-reduce": Old("gone", None, "gradients are reduced as early as they are there"),
    "--overlap-p2p-communication": Old("gone", None, "it is the default"),
    "--standalone-embedding-stage": Old("gone", "--account-for-embedding-in-pipeline-split", "its successor"),
    "--expert-parallel": Old("gone", "--expert-model-parallel-size", "a number now"),
}

"""What Megatron-LM does with a plan, in the terms of the cost model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from symconfig.cost.framework import Bytes, Framework, Hide
from symconfig.frameworks.megatron.releases import MEGATRON_VOCAB_MULTIPLE
from symconfig.graph.implementation import (
    Adapters,
    Angles,
    Attention,
    Choosing,
    ExpertKernels,
    Experts,
    Implementation,
    Kernel,
    Linear,
    Loss,
    LossKernel,
    NormKernel,
    Rotation,
    RotationKernel,
    Routing,
)
from symconfig.graph.operator import Leg

Graphed = Literal["none", "router", "outside experts", "all", "full iteration"]
# What CUDA graphs replay of a layer, by scope. The router: with its norm and the counts of tokens.
GRAPHED: dict[Graphed, frozenset[Leg]] = {
    "none": frozenset(),
    "router": frozenset({Leg.CHOICE}),
    "outside experts": frozenset({Leg.APART, Leg.CHOICE}),
    "all": frozenset(Leg),
    "full iteration": frozenset(Leg),
}

TransformerImpl = Literal["transformer_engine", "local"]  # --transformer-impl

# Transformer Engine's user buffers (--tp-comm-overlap) cut a product and its collective into pieces that run at once,
# and run the other collectives of the backward beside whole products. Four pieces by default (num_splits in
# transformer_engine/pytorch/module/base.py, initialize_ub): the last one's collective, or the first one's, shows.
USER_BUFFERS: dict[str, float] = {"tp_forward": 0.75, "tp_backward": 0.75, "tp_pieces": 4}

# Architectures on which what many hardware queues hold starts in the order in which it was launched (Megatron-LM,
# arguments.py, validate_args: CUDA_DEVICE_MAX_CONNECTIONS need not be 1 since Blackwell).
MANY_QUEUES = frozenset(("blackwell",))

# Of the computation beside it, what the experts' all-to-all hides behind; assumed.
EXPERTS_HIDE = 0.9


def beside_another(framework: Framework, architecture: str) -> Framework:
    """Return the framework with experts' all-to-alls overlapped with another microbatch (EXPERTS_HIDE of its work).

    --overlap-moe-expert-parallel-comm requires many hardware queues. On GPUs before Blackwell tensor and context
    parallelism require a single one, so their collectives in the backward (and cp's in the forward) are then exposed.
    """
    hide = framework.hide
    if architecture not in MANY_QUEUES:
        hide = replace(hide, tp_backward=0.0, cp_forward=0.0, cp_backward=0.0)
    return replace(framework, hide=replace(hide, experts=EXPERTS_HIDE))


# bf16 weights; fp32 gradients are accumulated in one buffer; fp32 master weight and two Adam moments.
_MIXED = Bytes(weight=2.0, gradient=4.0, optimizer=12.0)

MEGATRON = Framework(
    name="megatron",
    implementation=Implementation(
        attention=Attention(kernel=Kernel.FLASH, choosing=Choosing.ABSORBED),
        # A norm is one module with the linear layer behind it (Transformer Engine's LayerNormLinear, which keeps the
        # norm's result).
        linear=Linear(joined=True, norm_inside=True, bias_inside=True),
        norm=NormKernel.FUSED,
        rotation=Rotation(kernel=RotationKernel.FUSED),
        loss=Loss(kernel=LossKernel.WIDE_IN_PLACE),  # its own on a split vocabulary, unless --cross-entropy-loss-fusion
        # One kernel each with --moe-router-fusion and --moe-permute-fusion; probabilities scale activations from core
        # 0.12 (transformer/moe/experts.py).
        experts=Experts(kernels=ExpertKernels.GROUPED, routing=Routing.FUSED, weighted_inside=True),
        adapters=Adapters.SPLIT,  # ParallelLinearAdapter (megatron-bridge 0.3.1, peft/utils.py)
    ),
    bytes=_MIXED,
    # Backward all-reduce and reduce-scatter run beside the weight gradient
    # (LinearWithGradAccumulationAndAsyncCommunication).
    # An interleaved schedule sends beside the next chunk (overlap_p2p_communication, on by default).
    # What runs beside what is in the code; the shares are assumed, and `make accuracy` shows what they do: half of the
    # backward's products are weight gradients; rings need their last part whole; the first and the last bucket of
    # gradients have little beside them.
    hide=Hide(tp_backward=0.5, pp=0.8, cp_forward=0.9, cp_backward=0.9, data=0.8, sharded_weights=0.8),
    vocab_multiple=MEGATRON_VOCAB_MULTIPLE,
    step_overhead_s=0.02,  # assumed; the shortest measured steps take 1.1 s
    microbatch_overhead_s=0.0,
    fragmentation=0.02,  # assumed; out-of-memory runs on A100 fit no more
    # Megatron-FSDP's queues (0.19, core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py, whose
    # suggested_communication_unit_size is the larger of two, not the smaller). Its "optim_grads" has no units whose
    # gradients are reduced one after the other (mcore_fsdp_adapter.py, fsdp_unit_modules).
    queued_elements=1e9,
    engine=True,
    # Fitted by hand to Qwen3-30B-A3B with microbatches of 4,096 tokens (megatron_bridge, moe_modelzoo_recipes): a layer
    # takes 8.4 to 9.6 ms forward and backward, on H100 and B200, in bf16 and fp8, with 8 and 16 experts a rank.
    host_kernel_s=50e-6,
)
# Where the chains of kernels stand that the graph's blocks list: rotation, embeddings/rope_utils.py; clamped gates,
# fusions/fused_bias_geglu.py; masked scores, fusions/fused_softmax.py (forward_torch_softmax) and
# dot_product_attention.py (baddbmm); fused softmax, common/fused_softmax of Transformer Engine; routing,
# moe/moe_utils.py (0.19); slots, MoEAlltoAllTokenDispatcher (permute, sort_chunks_by_idxs); experts' biases,
# moe/experts.py (_apply_bias); inputs kept in 16 bits, save_original_input.
# Layers of Megatron-LM's own modules (--transformer-impl local): its autograd functions for linear layers and gated
# activations, PyTorch's norms, attention with its scores in memory, eager rotation and routing.
MEGATRON_LOCAL = replace(
    MEGATRON,
    implementation=replace(
        MEGATRON.implementation,
        attention=Attention(
            kernel=Kernel.MASKED, copies_result=True, copies_shared_heads=True, choosing=Choosing.ABSORBED
        ),
        linear=Linear(norm_inside=False, bias_inside=False, views=True),
        rotation=Rotation(kernel=RotationKernel.EAGER, angles=Angles.APART),
        experts=Experts(kernels=ExpertKernels.IN_TURN, routing=Routing.CHAIN),
    ),
    # Without APEX's kernel a product's bf16 gradient is added to the fp32 sum: 2 and 4 bytes read, 4 written.
    accumulated_bytes=10.0,
    engine=False,
)

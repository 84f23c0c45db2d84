"""What DeepSpeed does with a plan, in the terms of the cost model; the release that files are made for."""

from __future__ import annotations

from symconfig.cost.framework import Bytes, Framework, Hide, Together
from symconfig.frameworks.transformers import written
from symconfig.graph.implementation import (
    Attention,
    Choosing,
    Experts,
    Implementation,
    Linear,
    Loss,
    LossKernel,
    NormKernel,
    Rotation,
    RotationKernel,
    Routing,
)

DEEPSPEED = Framework(
    name="deepspeed",
    implementation=Implementation(
        # Transformers' modules, each operator a kernel of PyTorch's.
        attention=Attention(choosing=Choosing.MASKED),
        linear=Linear(joined=False, norm_inside=False),
        norm=NormKernel.EAGER,
        whole_scan=True,
        rotation=Rotation(kernel=RotationKernel.EAGER),
        fused_activation=False,
        # PyTorch's cross_entropy within the model's forward (transformers/loss/loss_utils.py, ForCausalLMLoss): of its
        # output train.py takes the loss alone, as Trainer.compute_loss does.
        loss=Loss(kernel=LossKernel.WIDE, kept_outputs=0),
        whole_look_up=True,  # AutoTP, runtime/engine.py, auto_vocab_parallel_lm_head
        recomputes_towers=True,
        # Transformers' gate_up_proj
        experts=Experts(weighted_inside=False, joined_weights=True, routing=Routing.INDEXED),
        of_class=written,
    ),
    bytes=Bytes(weight=2.0, gradient=2.0, optimizer=12.0),
    # Assumed: less than Megatron-LM's, since hooks in Python start each of them.
    hide=Hide(data=0.7, sharded_weights=0.7),
    vocab_multiple=1,
    # This and the next two are assumed, above Megatron-LM's. The one measured run of DeepSpeed's engine (an H100 with
    # ZeRO 2, benchmarks/gpu/h100.yaml) is 1.4 % slower than predicted, and its allocator keeps 6 % more than it gives.
    step_overhead_s=0.03,
    microbatch_overhead_s=0.004,
    fragmentation=0.05,
    # stage_1_and_2.py, average_tensor: with use_multi_rank_bucket_allreduce, which is on by default, every bucket is
    # all-reduced, of which each rank then uses its part, whatever reduce_scatter says.
    all_reduced_gradients=True,
    reduced_bytes=2.0,  # runtime/engine.py, communication_data_type: the weights' type, whatever the sum's is
    shards_over_tensor=True,
    offloads_gradients=True,
    added_gradients_at=frozenset({1}),
    # stage3.py and partitioned_param_coordinator.py fetch a module's own weights; symconfig's buckets of what is
    # fetched ahead, and of gradients, are about a square matrix, too.
    together=Together.MATRIX,
)


# The release that the rendered files are made for and checked against.
DEEPSPEED_RELEASE = "0.19.8"
# AutoEP's presets (deepspeed/module_inject/auto_ep_presets), each named like its model_type, whose training on CPU
# ranks gives the loss of plain data parallelism, with Transformers 5.23.
AUTOEP_MODELS = frozenset(("mixtral", "qwen3_moe", "deepseek_v3"))
# Architectures whose training with AutoTP gives the loss of one rank. Of the others AutoTP refuses the tensor-parallel
# plan that Transformers brings (experts), or splits nothing (gpt_oss), or finds no linear layers (gpt2).
AUTOTP_MODELS = frozenset(("llama", "mistral", "qwen", "qwen2", "qwen3"))

# Versions that the checks of this repository run with. DeepSpeed's keys change between releases: pinned exactly.
REQUIREMENTS = {
    "torch": "torch>=2.6",
    "deepspeed": f"deepspeed=={DEEPSPEED_RELEASE}",
    "transformers": "transformers>=5,<6",
    "accelerate": "accelerate>=1.0  # transformers asks for it beside DeepSpeed",
}
ADAPTER_REQUIREMENTS = {"peft": "peft>=0.17,<1"}
QLORA_REQUIREMENTS = {"bitsandbytes": "bitsandbytes>=0.43"}

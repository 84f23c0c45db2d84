"""What every block shares: how the framework implements operators, linear layers with adapters, norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from symconfig.descriptor.model import ModelDescriptor, Norm
from symconfig.graph import dims as d
from symconfig.graph.blocks.adapter import adapter
from symconfig.graph.builder import Builder
from symconfig.graph.operator import LAYER, Element, Tensor, Use, Weight

Kernel = Literal["flash", "fused_softmax", "torch", "masked"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
IN_LINEAR = "norm_in_linear"  # the module of a norm that cannot be recomputed alone


@dataclass(frozen=True, slots=True)
class Implementation:
    """How a framework computes what the descriptor says.

    attention: flash; or scores, softmax and dropout as kernels of their own, with scale, mask and softmax fused into
        one (Megatron-LM's fused softmax) or each in turn (torch: PyTorch in fp32; masked: Megatron-LM's own modules, in
        the scores' precision).
    fused_linears: query, key and value (and gate and up) are one matmul each.
    norms_in_linears: a norm before a linear layer is one module with it, and recomputed only where that is (Transformer
        Engine's LayerNormLinear, which keeps the norm's result); not before a router or a latent down projection.
    fused_norm: one kernel; else a chain of element-wise kernels in fp32 (eager PyTorch).
    fused_activation: the gate, its activation and their product are one kernel.
    fused_rope: one kernel turns a query or key; else PyTorch negates, concatenates, multiplies twice and adds.
    fused_yarn: where rope is fused, YaRN's, too.
    loss: fused keeps the logits only, and its gradient overwrites them; flash does so with a gradient beside them
        (flash-attn's CrossEntropyLoss, whose inplace_backward is off by default); parallel is Megatron-LM's on a split
        vocabulary in fp32; torch is PyTorch's cross_entropy on fp32 logits.
    copied_attention: the attention's result is copied into the order that the projection wants.
    fused_bias: the gradient of a bias comes with the matmul; else a kernel of its own sums over tokens.
    stops_early: recomputing ends with the last tensor that a backward needs, as PyTorch's does since 2.1 when it is not
        re-entrant (torch.utils.checkpoint.set_checkpoint_early_stop).
    dispatcher: how tokens reach their experts: NCCL's all-to-all of slots, sorted by expert on arrival; or DeepEP's or
        HybridEP's kernels, which send the copies of a token for one rank or node once and put them into their slots.
    fused_experts: one grouped kernel each for the experts' products with their gate, clamp, bias and quantisation
        (Transformer Engine's fused grouped MLP); else grouped products and eager kernels between them.
    parallel_adapters: adapters beside a split linear layer are split themselves, in two parallel layers of their own
        (Megatron-Bridge); else each is two plain layers (PEFT).
    gathered_logits: every tensor-parallel rank gathers the logits of the whole vocabulary for the loss.
    whole_look_up: so it does where the head is not the look-up table, which then is whole on every rank; only a table
        for both is split (DeepSpeed's AutoTP, runtime/engine.py, auto_vocab_parallel_lm_head).
    wide_norm: an eager norm multiplies by its weight in fp32, too, and keeps its result before that in fp32.
    viewed_values: queries, keys and values are views of their projection, which so stays whole beside rotated queries
        and keys while one of them is kept; so are the two results of a latent down projection.
    repeated_heads: where query heads share keys and values, those are copied for each of them before the products.
    own_rotations: every layer makes and keeps the cosines and sines of its queries' and of its keys' rotation.
    eager_routing: PyTorch's operators choose experts and sort tokens, and each keeps what it needs; else one kernel
        each (Megatron-LM's --moe-router-fusion and --moe-permute-fusion).
    sequential_experts: a rank's experts run one after the other, each as a module of its own.
    weighted_experts: the router's probabilities scale each expert's activation, in the gate's own kernel where there is
        one (Megatron-LM from core 0.12, transformer/moe/experts.py), and not its output when outputs are combined.
    kept_outputs: microbatches whose logits a pipeline's buffers keep on the last stage, the current one included.
    held_logits: until its backward PyTorch's loss has the logits and their fp32 copy beside it, since a variable holds
        them; else they are given up.
    deferred_gradients: microbatches whose logits' gradients and head's inputs wait until the pipeline drains, when the
        head's weight gradient is computed from them (Megatron-LM's --defer-embedding-wgrad-compute).
    logged_losses: cross-entropies of the logits that are computed again, in fp32, only to be logged.
    """

    attention: Kernel = "flash"
    fused_linears: bool = True
    norms_in_linears: bool = True
    fused_norm: bool = True
    fused_activation: bool = True
    fused_rope: bool = True
    fused_yarn: bool = False
    loss: Literal["fused", "flash", "parallel", "torch"] = "parallel"  # Megatron-LM's default
    gathered_logits: bool = False
    whole_look_up: bool = False
    copied_attention: bool = False
    wide_norm: bool = False
    viewed_values: bool = False
    repeated_heads: bool = False
    own_rotations: bool = False
    eager_routing: bool = False
    sequential_experts: bool = False
    weighted_experts: bool = True
    kept_outputs: int = 1
    fused_bias: bool = True
    parallel_adapters: bool = False
    stops_early: bool = False
    held_logits: bool = True
    deferred_gradients: int = 0
    logged_losses: int = 0
    dispatcher: Dispatcher = "alltoall"
    fused_experts: bool = False


@dataclass(slots=True)
class Context:
    """A builder with the model and the implementation it builds for."""

    model: ModelDescriptor
    how: Implementation
    build: Builder

    @property
    def frozen(self) -> bool:
        return self.model.adapter is not None

    def weight(self, name: str, *dims: str, shared: bool = False) -> Weight:
        """A weight of the base model. shared: another block holds it."""
        adapter = self.model.adapter
        quantised = adapter is not None and adapter.method == "qlora" and len(dims) > 1 and d.VOCAB not in dims
        return Weight(name, dims, frozen=self.frozen, quantised=quantised, shared=shared)

    @property
    def whole_look_up(self) -> bool:
        """Every tensor-parallel rank has the look-up table and the logits for every token."""
        return self.how.whole_look_up and not self.model.tie_word_embeddings

    def adapted(self, names: Sequence[str]) -> bool:
        return self.model.adapter is not None and any(name in self.model.adapter.target_modules for name in names)

    def separate(self, aliases: Sequence[str]) -> bool:
        """A fused linear falls apart when one of its parts has an adapter of its own, unless adapters lie beside it."""
        return not self.how.fused_linears or (self.adapted(aliases) and not self.how.parallel_adapters)


def linear(
    ctx: Context,
    name: str,
    x: Tensor,
    inner: Sequence[str],
    width: Sequence[str],
    outputs: Sequence[Use],
    bias: bool = False,
    aliases: Sequence[str] = (),
    shared: bool = False,
) -> None:
    """outputs = x * W[inner, width] (+ bias), and a low-rank adapter beside it when the model has one here.

    `width` names the weight's output dims; `aliases` are other names under which an adapter may target it.
    """
    batch = (d.EXPERTS,) if d.EXPERTS in x.dims else ()
    weight = ctx.weight(f"{name}.weight", *batch, *inner, *width, shared=shared)
    low = LAYER in ctx.build.modules and outputs[0].tensor.element is Element.ACTIVATION
    ctx.build.matmul(
        name,
        x,
        weight,
        inner,
        outputs,
        ctx.weight(f"{name}.bias", *batch, *width, shared=shared) if bias else None,
        low,
        not ctx.how.fused_bias,
        per=() if ctx.how.fused_experts else batch,
    )
    if ctx.adapted((name, *aliases)):
        adapter(ctx, name, x, inner, width, outputs)


def with_adapter(ctx: Context, name: str, tensor: Tensor, aliases: Sequence[str] = ()) -> Tensor:
    """The tensor that carries the linear's result: after the adapter's sum where there is one."""
    return Tensor(f"{tensor.name}.sum", tensor.dims) if ctx.adapted((name, *aliases)) else tensor


def beside_fused(
    ctx: Context, name: str, x: Tensor, width: Sequence[str], part: Tensor, aliases: Sequence[str] = ()
) -> Tensor:
    """A part of a fused linear's result, after the sum of an adapter that this part has of its own."""
    if not ctx.adapted((name, *aliases)):
        return part
    adapter(ctx, name, x, (d.HIDDEN,), width, [Use(part)])
    return Tensor(f"{part.name}.sum", part.dims)


def norm(ctx: Context, name: str, x: Tensor, dim: str = d.HIDDEN, module: str = "layernorm") -> Tensor:
    """RMSNorm or LayerNorm over `dim`.

    An eager RMSNorm keeps its input in fp32 and, for the weight's gradient, its result before the weight; it moves some
    nine times the bytes. LayerNorm is one kernel in eager PyTorch, too; its backward has a second one for the weights'
    gradients, which reads the input and the output's gradient again (ATen, layer_norm_kernel.cu).
    """
    weights = [ctx.weight(f"{name}.weight", dim)]
    if ctx.model.norm is Norm.LAYERNORM and dim == d.HIDDEN:
        weights.append(ctx.weight(f"{name}.bias", dim))
    out = Tensor(name, x.dims)
    statistics = Tensor(f"{name}.statistics", tuple(y for y in x.dims if y != dim), Element.FP32)
    eager = not ctx.how.fused_norm and len(weights) == 1
    saves = [Tensor(f"{name}.fp32", x.dims, Element.FP32) if eager else x, statistics]
    if eager and not weights[0].frozen:
        saves.append(Tensor(f"{name}.normed", x.dims, Element.FP32 if ctx.how.wide_norm else Element.ACTIVATION))
    traffic: tuple[int | Fraction, int | Fraction] = (1, 1)
    if eager:
        traffic = (6, 7)
    elif not ctx.how.fused_norm:
        traffic = (1, 1 if weights[0].frozen else Fraction(5, 3))
    with ctx.build.module(module):
        # LayerNorm reduces a mean and a variance, RMSNorm a mean of squares.
        return ctx.build.elementwise(
            name, [x], out, saves=saves, weights=weights, traffic=traffic, reduces={dim: len(weights)}
        )


def residual(ctx: Context, name: str, stream: Tensor, branch: Tensor) -> Tensor:
    """stream + dropout(branch)."""
    saves = [Tensor(f"{name}.mask", stream.dims, Element.MASK)] if ctx.model.hidden_dropout else []
    total = Tensor(name, stream.dims)  # ranks with parts of a sum would have to draw the same mask
    return ctx.build.elementwise(name, [stream, branch], total, saves=saves, linear=not saves)

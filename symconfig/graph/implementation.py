"""How operators are computed and what each of them keeps, beside what is computed. Frameworks give the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Kernel(StrEnum):
    """Name the kernel that computes attention from queries, keys and values."""

    FLASH = "flash"  # one kernel, of whose scores only each row's statistics are kept
    FUSED_SOFTMAX = "fused_softmax"  # two products; between them one kernel scales, masks and normalises the scores
    IN_TURN = "in_turn"  # a kernel each scales the scores, masks them, widens them to fp32, normalises and narrows them
    NARROW = "narrow"  # the same, but that scores keep their precision
    WIDE = "wide"  # the same in fp32 from copies of queries, keys and values on
    MASKED = "masked"  # the product scales, a mask that is kept is written over the scores, which keep their precision


class Choosing(StrEnum):
    """Name how attention reads the keys that an indexer chooses."""

    KERNEL = "kernel"  # one kernel scores all keys before a query, and one reads the chosen
    MASKED = "masked"  # PyTorch's products make the scores, and attention reads all keys under a mask
    # One kernel each; attention reads latent keys, to which queries are brought and from which its result is, and every
    # tensor-parallel rank scores whole sequences (Megatron-LM's AbsorbedMLASelfAttention and DSAttention).
    ABSORBED = "absorbed"


class NormKernel(StrEnum):
    """The kernel of a norm. What each keeps is in `graph.blocks.common`."""

    FUSED = "fused"
    # RMSNorm: a chain of element-wise kernels in fp32, but for the product with the weight. LayerNorm: PyTorch's own.
    EAGER = "eager"
    EAGER_WIDE = "eager_wide"  # that product, too, and the result before it is kept in fp32
    EAGER_COPYING = "eager_copying"  # and the weight, or one more than it, is copied into fp32 each time
    EAGER_POWER = "eager_power"  # and the root is a power, which keeps the mean square as well
    LAYER_WIDE = "layer_wide"  # PyTorch's kernel on a copy in fp32
    LAYER_COPYING = "layer_copying"  # PyTorch's kernel, with a copy of the weight plus one
    LAYER_IN_TURN = "layer_in_turn"  # LayerNorm as a chain in fp32, with a copy of the weight


class Angles(StrEnum):
    """Name how often the tables of cosines and sines are computed and saved."""

    ONCE = "once"  # for all layers
    BY_LAYER = "by_layer"  # each layer makes them, for its queries and its keys together
    APART = "apart"  # each layer makes them for its queries, and again for its keys


class Routing(StrEnum):
    """Name the code that chooses experts and sorts tokens for them."""

    FUSED = "fused"  # a kernel each
    CHAIN = "chain"  # a chain of operators, and each keeps what it needs (Megatron-LM's)
    FUSED_SORT = "fused_sort"  # a chain chooses, one kernel sorts
    INDEXED = "indexed"  # a chain, with tables of indices for the slots (Transformers, integrations/moe.py)


class RotationKernel(StrEnum):
    """Name the kernel of rotary embeddings."""

    EAGER = "eager"  # negates, concatenates, multiplies twice and adds
    FUSED = "fused"  # one kernel turns a query or key, unless it lengthens it, too
    FUSED_STRETCHED = "fused_stretched"  # and where rope is scaled so that it lengthens queries and keys


class LossKernel(StrEnum):
    """Name how cross-entropy is computed from logits."""

    IN_PLACE = "in_place"  # keeps the logits only, in 16 bits, and its gradient overwrites them
    APART = "apart"  # keeps the logits only, with a gradient beside them
    WIDE_IN_PLACE = "wide_in_place"  # in fp32: the softmax overwrites an fp32 copy, and its gradient the softmax
    WIDE = "wide"  # log-softmax of an fp32 copy, and a look-up of each target in it
    # With the head, chunk by chunk, so that logits are never whole:
    LINEAR = "linear"  # each chunk's gradients follow at once
    TILED = "tiled"  # the backward makes each chunk again


class Router(StrEnum):
    """Name the first step of a router, as a chain of operators, that runs in fp32."""

    NARROW = "narrow"  # nowhere
    SCORES = "scores"  # from its softmax or sigmoid on
    WIDE = "wide"  # its product, too, for which its input is copied


class ExpertKernels(StrEnum):
    """Name how the products of a rank's experts are run."""

    GROUPED = "grouped"  # one product for all experts of a rank, and eager kernels between two of them
    FUSED = "fused"  # one for a product with its gate, clamp, bias and quantisation
    IN_TURN = "in_turn"  # a rank's experts run one after the other, each as a module of its own


class Dispatch(StrEnum):
    """Name how tokens are sent to their experts."""

    SLOTS = "slots"  # an all-to-all of slots, sorted by expert on arrival
    EVERYWHERE = "everywhere"  # every rank gathers all tokens, and results are summed over all
    ONCE_A_RANK = "once_a_rank"  # the copies of a token for one rank are sent once and put into their slots there
    ONCE_A_NODE = "once_a_node"  # those for one node are


class Adapters(StrEnum):
    """Name how low-rank adapters lie beside a linear layer that tensor parallelism splits."""

    PLAIN = "plain"  # two whole layers
    SPLIT = "split"  # two split layers, beside fused layers, too
    # The same; a row-parallel layer's adapter exchanges columns for parts of the sequence, where others gather them
    # (a2a_experimental in megatron-bridge, peft/utils.py).
    EXCHANGED = "exchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Say how attention is computed. kernel: from queries, keys and values to heads.

    Args:
        copies_result: copy the result into the order of the output projection.
        copies_shared_heads: for grouped-query attention, copy keys and values for each query head before the
            products.
        in_fp8: cast queries, keys and values for a fused kernel, which saves those copies and its result's
            (Transformer Engine's --fp8-dpa, pytorch/attention/dot_product_attention/backends.py).
        choosing: how it reads the keys that an indexer chooses.
        wide_products: if products are not fused, copy queries and keys into fp32 for them.
        one_head_apart: one key head for all query heads keeps PyTorch from its fused kernel; its own products are
            WIDE.
    """

    kernel: Kernel = Kernel.FLASH
    copies_result: bool = False
    copies_shared_heads: bool = False
    in_fp8: bool = False
    choosing: Choosing = Choosing.KERNEL
    wide_products: bool = False
    one_head_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Say which linear layers are fused. joined: query, key and value are one product, and so are gate and up.
    products: without `joined`, names of the fused layers.

    norm_inside: a norm before a linear layer is one module with it, and is recomputed only together with it; not
    before a router or a latent down projection. bias_inside: the product also computes the bias gradient; else a
    separate kernel sums over tokens. views: parts of a fused result are views of it, so that all of it is kept while
    one is.
    """

    joined: bool = True
    products: frozenset[str] = frozenset()
    norm_inside: bool = True
    bias_inside: bool = True
    views: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Say how rotary embeddings are computed. wide_angles: tables of cosines and sines are in fp32."""

    kernel: RotationKernel = RotationKernel.FUSED
    angles: Angles = Angles.ONCE
    wide_angles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Say how the loss is computed and which logits stay in memory.

    kept_outputs: microbatches whose logits stay referenced on the last stage until their backward, with the fp32
    copy of the current one; 0: they are released, and only the current one's memory stays allocated.
    deferred_gradients: microbatches whose logits' gradients and head inputs are kept until the pipeline drains, when
    the head's weight gradient is computed from them. logged: number of additional fp32 cross-entropies that are
    computed only for logging.
    """

    kernel: LossKernel = LossKernel.WIDE_IN_PLACE
    kept_outputs: int = 1
    deferred_gradients: int = 0
    logged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Say how experts are computed.

    weighted_inside: router probabilities scale each expert's activation (in the gate's own kernel where there is
    one) instead of its output in the combination. joined_weights: gate and up projections of all experts are one
    parameter, if one rank has all experts. router: the first step in fp32. wide_weights: with indexed routing,
    weights of slots are in fp32. every_token: each expert runs on all tokens; those that did not choose it have weight
    0.
    """

    kernels: ExpertKernels = ExpertKernels.GROUPED
    dispatch: Dispatch = Dispatch.SLOTS
    routing: Routing = Routing.FUSED
    weighted_inside: bool = True
    joined_weights: bool = False
    router: Router = Router.SCORES
    wide_weights: bool = False
    every_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """Say how each kind of operator is computed.

    whole_scan: one autograd function has a state space's scan with its norm and output projection (Transformers with
    mamba-ssm), else with the convolution before it and the gate behind it (Megatron-LM's MambaMixer); it saves its
    inputs and recomputes the rest in the backward.

    fused_activation: gate, activation and their product are one kernel. gelu_in_steps: GELU by tanh is written out in
    products and a power. fp8_activation_store: that kernel saves its
    inputs in 8 bits (Megatron-LM's activation_func_fp8_input_store, core/fusions/fused_bias_swiglu.py).
    gathered_logits: every tensor-parallel rank gathers the logits of the whole vocabulary for the loss. whole_look_up:
    ranks also gather logits if the head is not tied to the embedding table, which then is replicated on every rank;
    only a tied table is split. recomputes_towers: a vision tower's layers are recomputed if the language model's are;
    the tower itself is Transformers' module, replicated on every rank. stops_early:
    recomputation ends with the last tensor that a backward needs. of_class: maps this and a model_type to the
    implementation of the model's own class, if the framework uses that class's modules; else None.
    """

    attention: Attention = field(default_factory=Attention)
    linear: Linear = field(default_factory=Linear)
    norm: NormKernel = NormKernel.FUSED
    rotation: Rotation = field(default_factory=Rotation)
    whole_scan: bool = False
    fused_activation: bool = True
    gelu_in_steps: bool = False
    fp8_activation_store: bool = False
    loss: Loss = field(default_factory=Loss)
    gathered_logits: bool = False
    whole_look_up: bool = False
    experts: Experts = field(default_factory=Experts)
    adapters: Adapters = Adapters.PLAIN
    recomputes_towers: bool = False
    stops_early: bool = False
    of_class: Callable[[Implementation, str], Implementation] | None = None

    def written_for(self, kind: str) -> Implementation:
        """Return the implementation of a model type's own class; self if the framework does not use its modules."""
        return self if self.of_class is None else self.of_class(self, kind)

    def attending(self, kernel: Kernel) -> Implementation:
        """Return a copy with another attention kernel."""
        return replace(self, attention=replace(self.attention, kernel=kernel))

"""The terms in which a framework is described: element sizes, rank grid, what it overlaps, how often it reduces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from symconfig.cost.lattice import Array
from symconfig.cost.machine import Machine, Number
from symconfig.graph.implementation import Implementation
from symconfig.graph.layout import Sharding
from symconfig.graph.operator import FOUR_BIT_BYTES, Leg
from symconfig.schedule.timeline import Start

Degree = TypeVar("Degree", int, NDArray[np.float64])  # of one point, or of many
# The order of ranks, innermost axis first.
DENSE_GRID, EXPERT_GRID = ("tp", "gtp", "cp", "dp", "pp"), ("etp", "ep", "edp")


class Together(StrEnum):
    """What one collective gathers or reduces: all of a stage's weights, those of a block, or one matrix."""

    STAGE = "stage"
    BLOCK = "block"
    MATRIX = "matrix"  # at ZeRO 3; else the stage's


class Stepping(StrEnum):
    """How an optimizer's kernels pass over a rank's tensors (PyTorch, optim/adam.py)."""

    FUSED = "fused"  # one kernel, which needs no memory of its own
    TOGETHER = "foreach"  # operator after operator over all tensors: all roots of second moments are there at once
    IN_TURN = "for-loop"  # tensor after tensor: the root of one, and its quotient


class OverTensor(StrEnum):
    """How tensor-parallel ranks orthogonalise a matrix that is sharded over them (Megatron-LM, --muon-tp-mode)."""

    BLOCKWISE = "blockwise"  # each takes its part for a matrix of its own
    DUPLICATED = "duplicated"  # the whole is gathered, and each iterates on it
    DISTRIBUTED = "distributed"  # each multiplies its part, and every iteration's X X' is summed


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """An optimizer that orthogonalises matrices of layers (Muon) instead of stepping them element by element.

    state: bytes per element, the master weight included. touched: bytes moved per element, as `Framework.adam_bytes`.
    iterations: of Newton-Schulz. At ZeRO 1 matrices are assigned to ranks undivided, bucket by bucket. bucket,
    bucket_of_rank: the least elements of a bucket, in all and per rank. filled: a bucket is closed once it has this
    share of its largest matrix on every rank.
    """

    state: float
    touched: float
    iterations: int
    bucket: float
    bucket_of_rank: float
    filled: float
    over_tensor: OverTensor = OverTensor.BLOCKWISE


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes per parameter.

    weight_cache, frozen_cache: low-precision copies for matmuls, besides the weight itself; the vocabulary has none.
    frozen_rest: what a sharded frozen weight takes besides `frozen`, its bytes as gathered.
    """

    weight: float
    gradient: float
    optimizer: float
    weight_cache: float = 0.0
    frozen: float = 2.0
    frozen_cache: float = 0.0
    frozen_rest: float = 0.0
    quantised: float = FOUR_BIT_BYTES


@dataclass(frozen=True, slots=True)
class Hide:
    """The share of work that a collective may overlap with, by axis and direction; 0 for no overlap.

    tp_forward: also of the gathers before a row-parallel product's backward. tp_pieces: into how many pieces a product
    and its collective are split to overlap; one piece of the collective is then always exposed. pp: sends of an
    interleaved pipeline, overlapped with a chunk's forward.
    """

    tp_forward: float = 0.0
    tp_backward: float = 0.0
    tp_pieces: int = 1
    pp: float = 0.0
    cp_forward: float = 0.0
    cp_backward: float = 0.0
    experts: float = 0.0  # of a whole layer's work, since another microbatch's is beside the experts' all-to-all
    data: float = 0.0
    sharded_weights: float = 0.0
    host: float = 0.5  # copies to host memory share the memory bus and the link with everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework's behaviour in the cost model's terms.

    vocab_multiple: the vocabulary is padded to a multiple of this times tp.
    """

    name: str
    implementation: Implementation
    bytes: Bytes
    hide: Hide
    # Runs Transformer Engine, which has workspaces of its own, and whose low-precision matmuls keep their input for the
    # weight's gradient as they quantised it (module/linear.py); others keep it in 16 bits.
    engine: bool = False
    # The weights of low-precision matmuls exist in low precision only, by rows and by columns, beside the optimizer's
    # master copy (--fp8-param-gather).
    quantised_weights: bool = False
    vocab_multiple: int

    # Seconds of kernels and of the host.
    step_overhead_s: float  # data, logging, Python: once a step
    microbatch_overhead_s: float  # Python and launch gaps once a microbatch and stage
    host_kernel_s: Number = 0.0  # of one host thread to launch an operator: Python, autograd, the driver
    # Each launch waits for its kernel's end (CUDA_LAUNCH_BLOCKING=1), so that the GPU waits for the host at each.
    blocking_launches: bool = False
    # Where the operators stand that are replayed as CUDA graphs, with no host between.
    graphed: frozenset[Leg] = frozenset()
    low_rate: float = 1.0  # of its products in low precision, over those with one scale for a tensor
    attention_rate: float = 1.0  # of its flash attention, over the newest kernels'
    # Moved for each element of a weight's gradient every microbatch, where a kernel of its own adds it to the sum.
    accumulated_bytes: float = 0.0

    # Pipelines.
    # Each tensor-parallel rank sends its part of a whole activation across the pipeline's border, and the receivers
    # gather it (arXiv 2104.04473, section 4.1).
    scattered_sends: bool = False
    # Microbatches that an interleaved schedule runs through a chunk before it turns to the next; 0: as many as stages.
    microbatch_group: int = 0

    # Where ZeRO has weights, gradients and states.
    # Groups of data-parallel replicas that each hold a whole optimizer state (and what ZeRO shards besides).
    optimizer_instances: int = 1
    # ZeRO 1 or 2 that reduces every gradient to every rank, of which each then uses its part.
    all_reduced_gradients: bool = False
    # ZeRO 3 cuts what tensor parallelism leaves whole for its ranks, too, and not only for the replicas
    # (deepspeed/runtime/zero/partition_parameters.py).
    shards_over_tensor: bool = False
    # Bytes of a weight, and of its gradient, in the shards of ZeRO 3, whatever is gathered of them; the rest of `bytes`
    # is the optimizer's. Gradients are there from a backward to the optimizer's step. None: all is as `bytes` says.
    shard_bytes: float | None = None
    # ZeRO 2 and 3 offload the same share of the gradients as of the optimizer state (DeepSpeed).
    offloads_gradients: bool = False

    # Which further copies of them exist.
    # ZeRO stages whose ranks keep the last microbatch's gradients beside a sum in fp32 until the next backward
    # (deepspeed/runtime/bf16_optimizer.py, clear_lp_grads).
    added_gradients_at: frozenset[int] = frozenset()
    # Of each of the rank's parameters, beside gradients: those in 16 bits that wait to be added to a wider sum, and
    # flat copies that collectives take.
    beside_bytes: float = 0.0
    # The optimizer's step gives gradients up (PyTorch's zero_grad), so that one microbatch finds none.
    frees_gradients: bool = False
    # Of a queue: at ZeRO 3 gradients of so many elements, or of twice the largest block's, wait whole to be reduced,
    # and half as many weights are gathered ahead; at ZeRO 2 those of the whole model wait. 0: there is none.
    queued_elements: float = 0.0

    # How data-parallel ranks exchange them.
    # New weights are gathered with the next forward, APART after the optimizer (Megatron-LM without
    # --overlap-param-gather), or, in stages of one chunk, ON_DEMAND: when a stage's first input has come (with it: a
    # hook of the first module, which runs after recv_forward). Such stages else gather at once, after the optimizer.
    gathers: Start = Start.AHEAD
    # What of a stage one collective gathers or reduces: of ZeRO 3 every microbatch.
    together: Together = Together.STAGE
    # ZeRO 3 gives a weight up that is wanted again only after so many elements of others, and so gathers those of a
    # block that runs again twice in the backward.
    reuse_elements: float = math.inf
    # Collectives take a list of tensors, one for each rank, of which the host makes each and launches its copy.
    listed: bool = False
    reduced_bytes: float | None = None  # of a gradient's element on the wire; None: as it is kept
    copied_bytes: float = 0.0  # moved per parameter and microbatch between the collectives' buffers and the tensors

    # The optimizer's step.
    # Bytes touched per parameter by a fused Adam step: master, two moments read and written, gradient read, weight
    # written, and the gradient once more for its norm.
    adam_bytes: float = 34.0
    stepping: Stepping = Stepping.FUSED
    orthogonal: Orthogonal | None = None  # None: matrices of layers are stepped as all parameters are

    # Other memory.
    fragmentation: float  # reserved over allocated, less one
    torch_workspace: float | None = None  # bytes: CUBLAS_WORKSPACE_CONFIG; None: PyTorch's default
    mask_bytes: float = 0.0  # of the attention masks of a micro-batch that a data loader makes

    def sharding(self, zero: int) -> Sharding:
        """Return which of a weight's parts (weight, gradient, state) a ZeRO stage shards over ranks in this framework.

        The framework decides whether gradients stay whole, and whether it shards over tensor ranks and within
        instances.
        """
        return Sharding.of(
            zero,
            whole_gradients=self.all_reduced_gradients,
            over_tensor=self.shards_over_tensor,
            instances=self.optimizer_instances > 1,
        )

    @property
    def kept_gradient_buffers(self) -> bool:
        """Return whether a buffer for each shape of weight's gradient is kept, though gradients are added in place.

        Transformer Engine does (module/base.py, get_dummy_wgrad), unless a kernel of its own adds them.
        """
        return self.engine and not self.accumulated_bytes

    def padded_vocab(self, vocab_size: int, tp: Degree) -> Degree:
        """Return the vocabulary size padded to a multiple of vocab_multiple * tp."""
        multiple = self.vocab_multiple * tp
        return -(-vocab_size // multiple) * multiple

    def stride(self, axes: tuple[str, ...], degrees: Mapping[str, Number]) -> Number:
        """Return the distance in ranks between neighbours of a group over `axes`, [points] or a number.

        It is the product of the degrees of the axes that vary faster in the rank grid: the expert grid if that has the
        first axis, else the dense one. Raises ValueError for an axis of neither.
        """
        grid = EXPERT_GRID if axes[0] in EXPERT_GRID else DENSE_GRID
        result: Number = 1.0
        for axis in grid[: min(grid.index(axis) for axis in axes)]:
            result = result * degrees[axis]
        return result


def element_bytes(framework: Framework, machine: Machine) -> Bytes:
    """Return the bytes per parameter, with the low-precision copies of weights that Transformer Engine keeps.

    They are the framework's own with 16-bit matmuls or without Transformer Engine. Else weight_cache and frozen_cache
    count the copies, less what the weight itself has where weights are kept quantised. Copies of a weight are kept from
    the first microbatch of a step to its last; of a frozen weight in low precision only one, transposed for each
    backward: 70B parameters on one H200 leave room for no more.
    """
    if machine.quantised_bytes >= 2.0 or not framework.engine:
        return framework.bytes
    one, all_copies = machine.quantised_bytes, machine.quantised_copies * machine.quantised_bytes
    if framework.quantised_weights:
        return replace(framework.bytes, weight_cache=all_copies - 2.0, frozen_cache=one - framework.bytes.frozen)
    return replace(framework.bytes, weight_cache=all_copies, frozen_cache=all_copies)


Amount = TypeVar("Amount", float, Array)


def reserved_bytes(peak_bytes: Amount, framework: Framework) -> Amount:
    """Return the bytes that the caching allocator reserves for a peak of allocated bytes, fragmentation included."""
    return peak_bytes * (1 + framework.fragmentation)


def device_bytes(peak_bytes: Amount, machine: Machine, framework: Framework) -> Amount:
    """Return the bytes in use on the device for a peak of allocated bytes: reserved memory and the CUDA context."""
    return reserved_bytes(peak_bytes, framework) + machine.context_bytes


def largest_peak_bytes(usable_bytes: float, machine: Machine, framework: Framework) -> float:
    """Return the peak of allocated bytes for which `device_bytes` equals usable_bytes: its inverse."""
    return (usable_bytes - machine.context_bytes) / (1 + framework.fragmentation)

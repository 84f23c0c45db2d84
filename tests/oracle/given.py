"""What the oracle starts from, by hand: two models, one cluster, Megatron-LM's habits, and how one may run them.

Nothing here or in the oracle's other files comes from the code that it judges (see test_alone.py); `judged.py` alone
asks that code. SI throughout: bytes, seconds, FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Model:
    """RMSNorm, rotary positions, grouped-query attention, gated MLP or experts (experts > 0), no biases."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    channels: int  # of a head
    width: int  # of the MLP, or of one expert
    vocabulary: int
    experts: int = 0
    chosen: int = 1  # experts of a token
    qk_norm: bool = False  # RMSNorm of each head's query and key


# Sizes that no two things share, so that nothing is right by chance; small enough that the host is sometimes too slow.
DENSE = Model("oracle-dense", 8, 1024, 16, 8, 96, 2816, 50_001)
MIXTURE = Model("oracle-mixture", 8, 1280, 16, 8, 128, 1536, 32_003, experts=8, chosen=2, qk_norm=True)
SEQUENCE = 4096


@dataclass(frozen=True)
class Run:
    """One way to run a model: degrees, micro-batch, ZeRO stage, recomputed modules ("layer": full recompute).

    sp: Megatron's sequence parallelism. ulysses: heads are split over cp inside attention; else keys go round a ring.
    imbalance: tokens of the busiest expert over the mean. beside: the experts' all-to-all runs beside another
    microbatch. first: full recompute of the first so many layers of each chunk.
    """

    tp: int = 1
    sp: bool = False
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ulysses: bool = False
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro: int = 1
    microbatches: int = 1
    zero: int = 0
    modules: frozenset[str] = field(default_factory=frozenset)
    first: int = 0
    imbalance: float = 1.0
    beside: bool = False
    sequence: int = SEQUENCE
    offload: float = 0.0  # share of the optimizer state in host memory

    @property
    def edp(self) -> float:
        """Replicas of an expert: ranks of a stage that neither ep nor etp takes."""
        return self.tp * self.cp * self.dp / (self.ep * self.etp)

    @property
    def tokens(self) -> float:
        """Of one microbatch on one rank: cp cuts the sequence, tp does not."""
        return self.micro * self.sequence / self.cp

    @property
    def stream(self) -> float:
        """Tokens of one rank between the tensor-parallel regions (Korthikanti 2022, section 4.2.2)."""
        return self.tokens / (self.tp if self.sp else 1)


@dataclass(frozen=True)
class Level:
    size: float  # GPUs in one domain
    rate: float  # bytes/s of a GPU, one way, what collectives reach of it included
    latency: float


NODE = 8
# Datasheet of an A100-80GB: 312 TFLOP/s in bf16, 108 SMs, 2.039 TB/s; NVLink 300 GB/s one way. Shares of it: chosen.
PEAK = 312e12
UNITS = 108
MEMORY_RATE, MEMORY_SHARE = 2.039e12, 0.75
PRODUCT_SHARE, HALF_K = 0.8, 490.0
LAUNCH = 8e-6
ATTENTION_SHARE, ATTENTION_BACKWARD = 0.4, 0.9
LINK, NETWORK, LINK_SHARE = 300e9, 25e9, 0.8
LINK_LATENCY, NETWORK_LATENCY = 5e-6, 1e-5
CONTEXT = 2 * 2.0**30
MEMORY = 80 * 2.0**30
HBM = MEMORY_RATE * MEMORY_SHARE
LEVELS = (Level(NODE, LINK * LINK_SHARE, LINK_LATENCY), Level(1e12, NETWORK * LINK_SHARE, NETWORK_LATENCY))

# Megatron-LM with Transformer Engine. Per parameter: bf16 weight, fp32 gradient, fp32 master and two Adam moments: 18,
# or 6 + 12 / N bytes with the distributed optimizer (docs of megatron.core.distributed_optimizer).
WEIGHT, GRADIENT, OPTIMIZER = 2.0, 4.0, 12.0
QUEUE = 1e9  # elements of the queue of Megatron-FSDP
ACTIVATION, FP32, INDEX = 2.0, 4.0, 8.0
VOCABULARY_MULTIPLE = 128  # times tp (--make-vocab-size-divisible-by)
HOST_LINK, HOST_ADAM = 25e9, 25e9  # bytes/s to host memory, and of a rank's share of its processors
HOST_LINK_REACHED = 0.8  # of it, while all GPUs of a node copy
ADAM = 34.0  # master and moments read and written (24), gradient read twice (8), weight written (2)
HOST = 50e-6  # of one operator
PAIRED_HOST = 1.4  # of it, where another microbatch runs beside
STEP = 0.02  # of a step
FRAGMENTATION = 0.02
STREAMS = 4  # of grouped products
MIB = 2.0**20
CUBLAS, ENGINE = 8.125 * MIB, 4.0 * MIB  # workspaces of PyTorch and of Transformer Engine before Hopper

# Shares of the work beside it that hide a collective, and what that work loses meanwhile.
HIDE_TENSOR = 0.5  # of the weight's (input's) gradient, backward only
HIDE_RING = 0.9
HIDE_SEND = 0.8  # interleaved
HIDE_DATA = 0.8
HIDE_EXPERTS = 0.9
CONTENTION = 0.2  # of the time of a hidden collective, lost by the work

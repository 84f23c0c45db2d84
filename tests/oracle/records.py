"""What the oracle says of one block: its operators, messages and tensors on one rank, for one microbatch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracle.seconds import memory_bound, product

FORWARD, INPUT, GRADIENT_OF_WEIGHT = "forward", "input", "weight"
Phase = str


@dataclass
class Operator:
    """seconds and host turns by phase; flops by phase of matrix products and attention.

    modules: the recomputed modules that it is part of. live: bytes of its inputs' and outputs' gradients. inside: it is
    on a token's way from the dispatch to the combination of its experts.
    """

    name: str
    seconds: dict[Phase, float]
    host: dict[Phase, float]
    modules: frozenset[str]
    live: float
    flops: dict[Phase, float] = field(default_factory=dict)
    inside: bool = False


@dataclass
class Message:
    """A collective: its seconds before any overlap, the operator with which it runs again, and what of it shows."""

    kind: str
    axis: str
    moved: float  # bytes of the larger buffer
    seconds: float
    shown: float
    phase: Phase
    owner: str
    elements: float = 0.0


@dataclass
class Kept:
    """A tensor that a backward needs. maker: the operator that runs again to have it; "": it enters the block.

    readers: operators whose backward needs it.
    """

    name: str
    size: float
    maker: str
    readers: tuple[str, ...]


@dataclass
class Block:
    """gradient_buffers: elements that Transformer Engine keeps a buffer for; extra: of the largest weight gradient that
    has none, while it is computed, in bytes by operator. libraries: bytes of workspaces beside every block's."""

    name: str
    operators: list[Operator] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    tensors: list[Kept] = field(default_factory=list)
    dense: float = 0.0
    expert: float = 0.0
    vocabulary: float = 0.0
    gradient_buffers: float = 0.0
    libraries: float = 0.0

    def seconds(self, name: str, phase: Phase) -> float:
        return next(op.seconds[phase] for op in self.operators if op.name == name)

    def keep(self, name: str, size: float, maker: str, *readers: str) -> None:
        self.tensors.append(Kept(name, size, maker, readers))

    def multiply(
        self,
        name: str,
        m: float,
        n: float,
        k: float,
        modules: set[str],
        live: float,
        batch: float = 1.0,
        inside: bool = False,
    ) -> None:
        """A linear layer x[m, k] W[k, n]: forward, gradient of x, gradient of W: 2mnk FLOP each.

        A batch of them (experts) is one kernel, for which the host works a third of an operator more for each."""
        turns = 1 + (batch - 1) / 3
        flops = 2 * batch * m * n * k
        self.operators.append(
            Operator(
                name,
                {
                    FORWARD: product(batch, m, n, k),
                    INPUT: product(batch, m, k, n),
                    GRADIENT_OF_WEIGHT: product(batch, k, n, m),
                },
                dict.fromkeys((FORWARD, INPUT, GRADIENT_OF_WEIGHT), turns),
                frozenset(modules),
                live,
                dict.fromkeys((FORWARD, INPUT, GRADIENT_OF_WEIGHT), flops),
                inside,
            )
        )

    def stream_through(
        self,
        name: str,
        forward: float,
        backward: float,
        modules: set[str],
        live: float,
        turns: tuple[float, float] = (1, 1),
        inside: bool = False,
        sorts: float = 0.0,
    ) -> None:
        """An operator bound by the bytes that it moves. sorts: bytes of another kernel of its own, both ways."""
        sorting = memory_bound(sorts) if sorts else 0.0
        self.operators.append(
            Operator(
                name,
                {FORWARD: memory_bound(forward) + sorting, INPUT: memory_bound(backward) + sorting},
                {FORWARD: turns[0], INPUT: turns[1]},
                frozenset(modules),
                live,
                inside=inside,
            )
        )

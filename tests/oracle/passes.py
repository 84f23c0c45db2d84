"""One microbatch through a block: seconds of both passes, and bytes that it leaves and needs, under recompute."""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.given import CUBLAS, ENGINE, HOST, PAIRED_HOST, Run
from tests.oracle.records import FORWARD, Block

# What a module's own result is thrown away with: it comes back just before it is read (Megatron Core's
# CheckpointWithoutOutput). Of the others the result stays where something outside reads it.
DISCARDED = frozenset({"layernorm", "moe_act"})


@dataclass(frozen=True)
class Passes:
    """Seconds (communication apart), of which `again` are in the backward pass; bytes. without: how much longer both
    passes take where no other microbatch is beside them."""

    forward: float
    backward: float
    forward_comm: float
    backward_comm: float
    again: float
    kept: float
    transient: float
    without: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.forward_comm + self.backward_comm


def passes(block: Block, run: Run) -> Passes:
    """Under the run's recompute policy."""
    unit = {op.name: next(iter(op.modules & run.modules), None) for op in block.operators}
    repeated = [op for op in block.operators if unit[op.name]]
    work = sum(op.seconds[FORWARD] for op in block.operators)
    back = sum(t for op in block.operators for phase, t in op.seconds.items() if phase != FORWARD)
    sent = sum(m.shown for m in block.messages if m.phase == FORWARD)
    sent_back = sum(m.shown for m in block.messages if m.phase != FORWARD)
    again = sum(op.seconds[FORWARD] for op in repeated)
    again_comm = sum(m.shown for m in block.messages if m.phase == FORWARD and unit[m.owner])
    paired = run.beside and any(op.inside for op in block.operators)
    each = HOST * (PAIRED_HOST if paired else 1.0)
    host = each * sum(turns for op in block.operators for phase, turns in op.host.items() if phase != FORWARD)
    host_again = each * sum(op.host[FORWARD] for op in repeated)
    busy = back + again + sent_back + again_comm
    kept, back_to_life = _tensors(block, unit)
    result = Passes(
        work + _wait(block, paired, each),
        back + again + max(host + host_again - busy, 0.0),
        sent,
        sent_back + again_comm,
        again + again_comm,
        kept,
        max(op.live for op in block.operators) + CUBLAS + ENGINE + back_to_life + kept * paired,
    )
    if not paired:
        return result
    alone, beside = (_plain(block, another, each) for another in (False, True))
    return Passes(
        *(getattr(result, name) for name in Passes.__dataclass_fields__ if name != "without"),
        without=sum(max(a - b, 0.0) for a, b in zip(alone, beside, strict=True)),
    )


def _tensors(block: Block, unit: dict[str, str | None]) -> tuple[float, float]:
    """Bytes kept for a microbatch, and those of the recomputed module that brings back most."""
    kept, modules = 0.0, {}
    for tensor in block.tensors:
        module = unit[tensor.maker] if tensor.maker else None
        outside = any(unit[reader] != module for reader in tensor.readers)
        if module is None or (outside and module not in DISCARDED):
            kept += tensor.size
        else:
            modules[module] = modules.get(module, 0.0) + tensor.size
    return kept, max(modules.values(), default=0.0)


def _shown(block: Block, paired: bool, ahead: bool, inside: bool | None = None) -> float:
    """Communication of a pass. paired: as it is beside another microbatch."""
    return sum(
        m.shown if paired or m.axis != "ep" else m.seconds
        for m in block.messages
        if (m.phase == FORWARD) is ahead and (inside is None or (m.axis == "ep") is inside)
    )


def _wait(block: Block, paired: bool, host: float) -> float:
    """What the GPU waits for the host forward. With experts from one count of their tokens, for which the host waits,
    to the next layer's: each operator's messages come before it, and no operator is done before it is launched. Without
    experts the host may run ahead as far as it likes."""
    forward = [op for op in block.operators if FORWARD in op.seconds]
    inside = [op.inside for op in forward]
    first = inside.index(True) if any(inside) else 0
    launched = done = busy = 0.0
    for op in (*forward[first:], *forward[:first]):
        sent = (m for m in block.messages if m.phase == FORWARD and m.owner == op.name)
        taken = op.seconds[FORWARD] + sum(m.shown if paired or m.axis != "ep" else m.seconds for m in sent)
        launched, done, busy = launched + host * op.host[FORWARD], done + taken, busy + taken
        if any(inside):
            done = max(done, launched)
    return max(done, launched) - busy


def _plain(block: Block, paired: bool, each: float) -> tuple[float, float]:
    """Forward and backward of a block that recomputes nothing, with or without another microbatch beside it."""
    work = sum(op.seconds[FORWARD] for op in block.operators)
    back = sum(t for op in block.operators for phase, t in op.seconds.items() if phase != FORWARD)
    host = each * sum(turns for op in block.operators for phase, turns in op.host.items() if phase != FORWARD)
    sent, sent_back = (_shown(block, paired, ahead) for ahead in (True, False))
    return work + _wait(block, paired, each) + sent, max(back + sent_back, host)

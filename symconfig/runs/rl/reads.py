"""How many tokens of a step's samples are read at once, where nothing is kept for a backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.existing.recover.rl.read import Read
from symconfig.existing.recover.rl.sequences import Packed, in_a_row
from symconfig.render.learning import WORTH_READING
from symconfig.runs.rl.phases import Layout
from symconfig.runs.rl.question import Question
from symconfig.runs.rl.trained import Trained


def as_trained(question: Question, actor: Trained) -> Read:
    """Return the micro-batches of an update, in which samples may be read, too."""
    rl, batch, degrees = question.rl, actor.candidate.batch, actor.candidate.parallel
    room = batch.micro * batch.seq_length
    if question.learns.sequences != "packed":
        return Read(room=room, passes=rl.updates * batch.num_microbatches, fill=actor.fill)
    return Packed(room=room, length=rl.mean_tokens).as_trained(rl, degrees.dp, in_a_row(degrees))


def with_reads(question: Question, layout: Layout) -> Layout:
    """Return a layout that reads samples in the largest micro-batches that fit, and in none that are twice as large as
    others and save less time than is worth it: an update's to begin with, or smaller ones where these do not fit."""
    if not question.learns.reads_apart or (layout.rewards is not None and layout.rewards.how.by == "workers"):
        return layout
    longest, batch, degrees = question.rl.longest, layout.actor.as_written.batch, layout.actor.candidate.parallel
    room = batch.micro * batch.seq_length
    chosen = _at(layout, room)
    while not question.has_room(chosen.reads) and (half := _divided(room // 2, degrees.cp)) >= longest:
        room, chosen = half, _at(layout, half)
    for larger in _larger(layout, room):
        worth = _seconds(larger) <= (1 - WORTH_READING) * _seconds(chosen)
        if not worth or not question.has_room(larger.reads):
            break
        chosen = larger
    return chosen


def _larger(layout: Layout, room: int) -> Iterator[Layout]:
    """Yield the layout with twice as many tokens each time, until a replica reads all of its samples at once."""
    while True:
        room *= 2
        larger = _at(layout, room)
        yield larger
        if larger.read.room < room:
            return


def _at(layout: Layout, room: int) -> Layout:
    rl, degrees = layout.rl, layout.actor.candidate.parallel
    read = Packed(room=room, length=rl.mean_tokens).read(rl, degrees.dp, in_a_row(degrees))
    return replace(layout, read=read, reference_read=read)


def _divided(room: int, ranks: int) -> int:
    return -(-room // ranks) * ranks


def _seconds(layout: Layout) -> float:
    return sum(phase.seconds for phase in layout.reads)

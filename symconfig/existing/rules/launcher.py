"""Rules about what starts the program: how many processes, on which GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.errors import Problem
from symconfig.existing.launch.reading import World
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.rules.rule import Finding, Rules


@dataclass(frozen=True, slots=True)
class LauncherFacts:
    """world: what the launcher says. gpus: what a person says beside. gpus_per_node: of the cluster; None: unknown.

    scripts: files that bash reads.
    """

    world: World
    gpus: int | None = None
    gpus_per_node: int | None = None
    scripts: tuple[Text, ...] = ()


LAUNCHER: Rules[LauncherFacts] = Rules()


@LAUNCHER.rule(
    "warning",
    "The launcher starts another number of processes than was said",
    "The audit is made for the GPUs of --gpus, and the script as it stands runs on others: its data-parallel size and "
    "its batch arithmetic are then not those that were judged.",
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py",
    gpus=32,
)
def other_gpus(facts: LauncherFacts) -> Iterator[Problem]:
    if facts.gpus is not None and facts.world.gpus not in (None, facts.gpus):
        yield Problem(
            "is not the number of processes that the launcher starts",
            field="--gpus",
            got=str(facts.gpus),
            need=str(facts.world.gpus),
            hint="an audit without --gpus, or other nodes for the launcher",
        )


@LAUNCHER.rule(
    "error",
    "More processes on a node than GPUs",
    "torchrun gives each process the GPU of its local rank; the processes beyond the last GPU end with an invalid "
    "device ordinal, and the others wait for them.",
    "torchrun --nproc-per-node 16 pretrain_gpt.py",
    gpus=16,
)
def crowded_node(facts: LauncherFacts) -> Iterator[Problem]:
    started, there = facts.world.gpus_per_node, facts.gpus_per_node
    if started is not None and there is not None and started > there:
        yield Problem(
            "starts more processes on a node than it has GPUs",
            field="the launcher",
            got=str(started),
            need=f"up to {there}",
        )


@LAUNCHER.rule(
    "warning",
    "Fewer processes on a node than GPUs, on several nodes",
    "The GPUs that no process uses are paid for, and tensor-parallel groups that could lie inside a node cross the "
    "network.",
    "torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py",
)
def idle_gpus(facts: LauncherFacts) -> Iterator[Problem]:
    started, there, nodes = facts.world.gpus_per_node, facts.gpus_per_node, facts.world.nodes
    if started is not None and there is not None and started < there and nodes is not None and nodes > 1:
        yield Problem(
            "leaves GPUs of every node idle",
            field="the launcher",
            got=f"{started} processes a node",
            need=f"{there}, one for each GPU",
        )


@LAUNCHER.rule(
    "error",
    "Lines end in a carriage return and a line feed",
    "bash takes the carriage return for a character of the line's last word: options and values are passed with it, "
    "and argparse knows none of them. The audit reads the words without it.",
    "torchrun --nproc-per-node 8 pretrain_gpt.py\r\n",
)
def carriage_returns(facts: LauncherFacts) -> Iterator[Problem]:
    for text in facts.scripts:
        if b"\r\n" in text.data:
            place = text.place(text.data.index(b"\r\n"), text.data.index(b"\r\n") + 2)
            what, fix = "ends its lines in CR LF, of which bash passes the CR on", f"dos2unix {text.file}"
            yield place.problem(what, field="the script", hint=fix)


def findings(facts: LauncherFacts, program: Place | None) -> list[Finding]:
    """Return every rule that is broken, at the word of the launcher that says so, else at the program."""
    place = next((word.place for word in facts.world.words), program)
    return LAUNCHER.findings(facts, place)

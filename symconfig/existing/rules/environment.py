"""The environment of a launch of Megatron-LM, against the table that symconfig's own launchers are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_checks import CP, TP
from symconfig.frameworks.megatron.environment import Row, applying

# The conditions of the table's rows, of options. The names are those of frameworks.megatron.environment.
_WHEN: dict[str, Callable[[MegatronFacts], bool]] = {
    "always": lambda facts: True,
    "fsdp": lambda facts: facts.fsdp or facts.on("use_torch_fsdp2"),
    "moe_overlap": lambda facts: facts.on("overlap_moe_expert_parallel_comm"),
    "tp": lambda facts: facts.tp > 1,
    "tp_or_cp": lambda facts: facts.tp > 1 or facts.cp > 1,
    "activation_offload": lambda facts: facts.on("fine_grained_activation_offloading"),
}


def _clause(reason: str) -> str:
    """Return a sentence with its first letter in lower case, unless the second is upper case (NCCL)."""
    return reason if reason[1:2].isupper() else reason[0].lower() + reason[1:]


def _rows(facts: MegatronFacts, forced: bool) -> Iterator[tuple[Row, str | None]]:
    """Yield each variable that applies to these options, with its value; None: it is unset.

    Unknown values are passed over. forced: variables that must be set, else those that should be. Raises NotKnown
    without a GPU architecture.
    """
    if facts.architecture is None:
        raise NotKnown
    for row in applying(facts.version, facts.architecture, lambda when: _WHEN[when](facts)):
        if row.forced == forced:
            try:
                yield row, facts.variable(row.name)
            except NotKnown:
                continue


def environment_contradicts(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=True):
        wrong = value != row.value if row.refused is None else value in row.refused
        if value is not None and wrong:
            need = row.value if row.refused is None else f"another value, {row.value} for example"
            yield facts.about(row.name, _clause(row.reason), got=value, need=need)


def environment_missing(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for each variable that must have a value and is not set."""
    for row, value in _rows(facts, forced=True):
        if value is None and row.refused is None:
            yield facts.about(
                row.name,
                f"is not set here: {_clause(row.reason)}",
                TP,
                CP,
                need=row.value,
                hint=f"export {row.name}={row.value}",
            )


def environment_advised(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=False):
        if value is None or row.value not in value.split(","):
            yield facts.about(
                row.name, _clause(row.reason), got=value or "nothing", hint=f"export {row.name}={row.value}"
            )

"""Checks of options themselves (unknown, misspelt, old, given twice, with values that the parser does not take) and of
the environment, against the table that symconfig's own launchers are written from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.rules.facts import OLD, MegatronFacts, NotKnown, Old, State, meant
from symconfig.existing.rules.megatron_checks import CP, TP
from symconfig.existing.rules.rule import Check
from symconfig.frameworks.megatron.environment import Row, applying, places
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.frameworks.megatron.options import flex_backend


def _foreign(kind: str, what: str, applies: Callable[[MegatronFacts], bool]) -> Check[MegatronFacts]:
    """Return a check that yields a problem for each option that this version lacks, if `applies`, with a hint.

    kind: "unknown" (in no version) or "foreign" (in others), the list of `Namespace`. what: {} is the version.
    """

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        for setting in getattr(facts.names, kind) if applies(facts) else ():
            known = [version for version in versions() if flags(version).known(setting.name)]
            need = None if not known else known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
            hint = OLD[setting.name].today if setting.name in OLD else meant(setting.name, facts.version)
            yield setting.problem(what.format(facts.version), need=need, hint=hint)

    return check


_NOT_HERE = "is not an option of Megatron-LM {}"
unknown_option = _foreign("unknown", _NOT_HERE, lambda facts: facts.own_program and facts.released)
option_of_a_fork = _foreign(
    "unknown",
    "is not an option of any release of Megatron-LM from core_v0.11 on",
    lambda facts: not (facts.own_program and facts.released),
)
option_of_another_version = _foreign("foreign", _NOT_HERE, lambda facts: facts.version_given)
options_of_several_versions = _foreign(
    "foreign", f"{_NOT_HERE}, which has the others", lambda facts: not facts.version_given
)


def _old(facts: MegatronFacts) -> Iterator[tuple[Setting, Old]]:
    """Yield each old option that this version's parser still accepts."""
    for setting in facts.names.settings:
        if setting.name in OLD and facts.names.table.known(setting.name):
            yield setting, OLD[setting.name]


def _kept(state: State, what: str) -> Check[MegatronFacts]:
    """Return a check that yields a problem for each accepted old option of one state. what: how it begins."""

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        for setting, old in _old(facts):
            if old.state == state:
                yield setting.problem(f"{what}: {old.why}", hint=old.today)

    return check


refused_option = _kept("refused", "is no longer valid")
idle_option = _kept("idle", "does nothing")


def old_option(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for each accepted option with a new name, or that is obsolete and missing later."""
    for setting, old in _old(facts):
        later = versions()[versions().index(facts.version) :]
        gone = next((version for version in later if not flags(version).known(setting.name)), None)
        if old.state == "old" or (old.state == "gone" and gone):
            until = f"; {gone} does not have it" if gone else ""
            yield setting.problem(f"is an old name: {old.why}{until}", hint=old.today)


def repeated_option(facts: MegatronFacts) -> Iterator[Problem]:
    for setting in facts.names.repeated:
        yield setting.problem("is given more than once, and the last one wins in silence", need="it once")


def refused_value(facts: MegatronFacts) -> Iterator[Problem]:
    yield from (problem for problem in facts.names.problems if problem.need is not None)


# The conditions of the table's rows, of options. The names are those of frameworks.megatron.environment.
_WHEN: dict[str, Callable[[MegatronFacts], bool]] = {
    "always": lambda facts: True,
    "fsdp": lambda facts: facts.fsdp or facts.on("use_torch_fsdp2"),
    "moe_overlap": lambda facts: facts.on("overlap_moe_expert_parallel_comm"),
    "tp": lambda facts: facts.tp > 1,
    "tp_or_cp": lambda facts: facts.tp > 1 or facts.cp > 1,
    "activation_offload": lambda facts: facts.on("fine_grained_activation_offloading"),
    "hybridep": lambda facts: flex_backend(facts) == "hybridep",
}


def _clause(reason: str) -> str:
    """Return a sentence with its first letter in lower case, unless the second is upper case (NCCL)."""
    return reason if reason[1:2].isupper() else reason[0].lower() + reason[1:]


def _places(facts: MegatronFacts) -> Mapping[str, int] | None:
    """Return the numbers of `environment.places`; None if the ranks or the cluster's links are not known."""
    with suppress(NotKnown):
        if facts.joined is not None:
            return places(facts.ep * facts.etp, facts.joined, facts.gpus_per_node or facts.joined)
    return None


def _rows(facts: MegatronFacts, forced: bool) -> Iterator[tuple[Row, str | None]]:
    """Yield (variable's row, its value or None if unset) for each that these options require (`forced`), else advise.

    Unknown values are passed over. Raises NotKnown without a GPU architecture.
    """
    if facts.architecture is None:
        raise NotKnown
    for row in applying(facts.version, facts.architecture, lambda when: _WHEN[when](facts), named=_places(facts)):
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
    """Yield a problem for each variable that must have a value and is unset."""
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

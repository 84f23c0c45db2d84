"""Options themselves: unknown, misspelt, old, given twice, or with values that the parser does not take."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.nearest import meant
from symconfig.existing.rules.rule import Rules
from symconfig.existing.rules.versions import OLD, Old
from symconfig.frameworks.megatron.flags import Value, flags, parsed, versions

MEGATRON: Rules[MegatronFacts] = Rules()


def _hint(facts: MegatronFacts, name: str) -> str | None:
    """Say what was meant: today's name of an old option, or the nearest one of this version."""
    if name in OLD:
        return OLD[name].today
    return meant(name, facts.version)


def _about(facts: MegatronFacts, setting: Setting, what: str) -> Problem:
    known = [version for version in versions() if flags(version).known(setting.name)]
    need = None if not known else known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
    return setting.problem(what, need=need, hint=_hint(facts, setting.name))


@MEGATRON.rule(
    "unknown-option",
    "error",
    "Megatron-LM has no such option",
    "argparse stops at the first option that it does not know; abbreviations are off (arguments.py, parse_args). "
    "Without --megatron-version it is an error only where every unknown option is spelled nearly like one that there "
    "is.",
    "--tensor-parallel-size 4",
)
def _unknown(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.own_program and facts.released:
        for setting in facts.names.unknown:
            yield _about(facts, setting, f"is not an option of Megatron-LM {facts.version}")


@MEGATRON.rule(
    "option-of-a-fork",
    "warning",
    "No release of Megatron-LM has this option",
    "It is a fork's or an older release's: what it does is not in the prediction.",
    "--use-fused-rmsnorm",
)
def _fork(facts: MegatronFacts) -> Iterator[Problem]:
    if not (facts.own_program and facts.released):
        for setting in facts.names.unknown:
            yield _about(facts, setting, "is not an option of any release of Megatron-LM from core_v0.11 on")


@MEGATRON.rule(
    "option-of-another-version",
    "error",
    "This version of Megatron-LM does not have the option",
    "argparse stops at the first option that it does not know. The tables are the parser's own, of each release.",
    "--use-custom-fsdp",
)
def _version(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.version_given:
        for setting in facts.names.foreign:
            yield _about(facts, setting, f"is not an option of Megatron-LM {facts.version}")


@MEGATRON.rule(
    "options-of-several-versions",
    "warning",
    "No one release of Megatron-LM has all these options",
    "Read as the release that has most of them; which one is used is not known.",
    "--s3-cache-path cache --eval-micro-batch-size 1",
)
def _mixed(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.version_given:
        for setting in facts.names.foreign:
            yield _about(facts, setting, f"is not an option of Megatron-LM {facts.version}, which has the others")


def _old(facts: MegatronFacts) -> Iterator[tuple[Setting, Old]]:
    """Yield the old options that this version's parser still takes."""
    for setting in facts.names.settings:
        if setting.name in OLD and facts.names.table.known(setting.name):
            yield setting, OLD[setting.name]


@MEGATRON.rule(
    "refused-option",
    "error",
    "An option that the parser takes and Megatron-LM then refuses",
    "It is kept so that old scripts are told (arguments.py, validate_args).",
    "--checkpoint-activations",
)
def _refused(facts: MegatronFacts) -> Iterator[Problem]:
    for setting, old in _old(facts):
        if old.state == "refused":
            yield setting.problem(f"is no longer valid: {old.why}", hint=old.today)


@MEGATRON.rule(
    "idle-option",
    "warning",
    "An option that no longer does anything",
    "It is kept for old scripts; what it stood for is the default, or is said otherwise (arguments.py).",
    "--use-dist-ckpt",
)
def _idle(facts: MegatronFacts) -> Iterator[Problem]:
    for setting, old in _old(facts):
        if old.state == "idle":
            yield setting.problem(f"does nothing: {old.why}", hint=old.today)


@MEGATRON.rule(
    "old-option",
    "note",
    "An old name of an option",
    "It still means what it meant, and a later release drops it (arguments.py).",
    "--use-rotary-position-embeddings",
)
def _renamed(facts: MegatronFacts) -> Iterator[Problem]:
    for setting, old in _old(facts):
        gone = next(
            (
                version
                for version in versions()[versions().index(facts.version) :]
                if not flags(version).known(setting.name)
            ),
            None,
        )
        if old.state == "old" or (old.state == "gone" and gone):
            until = f"; {gone} does not have it" if gone else ""
            yield setting.problem(f"is an old name: {old.why}{until}", hint=old.today)


@MEGATRON.rule(
    "repeated-option",
    "warning",
    "An option is given more than once",
    "argparse lets the last one win without a word.",
    "--seq-length 4096 --max-position-embeddings 4096 --seq-length 2048",
)
def _repeated(facts: MegatronFacts) -> Iterator[Problem]:
    for setting in facts.names.repeated:
        yield setting.problem("is given more than once, and the last one wins in silence", need="it once")


@MEGATRON.rule(
    "both-ways",
    "warning",
    "A switch is set both ways",
    "Both options write the same value; the last one wins without a word.",
    "--inference-wandb-logging --no-inference-wandb-logging",
    since="core_v0.16.1",
)
def _both(facts: MegatronFacts) -> Iterator[Problem]:
    first: dict[str, tuple[Setting, Value]] = {}
    for setting in facts.names.settings:
        flag = facts.names.table.flags.get(setting.name)
        if flag is None or flag.kind == "store" or setting.values:
            continue
        value = parsed(flag, [], setting.name)
        other, meant = first.setdefault(flag.dest, (setting, value))
        if meant != value:
            yield setting.problem(f"is the opposite of {other.spelled}", need="one of them")


@MEGATRON.rule(
    "refused-value",
    "error",
    "A value that the parser refuses",
    "Options have types and choices; argparse stops at the first value that is none of them.",
    "--micro-batch-size 1.5",
)
def _values(facts: MegatronFacts) -> Iterator[Problem]:
    yield from (problem for problem in facts.names.problems if problem.need is not None)

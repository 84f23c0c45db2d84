"""Checks of rules about Megatron-LM that no row can say, each by its rule's name: of sizes and stages, then of options
themselves (unknown, misspelt, old, given twice, with values that the parser does not take) and of the environment,
against the table that symconfig's own launchers are written from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover.layers import moe_layers, spelled
from symconfig.existing.recover.megatron import PER_CHUNK, SHARDS, SIZES
from symconfig.existing.rules.facts import (
    ACCOUNTS,
    CHUNKS,
    FIRST,
    LAST,
    LAYOUT,
    OLD,
    MegatronFacts,
    NotKnown,
    Old,
    State,
    meant,
    undivided,
)
from symconfig.existing.rules.rule import Check
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.megatron.environment import Row, applying, places
from symconfig.frameworks.megatron.flags import flags, lifetime, versions
from symconfig.frameworks.megatron.hybrid import STAGE
from symconfig.frameworks.megatron.options import flex_backend
from symconfig.plans import pipeline_layout

TP, PP, CP = (DEGREES[name] for name in ("tp", "pp", "cp"))
_POSITIVE = SIZES | words(
    """
    num_layers hidden_size num_attention_heads num_query_groups vocab_size num_dataset_builder_threads
    eval_global_batch_size eval_micro_batch_size
    """
)


def divides(
    facts: MegatronFacts,
    what: str,
    dest: str,
    value: int,
    *,
    by: int,
    named: str,
    related: tuple[str, ...] = (),
    field: str | None = None,
) -> Iterator[Problem]:
    """Yield a problem if the positive `value` is not a multiple of the positive `by`.

    what: what `value` counts. dest, related: where. named: `by` in words. field: replaces the option's name.
    """
    if undivided(value, by):
        need = f"a multiple of {named} = {by}"
        yield facts.problem(f"{what} cannot be divided", dest, *related, field=field, got=value, need=need)


def not_positive(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for each known size below 1; unknown ones are passed over."""
    for dest in sorted(_POSITIVE):
        with suppress(NotKnown):
            if (value := facts.maybe(dest)) is not None and value < 1:
                yield facts.problem("must be positive", dest, got=value, need="1 or more")


def gpus_over_degrees(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if the GPUs are not a multiple of tp (or weight shards) x pp x cp, as far as known."""
    sharded = facts.names.given(SHARDS) and facts.number(SHARDS) > facts.tp
    first = ("shards", SHARDS) if sharded else ("tp", TP)
    degrees: dict[str, int] = {}
    for name, dest in (first, ("pp", PP), ("cp", CP)):
        with suppress(NotKnown):  # a degree that is not known makes no groups smaller
            degrees[name] = max(1, facts.number(dest))
    yield from divides(
        facts,
        "the number of GPUs",
        TP,
        facts.gpus,
        by=prod(degrees.values()),
        named=" x ".join(degrees),
        related=(PP, CP),
        field="world size",
    )


def rampup_over_replicas(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for a first or last batch that micro batch x dp does not divide, and for a last one not reached.

    Words in place of the numbers are one, too. Nothing without three values of --rampup-batch-size, or with
    --decrease-batch-size-if-needed.
    """
    given = facts["rampup_batch_size"]
    if not isinstance(given, tuple) or len(given) != 3 or facts.on("decrease_batch_size_if_needed"):
        return
    if not all(re.fullmatch(r"[+-]?[0-9]{1,18}", str(item).strip()) for item in given):  # older parsers take texts
        got = " ".join(map(str, given))
        yield facts.problem("has no numbers", "rampup_batch_size", got=got, need="three whole numbers")
        return
    start, increment, _ = (int(str(item)) for item in given)
    step = facts.number("micro_batch_size") * facts.dp
    whole = facts.number("global_batch_size")
    for value, named in ((start, "the first batch"), (whole, "the last batch")):
        yield from divides(facts, named, "rampup_batch_size", value, by=step, named="micro batch x dp")
    if increment < 1 or (whole - start) % increment:
        yield facts.problem(
            "does not reach the global batch in whole steps",
            "rampup_batch_size",
            got=f"{start} + n x {increment}",
            need=f"{whole} for some n",
        )


def large_bubble(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if the bubble exceeds half of the compute time: (pp - 1) / (vpp x microbatches)."""
    batches, others = facts.microbatches, facts.pp - 1
    if others and batches > 0 and 2 * others > facts.chunks * batches:
        smaller = ["a smaller --micro-batch-size"] * (facts.number("micro_batch_size") > 1)
        yield facts.problem(
            f"the pipeline idles for {others / (facts.chunks * batches + others):.0%} of the step",
            "global_batch_size",
            "micro_batch_size",
            PP,
            got=f"{batches} microbatches on {facts.pp} stages",
            hint=", or ".join([*smaller, "fewer stages", *["virtual stages"] * (facts.chunks == 1)]),
        )


def layers_of_experts(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if there are experts and --moe-layer-freq is given, but invalid for this number of layers."""
    if not facts.experts or not facts.names.given("moe_layer_freq"):
        return
    try:
        moe_layers(layer_pattern(facts["moe_layer_freq"]), facts.number("num_layers"))
    except ValueError as error:
        yield facts.problem(
            "does not say which layers have experts",
            "moe_layer_freq",
            got=facts.text("moe_layer_freq"),
            need=str(error),
        )


def _ways(facts: MegatronFacts) -> list[tuple[str, ...]]:
    """Return the ways in which the split into stages is given, each as its options."""
    return [way for way in ((FIRST, LAST), ACCOUNTS, (LAYOUT,)) if any(facts[dest] for dest in way)]


def _stage_split(facts: MegatronFacts) -> tuple[str, ...]:
    """Return the options that give the split into stages; () for equal ones. Raises NotKnown for several ways."""
    ways = _ways(facts)
    if len(ways) > 1:
        raise NotKnown
    return ways[0] if ways else ()


def _end_stage_layers(facts: MegatronFacts) -> dict[str, int]:
    return {dest: value for dest in (FIRST, LAST) if (value := facts.maybe(dest)) is not None}


def _options_as_given(facts: MegatronFacts, dests: tuple[str, ...] | dict[str, int]) -> str:
    settings = (facts.names.setting(dest) for dest in dests)
    return " ".join(setting.spelled for setting in settings if setting is not None)


def stages_said_twice(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield one problem if the split into stages is given in more than one way."""
    if len(ways := _ways(facts)) > 1:
        given = tuple(dest for way in ways for dest in way if facts[dest])
        yield facts.problem(
            "give the stages in several ways", given[0], field=_options_as_given(facts, given), need="one of them"
        )


def layers_over_stages(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if pp does not divide layers and counted ends, with options that would even them as its hint.

    Nothing if the stages are given in another way: by a pattern, a layout, or layers of the end stages.
    """
    if STAGE in spelled(facts.names):
        return  # a pattern says the stages itself
    if _stage_split(facts) in ((), ACCOUNTS):
        for each in divides(
            facts, "the layers", "num_layers", _layers_counted(facts), by=facts.pp, named="pp", related=(PP,)
        ):
            yield replace(each, hint=_evening_options(facts))


def _evening_options(facts: MegatronFacts) -> str | None:
    """Return the options that count ends as layers so that pp divides the layers; None if none do."""
    layers = facts.number("num_layers")
    for ends in (ACCOUNTS, ACCOUNTS[:1], ACCOUNTS[1:]):
        if not undivided(layers + len(ends), facts.pp) and facts.pp > 1:
            return " ".join(facts.option(dest) for dest in ends)
    return None


def _layers_counted(facts: MegatronFacts) -> int:
    """Return the number of layers, plus one each for the embedding and the loss if they are counted as layers."""
    return facts.number("num_layers") + sum(facts.on(dest) for dest in ACCOUNTS)


def layers_over_virtual_stages(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for each stage whose layers are not a multiple of a virtual stage's (if not given, of vpp).

    Of equal stages for one; of uneven ones for each end whose layers are given, and for one between.
    """
    split, ends, at = _stage_split(facts), _end_stage_layers(facts), CHUNKS
    per_chunk, by, named = facts.maybe(PER_CHUNK), facts.maybe(CHUNKS) or 1, "vpp"
    if per_chunk is not None:
        at, by, named = PER_CHUNK, per_chunk, "the layers of a virtual stage"
    held = {at: _layers_counted(facts) // facts.pp}
    if split == (FIRST, LAST):
        left, stages = facts.number("num_layers") - sum(ends.values()), facts.pp - len(ends)
        held = ends | ({at: left // stages} if stages > 0 and left > 0 and left % stages == 0 else {})
    for dest, layers in held.items() if split != (LAYOUT,) and by > 1 else ():
        yield from divides(facts, "a stage's layers", dest, layers, by=by, named=named)


def uneven_stages(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if the layers left by the given end stages do not fill the stages between equally."""
    ends = _end_stage_layers(facts)
    if not ends or _stage_split(facts) != (FIRST, LAST):
        return
    layers = facts.number("num_layers")
    left, stages = layers - sum(ends.values()), facts.pp - len(ends)
    if stages < 0 or left < 0 or (stages == 0 and left) or (stages > 0 and (left % stages or not left)):
        yield facts.problem(
            "the stages do not hold all layers",
            next(iter(ends)),
            field=_options_as_given(facts, ends),
            got=" + ".join(map(str, ends.values())),
            need=f"what leaves an equal share of {layers} layers to each of {max(stages, 0)} stages between",
        )


def layers_of_layout(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield each problem of --pipeline-model-parallel-layout, at the option; nothing without one."""
    layout = facts.text(LAYOUT)
    if layout is None:
        return
    for problem in pipeline_layout.problems(
        layout, facts.number("num_layers"), facts.maybe("mtp_num_layers") or 0, facts.option(LAYOUT)
    ):
        yield facts.problem(problem.what, LAYOUT, got=problem.got, need=problem.need, hint=problem.hint)


def _foreign(kind: str, what: str, applies: Callable[[MegatronFacts], bool]) -> Check[MegatronFacts]:
    """Return a check that yields a problem for each option that this version lacks, if `applies`, with a hint.

    kind: "unknown" (in no version) or "foreign" (in others), the list of `Namespace`. what: {} is the version.
    """

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        for setting in getattr(facts.names, kind) if applies(facts) else ():
            hint = OLD[setting.name].today if setting.name in OLD else meant(setting.name, facts.version)
            yield setting.problem(what.format(facts.version), need=lifetime(setting.name), hint=hint)

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


def _numbers(facts: MegatronFacts) -> Mapping[str, int] | None:
    """Return the numbers of `environment.places`; None if the ranks or the cluster's links are not known."""
    with suppress(NotKnown):
        if facts.joined is not None:
            return places(facts.ep * facts.etp, facts.joined, facts.gpus_per_node or facts.joined)
    return None


def _rows(facts: MegatronFacts, forced: bool) -> Iterator[tuple[Row, str | None]]:
    """Yield (variable's row, its value or None if unset) for each that these options require (`forced`), else advise.

    Unknown values are passed over. Raises NotKnown without a GPU architecture.
    """
    gpu, holds = facts.known(facts.architecture), lambda when: _WHEN[when](facts)
    for row in applying(facts.version, gpu, holds, named=_numbers(facts)):
        if row.forced == forced:
            with suppress(NotKnown):
                yield row, facts.variable(row.name)


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

"""Checks of rules about Megatron-LM that no row can say, each by its rule's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.recover.layers import moe_layers, spelled
from symconfig.existing.recover.megatron import SIZES
from symconfig.existing.rules.facts import (
    ACCOUNTS,
    CHUNKS,
    FIRST,
    LAST,
    LAYOUT,
    PER_CHUNK,
    MegatronFacts,
    NotKnown,
    undivided,
)
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.megatron.hybrid import STAGE
from symconfig.plans import pipeline_layout

SHARDS = "tensor_parallel_num_weight_shards"
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
        try:
            value = facts.maybe(dest)
        except NotKnown:
            continue
        if value is not None and value < 1:
            yield facts.problem("must be positive", dest, got=value, need="1 or more")


def gpus_over_degrees(facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem if the GPUs are not a multiple of tp (or weight shards) x pp x cp, as far as known."""
    sharded = facts.names.given(SHARDS) and facts.number(SHARDS) > facts.tp
    first = ("shards", SHARDS) if sharded else ("tp", TP)
    degrees = {name: size for name, dest in (first, ("pp", PP), ("cp", CP)) if (size := _degree(facts, dest))}
    yield from divides(
        facts,
        "the number of GPUs",
        TP,
        facts.gpus,
        by=prod(degrees.values()),  # a degree that is not known makes no groups smaller
        named=" x ".join(degrees),
        related=(PP, CP),
        field="world size",
    )


def _degree(facts: MegatronFacts, dest: str) -> int | None:
    """Return a degree, at least 1; None where it is not known."""
    try:
        return max(1, facts.number(dest))
    except NotKnown:
        return None


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

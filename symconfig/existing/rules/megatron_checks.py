"""Checks of rules about Megatron-LM that no row can say, each by its rule's name."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.recover.bounds import SIZES
from symconfig.existing.recover.moe import moe_layers
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_words import granularity, undivided
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.frameworks.megatron.releases import KEPT_INPUTS, RECOMPUTE_SINCE

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
SPLITS = ("train_data_path", "valid_data_path", "test_data_path")
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
    """Yield a Problem where `by` does not divide `value`. What is not positive has a rule of its own."""
    if undivided(value, by):
        need = f"a multiple of {named} = {by}"
        yield facts.problem(f"{what} cannot be divided", dest, *related, field=field, got=value, need=need)


def not_positive(facts: MegatronFacts) -> Iterator[Problem]:
    for dest in sorted(_POSITIVE):
        try:
            value = facts.maybe(dest)
        except NotKnown:
            continue
        if value is not None and value < 1:
            yield facts.problem("must be positive", dest, got=value, need="1 or more")


def gpus_over_degrees(facts: MegatronFacts) -> Iterator[Problem]:
    degrees = {name: size for name, dest in (("tp", TP), ("pp", PP), ("cp", CP)) if (size := _degree(facts, dest))}
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
    """Return a degree; None where it is not known."""
    try:
        return max(1, facts.number(dest))
    except NotKnown:
        return None


def rampup_over_replicas(facts: MegatronFacts) -> Iterator[Problem]:
    given = facts.value("rampup_batch_size")
    if not isinstance(given, tuple) or len(given) != 3 or facts.on("decrease_batch_size_if_needed"):
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


def layers_of_experts(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.experts or not facts.names.given("moe_layer_freq"):
        return
    try:
        moe_layers(layer_pattern(facts.value("moe_layer_freq")), facts.number("num_layers"))
    except ValueError as error:
        yield facts.problem(
            "does not say which layers have experts",
            "moe_layer_freq",
            got=facts.text("moe_layer_freq"),
            need=str(error),
        )


def two_data_sources(facts: MegatronFacts) -> Iterator[Problem]:
    kinds = (("mock_data",), ("data_path",), SPLITS)
    given = [dest for kind in kinds for dest in [each for each in kind if facts.value(each)][:1]]
    pairs = [given[:2]] if len(given) > 1 else []
    for files, paths in (("data_args_path", ("data_path",)), ("per_split_data_args_path", SPLITS)):
        pairs += [[dest, files] for dest in paths if facts.value(dest) and facts.value(files)][:1]
    for first, second in pairs:
        yield facts.problem(f"stands beside {facts.option(first)}", second, first, need="one source")


def recompute_modules_refused(facts: MegatronFacts) -> Iterator[Problem]:
    given = facts.value("recompute_modules")
    if granularity(facts) != "selective" or not isinstance(given, tuple):
        return
    names = [str(name) for name in given]
    known = [name for name, since in RECOMPUTE_SINCE.items() if facts.at_least(since)]
    quantised = facts.value("fp8") is not None and facts.value("fp8_recipe") == "delayed"
    for name in names:
        need = (
            f"one of {', '.join(known)}"
            if name not in known
            else "--moe-grouped-gemm"
            if name == "moe_act" and not facts.on("moe_grouped_gemm")
            else "--multi-latent-attention"
            if name == "mla_up_proj" and not facts.on("multi_latent_attention")
            else "another --fp8-recipe than delayed"
            if name in KEPT_INPUTS and quantised
            else "no --moe-shared-expert-overlap"
            if name == "shared_experts" and facts.on("moe_shared_expert_overlap")
            else None
        )
        if need:
            yield facts.problem("is not recomputed here", "recompute_modules", got=name, need=need)

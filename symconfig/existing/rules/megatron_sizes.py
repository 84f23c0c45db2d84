"""Sizes of the model against the degrees that cut them."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import GQA, GROUPS
from symconfig.existing.rules.megatron_grid import divides
from symconfig.existing.rules.rule import Rules

REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "micro_batch_size")
OTHERWISE = {"num_layers": ("encoder_num_layers", "hybrid_layer_pattern", "hybrid_override_pattern")}

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "missing-option",
    "error",
    "An option that Megatron-LM needs is missing",
    "validate_args asks for the number of layers, the hidden size, the heads, the longest position and the micro batch "
    "(_check_arg_is_not_none).",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --global-batch-size 64 "
    "--micro-batch-size 1 --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
)
def _required(facts: MegatronFacts) -> Iterator[Problem]:
    if any(facts.on(dest) for dest in ("yaml_cfg", "use_checkpoint_args")):
        return
    for dest in REQUIRED:
        if not facts.given(dest) and not any(facts.given(other) for other in OTHERWISE.get(dest, ())):
            yield facts.problem("is missing", dest, "hidden_size", "num_layers", need="a number")


@MEGATRON.rule(
    "positions-too-few",
    "error",
    "The sequence is longer than the positions",
    "validate_args asserts --max-position-embeddings >= --seq-length.",
    "--seq-length 8192 --max-position-embeddings 4096",
)
def _positions(facts: MegatronFacts) -> Iterator[Problem]:
    most = facts.number("max_position_embeddings")
    for dest in ("seq_length", "decoder_seq_length"):
        if (sequence := facts.maybe(dest)) is not None and sequence > most:
            yield facts.problem(
                "is less than the sequence",
                "max_position_embeddings",
                got=most,
                need=f"at least {facts.option(dest)} = {sequence}",
            )


@MEGATRON.rule(
    "hidden-over-heads",
    "error",
    "The hidden size cannot be divided by the heads",
    "Without --kv-channels the size of a head is their quotient (validate_args).",
    "--hidden-size 4096 --num-attention-heads 24",
)
def _head_size(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.value("kv_channels") is None and not facts.on("multi_latent_attention"):
        yield from divides(
            facts,
            "the hidden size",
            "hidden_size",
            facts.number("hidden_size"),
            by=facts.number("num_attention_heads"),
            named="the heads",
        )


@MEGATRON.rule(
    "query-groups-ignored",
    "error",
    "--num-query-groups has no effect without --group-query-attention",
    "core_transformer_config_from_args passes the groups on only with the switch: every head gets its own keys and "
    "values, and another model is trained.",
    "--num-query-groups 8",
)
def _groups_ignored(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.given(GROUPS) and not facts.on(GQA) and facts.value(GROUPS) != facts.maybe("num_attention_heads"):
        yield facts.problem(
            "is ignored: every head gets its own keys and values",
            GROUPS,
            got=facts.value(GROUPS),
            need=f"{facts.option(GQA)} beside it",
        )


@MEGATRON.rule(
    "query-groups-not-said",
    "warning",
    "--group-query-attention without a number of groups is one group",
    "--num-query-groups is 1 by default: all heads share one key and one value, which is multi-query attention.",
    "--group-query-attention",
)
def _groups_said(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(GQA) and not facts.given(GROUPS):
        yield facts.problem(
            "is missing: all heads share one key and value",
            GROUPS,
            GQA,
            got="1 by default",
            need="the number of key/value heads",
        )


@MEGATRON.rule(
    "query-groups-over-heads",
    "error",
    "The heads cannot be divided by the query groups",
    "No version checks it; the first forward pass fails where queries are reshaped by group (attention.py).",
    "--group-query-attention --num-query-groups 5",
)
def _groups_heads(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.on(GQA):
        yield from divides(
            facts,
            "the attention heads",
            "num_attention_heads",
            facts.number("num_attention_heads"),
            by=facts.number(GROUPS),
            named="the query groups",
            related=(GROUPS,),
        )


@MEGATRON.rule(
    "vocabulary-padded",
    "note",
    "The vocabulary is padded",
    "Megatron-LM rounds it up to a multiple of --make-vocab-size-divisible-by times tp, so that the embedding's shape "
    "depends on tp (training/vocab_utils.py; tokenizer.py before it).",
    "--vocab-size 50257",
)
def _vocabulary(facts: MegatronFacts) -> Iterator[Problem]:
    size = facts.number("vocab_size")
    multiple = facts.number("make_vocab_size_divisible_by") * facts.tp
    if facts.value("padded_vocab_size") is None and multiple > 0 and size % multiple:
        padded = -(-size // multiple) * multiple
        yield facts.problem(f"is rounded up to {padded}", "vocab_size", got=size, need=f"a multiple of {multiple}")

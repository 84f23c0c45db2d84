"""The GPUs of Megatron-LM: the grid that the degrees span, the batch that is dealt out over it, and its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.recover.bounds import SIZES
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.rule import Rules

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"
_POSITIVE = SIZES | words(
    """
    num_layers hidden_size num_attention_heads num_query_groups vocab_size num_dataset_builder_threads
    eval_global_batch_size eval_micro_batch_size
    """
)
LARGE_BUBBLE = 1 / 3  # of a step; beyond it one more microbatch gains more than most other changes

MEGATRON: Rules[MegatronFacts] = Rules()


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
    if value > 0 and by > 0 and value % by:
        need = f"a multiple of {named} = {by}"
        yield facts.problem(f"{what} cannot be divided", dest, *related, field=field, got=value, need=need)


@MEGATRON.rule(
    "not-positive",
    "error",
    "A size or a degree is zero or negative",
    "Megatron-LM fails when it divides by it, or asserts (arguments.py, validate_args).",
    "--num-attention-heads 0",
)
def _positive(facts: MegatronFacts) -> Iterator[Problem]:
    for dest in sorted(_POSITIVE):
        try:
            value = facts.maybe(dest)
        except NotKnown:
            continue
        if value is not None and value < 1:
            yield facts.problem("must be positive", dest, got=value, need="1 or more")


@MEGATRON.rule(
    "gpus-over-degrees",
    "error",
    "The GPUs cannot be divided by tp x pp x cp",
    'validate_args asserts it (arguments.py: "world size is not divisible by total_model_size"): nothing starts.',
    "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 3 --num-layers 24",
)
def _world(facts: MegatronFacts) -> Iterator[Problem]:
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


@MEGATRON.rule(
    "evaluation-batch-over-replicas",
    "error",
    "The batch of the evaluation cannot be divided by micro batch x dp",
    "validate_args asserts it; what is not said of the evaluation is as in training.",
    "--eval-micro-batch-size 3",
    since="core_v0.18.2",
)
def _evaluation(facts: MegatronFacts) -> Iterator[Problem]:
    given = [dest for dest in ("eval_global_batch_size", "eval_micro_batch_size") if facts.value(dest) is not None]
    if given:
        facts.known(facts.world_size)
        micro = facts.maybe("eval_micro_batch_size") or facts.number("micro_batch_size")
        whole = facts.maybe("eval_global_batch_size") or facts.number("global_batch_size")
        yield from divides(
            facts,
            "the batch of the evaluation",
            given[0],
            whole,
            by=micro * facts.dp,
            named="micro batch x dp",
            related=("micro_batch_size",),
        )


@MEGATRON.rule(
    "rampup-over-replicas",
    "error",
    "The batches of the ramp-up cannot be divided by micro batch x dp",
    "Every batch size on the way must be divisible, the first, too, unless --decrease-batch-size-if-needed rounds them "
    "down (num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator).",
    "--rampup-batch-size 12 8 1000000 --global-batch-size 64",
)
def _rampup(facts: MegatronFacts) -> Iterator[Problem]:
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


@MEGATRON.rule(
    "batch-not-said",
    "warning",
    "The global batch is not said",
    "Megatron-LM then takes one microbatch a step (validate_args): the batch follows from the number of GPUs, so that "
    "the same script trains differently on another cluster.",
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
)
def _batch_said(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.value("global_batch_size") is None and facts.value("step_batch_size_schedule") is None:
        yield facts.problem(
            "is missing: the batch would follow from the number of GPUs",
            "global_batch_size",
            "micro_batch_size",
            need="a number",
        )


@MEGATRON.rule(
    "large-bubble",
    "warning",
    "Pipeline stages wait for a third of the step or more",
    "A pipeline of pp stages with m microbatches and v chunks a stage idles (pp - 1) / (v m + pp - 1) of the step "
    "(arXiv:2104.04473, section 2.2).",
    "--pipeline-model-parallel-size 4 --num-layers 32 --micro-batch-size 4 --global-batch-size 32",
)
def _bubble(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.pp == 1 or facts.microbatches < 1:
        return
    idle = (facts.pp - 1) / (facts.chunks * facts.microbatches + facts.pp - 1)
    if idle > LARGE_BUBBLE:
        yield facts.problem(
            f"the pipeline idles for {idle:.0%} of the step",
            "global_batch_size",
            "micro_batch_size",
            PP,
            got=f"{facts.microbatches} microbatches on {facts.pp} stages",
            hint=", or ".join(_fewer_waits(facts)),
        )


def _fewer_waits(facts: MegatronFacts) -> Iterator[str]:
    """Yield what makes a pipeline wait less here."""
    if facts.number("micro_batch_size") > 1:
        yield "a smaller --micro-batch-size"
    yield "fewer stages"
    if facts.chunks == 1:
        yield "virtual stages"


@MEGATRON.rule(
    "tp-across-nodes",
    "warning",
    "Tensor-parallel ranks lie on several nodes",
    "tp ranks follow one another (parallel_state.py, order tp-cp-ep-dp-pp); with more of them than a node has GPUs "
    "every layer's all-reduce crosses the network, which is several times slower than NVLink (arXiv:2104.04473).",
    "--tensor-model-parallel-size 16 --sequence-parallel --num-attention-heads 32",
    gpus=16,
)
def _tensor_nodes(facts: MegatronFacts) -> Iterator[Problem]:
    node = facts.known(facts.gpus_per_node)
    if facts.tp > node:
        yield facts.problem(
            "every layer's communication leaves the node",
            TP,
            got=facts.tp,
            need=f"up to {node}, the GPUs of a node",
            hint="pipeline or context parallelism instead",
        )
    elif facts.tp > 1 and node % facts.tp:
        yield facts.problem(
            "some tensor-parallel groups lie on two nodes",
            TP,
            got=facts.tp,
            need=f"a divisor of {node}, the GPUs of a node",
        )


@MEGATRON.rule(
    "experts-across-nodes",
    "note",
    "The experts' all-to-all crosses nodes",
    "The ep x etp ranks of a layer's experts follow one another; beyond a node their exchange runs over the network. "
    "DeepEP (--moe-token-dispatcher-type flex) and --overlap-moe-expert-parallel-comm are made for that "
    "(core/transformer/moe/README.md).",
    "--num-experts 32 --disable-bias-linear --moe-aux-loss-coeff 0.01 --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 16",
    gpus=16,
)
def _expert_nodes(facts: MegatronFacts) -> Iterator[Problem]:
    node = facts.known(facts.gpus_per_node)
    if facts.experts and facts.ep > 1 and facts.ep * facts.etp > node:
        if facts.value("moe_token_dispatcher_type") == "flex" or facts.on("overlap_moe_expert_parallel_comm"):
            return
        yield facts.problem(
            "the experts' all-to-all leaves the node",
            EP,
            got=f"ep x etp = {facts.ep * facts.etp}",
            need=f"up to {node}, the GPUs of a node",
        )

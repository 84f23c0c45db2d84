"""Rules of the batch sizes and of the parallel degrees of a DeepSpeed JSON, and of arguments that say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.document import shorten
from symconfig.errors import Problem
from symconfig.existing.recover.deepspeed_auto import mismatches
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.deepspeed_known import fails, says
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks import around_transformers
from symconfig.frameworks.deepspeed import constraints as table
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN, ZERO
from symconfig.frameworks.shared import EXPERTS

TENSOR = ("tensor_parallel", "autotp_size")
EXPERT = ("expert_parallel", "autoep_size")
GRID = "deepspeed-grid"  # the rule of degrees that do not divide
_MICRO = '"train_micro_batch_size_per_gpu": 1'

DEEPSPEED: Rules[DeepSpeedFacts] = Rules()


def _counted(tp: int) -> str:
    return f", among which this release counts the {tp} AutoTP ranks of a group" if tp > 1 else ""


def _example(rest: str, zero: str = '"stage": 2, "overlap_comm": true') -> str:
    return (
        f'{{"bf16": {{"enabled": true}}, "data_types": {{"grad_accum_dtype": "fp32"}}, "zero_optimization": '
        f"{{{zero}}}, {rest}}}"
    )


@DEEPSPEED.rule(
    "deepspeed-no-batch",
    "error",
    "No batch size is given",
    "DeepSpeed refuses it (deepspeed/runtime/config.py, _set_batch_related_parameters).",
    _example('"gradient_accumulation_steps": 8'),
)
def _no_batch(facts: DeepSpeedFacts) -> Iterator[Problem]:
    given = facts.tree.data if isinstance(facts.tree.data, dict) else {}
    if facts.get(TRAIN) is None and facts.get(MICRO) is None and TRAIN not in given:
        yield facts.problem((), f"has neither {TRAIN} nor {MICRO}", hint=f'"{MICRO}": 1')


@DEEPSPEED.rule(
    "deepspeed-batch-product",
    "error",
    "The batch sizes do not multiply out",
    "DeepSpeed refuses it: the global batch is micro-batch x accumulation x data ranks, and each rank of AutoTP "
    "counts as one (deepspeed/runtime/config.py, _batch_assertion; DeepSpeed#743, #6914).",
    _example(f'"train_batch_size": 100, {_MICRO}, "gradient_accumulation_steps": 8'),
)
def _product(facts: DeepSpeedFacts) -> Iterator[Problem]:
    ranks, tp = facts.data_ranks, facts.tensor_parallel
    if ranks is None or ranks % tp:
        return
    train, micro, steps = (facts.whole(key) for key in (TRAIN, MICRO, ACCUMULATION))
    right = micro * steps * ranks
    if train and right and train != right:
        why = f", and this release counts the {tp} AutoTP ranks of a group as data ranks" if tp > 1 else ""
        yield facts.problem(
            (TRAIN,), f"{train} is not micro-batch {micro} x accumulation {steps} x {ranks} ranks{why}", hint=str(right)
        )
    elif train and not right:
        per_rank = micro or steps or 1
        least = per_rank * ranks
        if train % least:
            other = "micro-batch" if micro else "accumulation"
            yield facts.problem(
                (TRAIN,),
                f"{train} does not divide by {other} {per_rank} x {ranks} ranks{_counted(tp)}",
                hint=str(max(round(train / least), 1) * least),
            )


@DEEPSPEED.rule(
    GRID,
    "error",
    "The GPUs do not divide by the degrees",
    "AutoTP and Ulysses make groups of equal size of all ranks (deepspeed/utils/groups.py).",
    _example(f'{_MICRO}, "tensor_parallel": {{"autotp_size": 3}}'),
)
def _grid(facts: DeepSpeedFacts) -> Iterator[Problem]:
    degree = facts.tensor_parallel * facts.sequence_parallel
    if facts.gpus is not None and facts.gpus % degree:
        path = TENSOR if facts.tensor_parallel > 1 else ("sequence_parallel_size",)
        yield facts.problem(path, f"{facts.gpus} GPUs do not divide by {degree}")


DEEPSPEED.rule(
    "deepspeed-tensor-and-sequence",
    "error",
    "AutoTP and Ulysses are both on",
    "Both take neighbouring ranks for their groups, and neither knows of the other (deepspeed/utils/groups.py).",
    _example(f'{_MICRO}, "tensor_parallel": {{"autotp_size": 2}}, "sequence_parallel_size": 2'),
)(says(TENSOR, table.AUTOTP_WITH_ULYSSES))


@DEEPSPEED.rule(
    "deepspeed-ulysses-norm",
    "error",
    "ZeRO-1 with fp32 gradients under Ulysses",
    "BF16_Optimizer, which this combination selects, has no group for its norm there "
    "(deepspeed/runtime/bf16_optimizer.py).",
    _example(f'{_MICRO}, "sequence_parallel_size": 2', '"stage": 1, "overlap_comm": true'),
)
def _ulysses_norm(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.precision == "bf16" and fails(table.ULYSSES_NORM, facts):
        yield facts.problem(
            (ZERO, "stage"), "ZeRO-1 with fp32 gradients fails in its norm under Ulysses", hint="stage 2"
        )


DEEPSPEED.rule(
    "deepspeed-ulysses-heads",
    "error",
    "The heads do not divide over Ulysses' ranks",
    "Its all-to-all gives every rank whole heads (deepspeed/sequence/layer.py).",
    _example(f'{_MICRO}, "sequence_parallel_size": 3'),
    gpus=9,
)(says(("sequence_parallel_size",), around_transformers.ULYSSES_HEADS, around_transformers.ULYSSES_KV_HEADS))

DEEPSPEED.rule(
    "deepspeed-autotp-heads",
    "error",
    "The key-value heads do not divide over AutoTP's ranks",
    "AutoTP gives every rank whole key-value heads (deepspeed/module_inject/auto_tp.py).",
    _example(f'{_MICRO}, "tensor_parallel": {{"autotp_size": 16}}'),
    gpus=16,
)(says(TENSOR, table.KV_HEADS))


@DEEPSPEED.rule(
    "deepspeed-experts-off",
    "error",
    "Experts are to be split, but expert_parallel is not enabled",
    "enabled is false by default, and then nothing else of the section is read "
    "(deepspeed/module_inject/auto_ep_config.py).",
    _example(f'{_MICRO}, "expert_parallel": {{"autoep_size": 2}}'),
)
def _experts_off(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.expert_parallel > 1 and not facts.get("expert_parallel", "enabled"):
        yield facts.problem(("expert_parallel", "enabled"), "is not true, so autoep_size is ignored", hint="true")


@DEEPSPEED.rule(
    "deepspeed-experts-degree",
    "error",
    "The experts cannot be split like this",
    "The degree must divide ranks and experts, and there is no tensor parallelism inside an expert: DeepSpeed "
    "refuses it (deepspeed/module_inject/auto_ep_config.py, validate_autoep_config).",
    _example(f'{_MICRO}, "expert_parallel": {{"enabled": true, "autoep_size": 3, "preset_model": "mixtral"}}'),
)
def _experts(facts: DeepSpeedFacts) -> Iterator[Problem]:
    ep = facts.expert_parallel
    if facts.get("expert_parallel", "expert_tensor_parallel_size") not in (None, 1):
        yield facts.problem(("expert_parallel", "expert_tensor_parallel_size"), "only 1 is supported", hint="1")
    if ep < 2 or not facts.get("expert_parallel", "enabled"):
        return
    if facts.gpus is not None and facts.gpus % ep:
        yield facts.problem(EXPERT, f"{facts.gpus} GPUs do not divide by {ep}")
    yield from says(EXPERT, table.NO_EXPERTS, EXPERTS)(facts)


@DEEPSPEED.rule(
    "deepspeed-stage-mismatch",
    "warning",
    "The JSON and --zero-stage say different stages",
    "Megatron-DeepSpeed's --zero-stage decides only whether the model is born split (pretrain_gpt.py, "
    "deepspeed.zero.Init), the JSON how it is trained.",
    "deepspeed pretrain_gpt.py --deepspeed_config ds.json --zero-stage 1\n" + _example(_MICRO),
)
def _zero_stage(facts: DeepSpeedFacts) -> Iterator[Problem]:
    given = facts.arguments.text("zero_stage")
    if given in ("0", "1", "2", "3") and int(given) != facts.stage:
        yield facts.problem((ZERO, "stage"), f"is {facts.stage}, and --zero-stage {given}", hint=given)


@DEEPSPEED.rule(
    "deepspeed-trainer-mismatch",
    "error",
    "The JSON and the Trainer's arguments say different things",
    "The Trainer stops with both values (transformers/integrations/deepspeed.py, fill_match).",
    "deepspeed train.py --per_device_train_batch_size 4 --deepspeed ds.json\n" + _example(_MICRO),
)
def _trainer(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.trainer:
        for path, got, need in mismatches(facts.tree.data, facts.arguments):
            yield facts.problem(
                path,
                "is not what the program's arguments say",
                got=shorten(repr(got)),
                need=shorten(repr(need)),
                hint='"auto"',
            )

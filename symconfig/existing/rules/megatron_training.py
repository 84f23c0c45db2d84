"""The length of training, its learning rate, its weight decay and its data."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.refusal import Reason, absent, on, present, refuses, together, unset
from symconfig.existing.rules.rule import Rules

SPLITS = ("train_data_path", "valid_data_path", "test_data_path")

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "iterations-and-samples",
    "error",
    "Training is counted in iterations and in samples",
    "validate_args asserts one of them, for the length, the decay and the warm-up.",
    "--train-iters 1000 --lr-decay-samples 50000",
)
def _counted(facts: MegatronFacts) -> Iterator[Problem]:
    pairs = (
        ("train_iters", ("train_samples", "lr_decay_samples", "lr_warmup_samples")),
        ("train_samples", ("train_iters", "lr_decay_iters", "lr_warmup_iters")),
    )
    for length, others in pairs:
        if facts.value(length):
            for other in others:
                if facts.names.given(other) and facts.value(other):
                    yield facts.problem(
                        f"stands beside {facts.option(length)}", other, length, need="one kind of count"
                    )
            return


@MEGATRON.rule(
    "two-warmups",
    "error",
    "The warm-up is said twice",
    "validate_args asserts one of --lr-warmup-fraction and a number of iterations or samples.",
    "--train-iters 1000 --lr-warmup-fraction 0.01 --lr-warmup-iters 100",
)
def _warmups(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.value("lr_warmup_fraction") is not None:
        for other in ("lr_warmup_iters", "lr_warmup_samples"):
            if facts.value(other):
                yield facts.problem(
                    "stands beside --lr-warmup-fraction", other, "lr_warmup_fraction", need="one of them"
                )


@MEGATRON.rule(
    "min-lr-above-lr",
    "error",
    "The least learning rate is above the learning rate",
    "validate_args asserts --min-lr <= --lr.",
    "--lr 1e-5 --min-lr 1e-4",
)
def _learning_rate(facts: MegatronFacts) -> Iterator[Problem]:
    rate, least = facts.value("lr"), facts.value("min_lr")
    if isinstance(rate, (int, float)) and isinstance(least, (int, float)) and least > rate:
        yield facts.problem("is more than --lr", "min_lr", "lr", got=least, need=f"up to {rate}")


@MEGATRON.rule(
    "two-data-sources",
    "error",
    "More than one source of data",
    "validate_args asserts at most one of --mock-data, --data-path and the paths of each split, and no file of paths "
    "beside the paths.",
    "--mock-data --data-path corpus_text_document --split 99,1,0",
)
def _data(facts: MegatronFacts) -> Iterator[Problem]:
    kinds = (("mock_data",), ("data_path",), SPLITS)
    given = [dest for kind in kinds for dest in [each for each in kind if facts.value(each)][:1]]
    pairs = [given[:2]] if len(given) > 1 else []
    for files, paths in (("data_args_path", ("data_path",)), ("per_split_data_args_path", SPLITS)):
        pairs += [[dest, files] for dest in paths if facts.value(dest) and facts.value(files)][:1]
    for first, second in pairs:
        yield facts.problem(f"stands beside {facts.option(first)}", second, first, need="one source")


MEGATRON.rule(
    "filled-middles-refused",
    "error",
    "Data with filled middles lacks what it needs",
    "validate_args: --fim-data asks for real data, its two rates, and its five tokens.",
    "--fim-data --mock-data",
    since="core_v0.16.1",
)(
    refuses(
        "fim_data",
        Reason("mock_data", on("mock_data")),
        *(Reason(dest, absent(dest), "a share above 0") for dest in ("fim_rate", "fim_spm_rate")),
        *(
            Reason(dest, unset(dest), "a token")
            for dest in (f"fim_{name}_token" for name in ("prefix", "middle", "suffix", "pad", "eod"))
        ),
    )
)

MEGATRON.rule(
    "sizes-said-twice",
    "error",
    "Layers or the sequence are said twice",
    "validate_args takes one of --num-layers and --encoder-num-layers, and of --seq-length and --encoder-seq-length.",
    "--encoder-num-layers 32",
)(together(*(refuses(f"encoder_{name}", Reason(name, present(name))) for name in ("num_layers", "seq_length"))))

MEGATRON.rule(
    "batch-said-twice",
    "error",
    "The global batch is said, and its schedule, too",
    "validate_args takes one of --global-batch-size and --step-batch-size-schedule.",
    "--step-batch-size-schedule 0:64",
    since="core_v0.18.2",
)(refuses("step_batch_size_schedule", Reason("global_batch_size", present("global_batch_size"))))


@MEGATRON.rule(
    "weight-decay-schedule",
    "error",
    "The weight decay is constant and has ends, or changes and has none",
    "validate_args: --start-weight-decay and --end-weight-decay stand beside a --weight-decay-incr-style other than "
    "constant, and only there.",
    "--weight-decay-incr-style linear",
)
def _decay(facts: MegatronFacts) -> Iterator[Problem]:
    style = facts.text("weight_decay_incr_style")
    for dest in ("start_weight_decay", "end_weight_decay"):
        there = facts.value(dest) is not None
        if there == (style == "constant"):
            what = "does not go with a constant weight decay" if there else "is missing beside a changing weight decay"
            yield facts.problem(what, dest, "weight_decay_incr_style", need="it absent" if there else "a number")


@MEGATRON.rule(
    "warm-up-beyond-decay",
    "error",
    "The warm-up is not over when the decay ends",
    "optimizer_param_scheduler.py asserts fewer steps of warm-up than of decay; the decay is as long as training "
    "unless it is said.",
    "--train-iters 1000 --lr 1e-4 --lr-warmup-iters 2000",
)
def _warm_up(facts: MegatronFacts) -> Iterator[Problem]:
    for unit in ("iters", "samples"):
        decay = facts.maybe(f"lr_decay_{unit}") or facts.maybe(f"train_{unit}")
        warmup = facts.maybe(f"lr_warmup_{unit}") or 0
        if decay and warmup >= decay:
            yield facts.problem(
                "is as long as the decay",
                f"lr_warmup_{unit}",
                f"lr_decay_{unit}",
                got=warmup,
                need=f"less than {decay}",
            )


@MEGATRON.rule(
    "much-evaluation",
    "note",
    "Evaluation takes much of the time",
    "Each evaluation runs --eval-iters forward steps; with more of them than a third of --eval-interval the time goes "
    "there.",
    "--train-iters 1000 --eval-interval 100 --eval-iters 100",
)
def _evaluation(facts: MegatronFacts) -> Iterator[Problem]:
    interval, count = facts.maybe("eval_interval"), facts.maybe("eval_iters")
    if interval and count and 3 * count > interval and facts.names.given("eval_iters"):
        yield facts.problem("takes much of the time", "eval_iters", "eval_interval", got=f"{count} of every {interval}")

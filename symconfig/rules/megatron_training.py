"""The length of training, its learning rate, its data and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.rules.facts import MegatronFacts
from symconfig.rules.rule import Rules

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "iterations-and-samples", "error", "Training is counted in iterations and in samples",
    "validate_args asserts one of them, for the length, the decay and the warm-up.",
    "--train-iters 1000 --lr-decay-samples 50000")
def _counted(facts: MegatronFacts) -> Iterator[Problem]:
    pairs = (("train_iters", ("train_samples", "lr_decay_samples", "lr_warmup_samples")),
             ("train_samples", ("train_iters", "lr_decay_iters", "lr_warmup_iters")))
    for length, others in pairs:
        if facts.value(length):
            for other in others:
                if facts.names.given(other) and facts.value(other):
                    yield facts.problem(f"stands beside {facts.option(length)}", other, length,
                                        need="one kind of count")
            return


@MEGATRON.rule(
    "two-warmups", "error", "The warm-up is said twice",
    "validate_args asserts one of --lr-warmup-fraction and a number of iterations or samples.",
    "--train-iters 1000 --lr-warmup-fraction 0.01 --lr-warmup-iters 100")
def _warmups(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.value("lr_warmup_fraction") is not None:
        for other in ("lr_warmup_iters", "lr_warmup_samples"):
            if facts.value(other):
                yield facts.problem("stands beside --lr-warmup-fraction", other, "lr_warmup_fraction",
                                    need="one of them")


@MEGATRON.rule(
    "min-lr-above-lr", "error", "The least learning rate is above the learning rate",
    "validate_args asserts --min-lr <= --lr.", "--lr 1e-5 --min-lr 1e-4")
def _learning_rate(facts: MegatronFacts) -> Iterator[Problem]:
    rate, least = facts.value("lr"), facts.value("min_lr")
    if isinstance(rate, (int, float)) and isinstance(least, (int, float)) and least > rate:
        yield facts.problem("is more than --lr", "min_lr", "lr", got=least, need=f"up to {rate}")


@MEGATRON.rule(
    "save-without-interval", "error", "--save without --save-interval",
    "validate_args asserts it; of some sources only the last iteration would be saved.", "--save checkpoints")
def _save(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.given("save") and facts.value("save_interval") is None:
        yield facts.problem("is missing beside --save", "save_interval", "save", need="a number of iterations")


@MEGATRON.rule(
    "two-data-sources", "error", "More than one source of data",
    "validate_args asserts at most one of --mock-data, --data-path and the paths of each split.",
    "--mock-data --data-path corpus_text_document --split 99,1,0")
def _data(facts: MegatronFacts) -> Iterator[Problem]:
    kinds = (("mock_data",), ("data_path",), ("train_data_path", "valid_data_path", "test_data_path"))
    given = [dest for kind in kinds for dest in kind[:1] if any(facts.value(each) for each in kind)]
    if len(given) > 1:
        yield facts.problem(f"stands beside {facts.option(given[0])}", given[1], given[0], need="one source")


@MEGATRON.rule(
    "warm-up-beyond-decay", "error", "The warm-up is not over when the decay ends",
    "optimizer_param_scheduler.py asserts fewer steps of warm-up than of decay; the decay is as long as training "
    "unless it is said.",
    "--train-iters 1000 --lr 1e-4 --lr-warmup-iters 2000")
def _warm_up(facts: MegatronFacts) -> Iterator[Problem]:
    for unit in ("iters", "samples"):
        decay = facts.maybe(f"lr_decay_{unit}") or facts.maybe(f"train_{unit}")
        warmup = facts.maybe(f"lr_warmup_{unit}") or 0
        if decay and warmup >= decay:
            yield facts.problem("is as long as the decay", f"lr_warmup_{unit}", f"lr_decay_{unit}", got=warmup,
                                need=f"less than {decay}")


@MEGATRON.rule(
    "much-evaluation", "note", "Evaluation takes much of the time",
    "Each evaluation runs --eval-iters forward steps; with more of them than a third of --eval-interval the time goes "
    "there.",
    "--train-iters 1000 --eval-interval 100 --eval-iters 100")
def _evaluation(facts: MegatronFacts) -> Iterator[Problem]:
    interval, count = facts.maybe("eval_interval"), facts.maybe("eval_iters")
    if interval and count and 3 * count > interval and facts.names.given("eval_iters"):
        yield facts.problem("takes much of the time", "eval_iters", "eval_interval", got=f"{count} of every {interval}")

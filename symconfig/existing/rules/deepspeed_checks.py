"""Checks of rules about a DeepSpeed JSON that no row can say, each by its rule's name."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.document import KeyPath, shorten
from symconfig.errors import Problem
from symconfig.existing.recover.deepspeed_json import OVERWRITTEN, autos, fills
from symconfig.existing.recover.deepspeed_json import mismatches as trainer_mismatches
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import Check
from symconfig.frameworks.deepspeed.keys import (
    ACCUMULATION,
    MICRO,
    TRAIN,
    ZERO,
    Kind,
    Mismatch,
    mismatches,
    schema,
)

_ELSEWHERE: frozenset[KeyPath] = frozenset({("optimizer", "params", "max_grad_norm")})  # has a rule of its own
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
_DEFAULT_BUCKET = 500_000_000  # elements (runtime/zero/config.py)


def _of(kind: Kind, alike: bool | None = None) -> Check[DeepSpeedFacts]:
    """Return a check that yields every mismatch of one kind with DeepSpeed's schema.

    Keys that the Trainer overwrites, or that have rules of their own, are passed over. alike: only mismatches with
    (True) or without (False) a similar known word; None: both.
    """

    def check(facts: DeepSpeedFacts) -> Iterator[Problem]:
        for mismatch in mismatches(facts.tree.data):
            if (facts.trainer and mismatch.path in OVERWRITTEN) or mismatch.path in _ELSEWHERE:
                continue
            if mismatch.kind == kind and (alike is None or alike == (mismatch.alike is not None)):
                yield _problem(facts, mismatch)

    return check


def _problem(facts: DeepSpeedFacts, mismatch: Mismatch) -> Problem:
    of_key = mismatch.kind in ("removed", "unknown", "ignored", "deprecated")
    hint = f"{mismatch.need} instead" if mismatch.kind == "deprecated" and mismatch.need else mismatch.alike
    need = None if mismatch.kind == "deprecated" else mismatch.need
    return facts.problem(mismatch.path, mismatch.what, got=mismatch.got, need=need, hint=hint, of_key=of_key)


def _dropped(path: tuple[str | int, ...]) -> bool:
    """Return whether DeepSpeed ignores an "auto" in this section and takes its default (runtime/config_utils.py)."""
    section = schema()["properties"].get(str(path[0])) or {}
    return "additionalProperties" in section


deepspeed_misspelt_key = _of("ignored", alike=True)
deepspeed_ignored_key = _of("ignored", alike=False)
deepspeed_unknown_key = _of("unknown")
deepspeed_removed_key = _of("removed")
deepspeed_deprecated_key = _of("deprecated")


def deepspeed_old_and_new_key(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each old key of zero_optimization whose new name is given, too."""
    section = facts.section(ZERO)
    for old, node in schema()["properties"][ZERO]["properties"].items():
        new = node.get("x-new-name") if node else None
        if old in section and new in section:
            yield facts.problem(
                (ZERO, old), f"is the old name of {new}, which is given, too", of_key=True, hint=f"leave out {old}"
            )


deepspeed_wrong_type = _of("type")
deepspeed_loose_type = _of("loose")
deepspeed_out_of_range = _of("range")
deepspeed_wrong_choice = _of("choice")
deepspeed_made_up_name = _of("name")


def deepspeed_auto_without_trainer(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each "auto" that neither the Trainer fills in nor DeepSpeed ignores, so that
    DeepSpeed fails.
    """
    whose = (
        "the Trainer does not fill in"
        if facts.trainer
        else "only Transformers' Trainer fills in (its option is --deepspeed FILE)"
    )
    for path in autos(facts.tree.data):
        if not _dropped(path) and not (facts.trainer and fills(path, facts.stage)):
            yield facts.problem(path, f'is "auto", which {whose}', hint="a number")


def deepspeed_dropped_auto(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each "auto" that the Trainer does not fill in and DeepSpeed silently replaces
    by its default.
    """
    for path in autos(facts.tree.data):
        if not _dropped(path) or (facts.trainer and fills(path, facts.stage)):
            continue
        default = (
            f"its default of {_DEFAULT_BUCKET:,} elements, 1 GB in 16 bits,"
            if path[-1] in _BUCKETS
            else "false"
            if path[-1] == "enabled"
            else "its default"
        )
        whose = "nobody fills in" if not facts.trainer else "Transformers' Trainer does not fill in"
        yield facts.problem(
            path,
            f'is "auto", which {whose}: DeepSpeed then takes {default} in silence',
            hint="a number" if path[-1] != "enabled" else "true or false",
        )


def _counted(tp: int) -> str:
    return f", among which this release counts the {tp} AutoTP ranks of a group" if tp > 1 else ""


def deepspeed_batch_product(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield one problem if train batch, micro-batch and accumulation disagree, or the train batch does not divide.

    Nothing where the ranks are not known or AutoTP does not divide them.
    """
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


def deepspeed_trainer_mismatch(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each key whose value differs from the Trainer's argument; nothing for other programs."""
    if facts.trainer:
        for path, got, need in trainer_mismatches(facts.tree.data, facts.arguments):
            yield facts.problem(
                path,
                "is not what the program's arguments say",
                got=shorten(repr(got)),
                need=shorten(repr(need)),
                hint='"auto"',
            )


def deepspeed_four_bit_weights_whole(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem if ZeRO-3 cannot shard 4-bit weights, because no bnb_4bit_quant_storage is given."""
    names, given = ("load_in_4bit", "use_4bit", "quantization_bit", "bits"), facts.arguments
    option, text = given.find(*names), given.text(*names)
    whole = text is not None and text.lower() in ("4", "", "true", "1") and not given.given("bnb_4bit_quant_storage")
    if facts.stage == 3 and whole:
        loader = option.spelled if option else "the program"
        what = f"stage 3 does not split the 4-bit weights that {loader} loads: every GPU holds all of them"
        yield facts.problem((ZERO, "stage"), what, hint="bnb_4bit_quant_storage bfloat16, or stage 2")

"""Rules of keys and values as such: what DeepSpeed does not know, has removed, or reads as something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from symconfig.descriptor.document import KeyPath
from symconfig.errors import Problem
from symconfig.existing.recover.deepspeed_auto import OVERWRITTEN, autos, fills
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.deepspeed.keys import ZERO, Kind, Mismatch, known, mismatches

_ELSEWHERE: frozenset[KeyPath] = frozenset({("optimizer", "params", "max_grad_norm")})  # has a rule of its own
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
_DEFAULT_BUCKET = 500_000_000  # elements (runtime/zero/config.py)

DEEPSPEED: Rules[DeepSpeedFacts] = Rules()


def _of(kind: Kind, alike: bool | None = None) -> Callable[[DeepSpeedFacts], Iterator[Problem]]:
    """Return the check of mismatches of one kind; alike: only those that have, or have no, similar known word."""

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
    """Tell whether DeepSpeed passes over an "auto" there: its pydantic models do (runtime/config_utils.py)."""
    return bool(known()["keys"].get(str(path[0]), {}).get("strict"))


DEEPSPEED.rule(
    "deepspeed-misspelt-key",
    "warning",
    "A key seems misspelt, and DeepSpeed passes over it",
    "DeepSpeed reads the keys that it knows out of the top level and some sections and looks at no others "
    "(deepspeed/runtime/config.py): it starts, and trains without what the key was to set. A program may also have "
    "put a key of its own there that looks alike.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_cliping": 1.0}',
)(_of("ignored", alike=True))

DEEPSPEED.rule(
    "deepspeed-ignored-key",
    "warning",
    "DeepSpeed does not know a key, and passes over it",
    "As with a misspelt key, but no known one is like it: a program may have put its own options into the file.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "my_own_section": {}}',
)(_of("ignored", alike=False))

DEEPSPEED.rule(
    "deepspeed-unknown-key",
    "error",
    "A section has a key that DeepSpeed does not know",
    "Sections that are pydantic models forbid other keys: DeepSpeed refuses it (deepspeed/runtime/config_utils.py).",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
    '"overlap_comm": true, "overlap_com": true}}',
)(_of("unknown"))

DEEPSPEED.rule(
    "deepspeed-removed-key",
    "error",
    "The release has removed a feature",
    "deepspeed/runtime/config.py lists what is gone (elasticity, amp, sparse_attention, MiCS, ...), and DeepSpeed "
    "refuses a file that still has it, even switched off (DeepSpeed#8489).",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "amp": {"enabled": false}}',
    since="0.19",
)(_of("removed"))

DEEPSPEED.rule(
    "deepspeed-deprecated-key",
    "warning",
    "A key has a new name",
    "DeepSpeed still copies the old key's value to the new one, with a warning in the log "
    "(deepspeed/runtime/zero/config.py); other tools that read the file look at the new one only.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
    '"overlap_comm": true, "cpu_offload": true}}',
)(_of("deprecated"))


@DEEPSPEED.rule(
    "deepspeed-old-and-new-key",
    "error",
    "A key is given under its old and its new name",
    "DeepSpeed refuses both together (deepspeed/runtime/config_utils.py, _process_deprecated_field).",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
    '"overlap_comm": true, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}}}',
)
def _old_and_new(facts: DeepSpeedFacts) -> Iterator[Problem]:
    section = facts.section(ZERO)
    for old, node in known()["keys"][ZERO]["keys"].items():
        new = node.get("deprecated")
        if old in section and new in section:
            yield facts.problem(
                (ZERO, old), f"is the old name of {new}, which is given, too", of_key=True, hint=f"leave out {old}"
            )


DEEPSPEED.rule(
    "deepspeed-wrong-type",
    "error",
    "A value is of another type than DeepSpeed reads",
    "DeepSpeed refuses it, or fails where it first computes with it (accelerate#2814: a bucket of 15099494.4).",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
    '"stage3_prefetch_bucket_size": 15099494.4}}',
)(_of("type"))

DEEPSPEED.rule(
    "deepspeed-loose-type",
    "note",
    "A value is of another type, which DeepSpeed takes for the right one",
    '5e8 is a floating-point number in JSON and "500000000" is text; this release converts both, others refused '
    "them, and the Trainer compares such a value with its own as it stands.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
    '"overlap_comm": true, "reduce_bucket_size": 5e8}}',
)(_of("loose"))

DEEPSPEED.rule(
    "deepspeed-wrong-choice",
    "error",
    "A value is not one of the choices",
    "DeepSpeed refuses it: ZeRO has the stages 0 to 3, a device is cpu, nvme or none.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 4}}',
)(_of("choice"))

DEEPSPEED.rule(
    "deepspeed-made-up-name",
    "error",
    "There is no such optimizer or schedule",
    "The configuration is taken as it is; the name is first looked up when the optimizer is made "
    "(deepspeed/runtime/engine.py, _configure_basic_optimizer), after the model was built, and that fails.",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamWW", "params": '
    '{"lr": 1e-4}}}',
)(_of("name"))


@DEEPSPEED.rule(
    "deepspeed-auto-without-trainer",
    "error",
    'A value is "auto", and nobody fills it in',
    'Only Transformers\' Trainer (and Accelerate) fill "auto" in. DeepSpeed refuses it among the batch sizes; '
    "elsewhere it computes with the text, and fails in the first step.",
    'deepspeed train.py --deepspeed_config ds.json\n{"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": '
    "true}}",
)
def _auto_unfilled(facts: DeepSpeedFacts) -> Iterator[Problem]:
    whose = (
        "the Trainer does not fill in"
        if facts.trainer
        else "only Transformers' Trainer fills in (its option is --deepspeed FILE)"
    )
    for path in autos(facts.tree.data):
        if not _dropped(path) and not (facts.trainer and fills(path, facts.stage)):
            yield facts.problem(path, f'is "auto", which {whose}', hint="a number")


@DEEPSPEED.rule(
    "deepspeed-dropped-auto",
    "warning",
    '"auto" is dropped, and the default is taken',
    'Sections that are pydantic models pass over "auto" (deepspeed/runtime/config_utils.py): without the Trainer '
    "bf16.enabled is then false, and buckets have 500 million elements, a gigabyte each (ray#62486). The Trainer "
    "itself leaves allgather_bucket_size (transformers/integrations/deepspeed.py).",
    '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
    '"overlap_comm": true, "allgather_bucket_size": "auto"}}',
)
def _auto_dropped(facts: DeepSpeedFacts) -> Iterator[Problem]:
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

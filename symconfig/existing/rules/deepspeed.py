"""All rules of a DeepSpeed configuration, the names that their rows use, the checks that no row can express."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath, shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading, Tree, Word
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import OVERWRITTEN, at, autofilled, autos, fills, uses_trainer
from symconfig.existing.recover.deepspeed import mismatches as trainer_mismatches
from symconfig.existing.recover.deepspeed_model import four_bits
from symconfig.existing.rules.rule import Check, Language, Lookup, Row, bases_of, rules_of
from symconfig.formats.deepspeed import gradient_bytes_of, precision_of, stage_of
from symconfig.frameworks import shared
from symconfig.frameworks.constraint import Constraint, Fixed, failing
from symconfig.frameworks.deepspeed import constraints
from symconfig.frameworks.deepspeed.keys import (
    ACCUMULATION,
    AUTO,
    MICRO,
    TRAIN,
    ZERO,
    Kind,
    mismatches,
    schema,
)
from symconfig.plans.configuration_set import ConfigurationSet

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedFacts:
    """What rules may ask of a DeepSpeed JSON and its launch.

    tree: the JSON with its places. trainer: Transformers' Trainer loads it. config: its data, with "auto" filled in if
    so. arguments: of the training program. gpus, model: None if not known. environment: variables that the script sets;
    None if not known. launcher: the words before the program.
    """

    tree: Tree
    trainer: bool
    arguments: Arguments = field(default_factory=Arguments)
    gpus: int | None = None
    model: ModelDescriptor | None = None
    environment: Mapping[str, Word] | None = None
    launcher: tuple[str, ...] = ()
    config: Any = field(init=False)

    def __post_init__(self) -> None:
        hidden = self.model.hidden_size if self.model else None
        config = autofilled(self.tree.data, self.arguments, hidden) if self.trainer else self.tree.data
        object.__setattr__(self, "config", config)

    @classmethod
    def of_reading(cls, reading: Reading, gpus: int | None, model: ModelDescriptor | None) -> Self:
        """Return the facts of a configuration that was read, which has a DeepSpeed JSON."""
        assert reading.deepspeed is not None, "is asked for where there is one"
        arguments = Arguments(reading.options)
        return cls(
            tree=reading.deepspeed,
            trainer=uses_trainer(arguments),
            arguments=arguments,
            gpus=gpus,
            model=model,
            environment=reading.environment if reading.environment_known and not reading.json_alone else None,
            launcher=tuple(word.text for word in reading.launcher),
        )

    def get(self, *path: str) -> Any:
        """Return the value at a path, with "auto" filled in; None where there is none."""
        return at(self.config, path)

    def section(self, *path: str) -> Json:
        """Return the object at a path; {} where there is none or another value."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def number(self, *path: str) -> int | float | None:
        value = self.get(*path)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def whole(self, *path: str) -> int:
        """Return the whole number at a path; 0 where there is none."""
        value = self.number(*path)
        return value if isinstance(value, int) else 0

    @property
    def stage(self) -> int:
        """Return the ZeRO stage; 0 if none, or none that DeepSpeed has, is given."""
        return stage_of(self.config)

    @property
    def precision(self) -> str:
        """Return "bf16" (also by bfloat16), "fp16", "fp32" if none is on, or "unknown" for an "auto"."""
        unknown = AUTO in (self.get(name, "enabled") for name in ("bf16", "bfloat16", "fp16"))
        return precision_of(self.config) or ("unknown" if unknown else "fp32")

    @property
    def tensor_parallel(self) -> int:
        return max(self.whole("tensor_parallel", "autotp_size"), 1)

    @property
    def sequence_parallel(self) -> int:
        return max(self.whole("sequence_parallel_size"), 1)

    @property
    def expert_parallel(self) -> int:
        return max(self.whole("expert_parallel", "autoep_size"), 1)

    @property
    def may_share_data(self) -> bool:
        """Return whether ranks may have the same parameters, which ZeRO shards; True if the GPUs are not known."""
        return self.gpus is None or self.gpus > self.tensor_parallel

    def offloads(self, section: str) -> bool:
        """Return whether offload_optimizer or offload_param (`section`) has the device "cpu" or "nvme"."""
        return self.get(ZERO, section, "device") in ("cpu", "nvme")


_ELSEWHERE: frozenset[KeyPath] = frozenset({("optimizer", "params", "max_grad_norm")})  # has a rule of its own
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
_DEFAULT_BUCKET = 500_000_000  # elements (runtime/zero/config.py)


def _of(kind: Kind, alike: bool | None = None) -> Check[DeepSpeedFacts]:
    """Return a check that yields a problem for each mismatch of one kind between the JSON and DeepSpeed's schema.

    Keys that the Trainer overwrites, or that have a rule of their own, are skipped. alike: only mismatches with (True)
    or without (False) a similar known word; None: both.
    """
    of_key = kind in ("removed", "unknown", "ignored", "deprecated")

    def check(facts: DeepSpeedFacts) -> Iterator[Problem]:
        for mismatch in mismatches(facts.tree.data):
            if (facts.trainer and mismatch.path in OVERWRITTEN) or mismatch.path in _ELSEWHERE:
                continue
            if mismatch.kind == kind and (alike is None or alike == (mismatch.alike is not None)):
                hint, need = mismatch.alike, mismatch.need
                if kind == "deprecated":
                    hint, need = f"{need} instead" if need else hint, None
                yield facts.tree.problem(
                    mismatch.path, mismatch.what, got=mismatch.got, need=need, hint=hint, of_key=of_key
                )

    return check


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
            yield facts.tree.problem(
                (ZERO, old), f"is the old name of {new}, which is given, too", of_key=True, hint=f"leave out {old}"
            )


deepspeed_wrong_type = _of("type")
deepspeed_loose_type = _of("loose")
deepspeed_out_of_range = _of("range")
deepspeed_wrong_choice = _of("choice")
deepspeed_made_up_name = _of("name")


# Who fills an "auto" in, by whether the Trainer reads the JSON.
_WHOSE = {
    True: "the Trainer does not fill in",
    False: "only Transformers' Trainer fills in (its option is --deepspeed FILE)",
}


def _unfilled(facts: DeepSpeedFacts, dropped: bool) -> Iterator[KeyPath]:
    """Yield the path of each "auto" that nobody fills in: in sections where DeepSpeed drops it, or in all others."""
    sections = schema()["properties"]
    for path in autos(facts.tree.data):  # a section with pydantic's fields takes its default (runtime/config_utils.py)
        drops = "additionalProperties" in (sections.get(str(path[0])) or {})
        if drops == dropped and not (facts.trainer and fills(path, facts.stage)):
            yield path


def deepspeed_auto_without_trainer(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for path in _unfilled(facts, dropped=False):
        yield facts.tree.problem(path, f'is "auto", which {_WHOSE[facts.trainer]}', hint="a number")


def deepspeed_dropped_auto(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each "auto" that DeepSpeed silently replaces by its default."""
    for path in _unfilled(facts, dropped=True):
        default, hint = "its default", "a number"
        if path[-1] in _BUCKETS:
            default = f"its default of {_DEFAULT_BUCKET:,} elements, 1 GB in 16 bits,"
        elif path[-1] == "enabled":
            default, hint = "false", "true or false"
        what = f'is "auto", which {_WHOSE[facts.trainer]}: DeepSpeed then takes {default} in silence'
        yield facts.tree.problem(path, what, hint=hint)


def deepspeed_batch_product(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield one problem if train batch, micro-batch and accumulation disagree, or the train batch does not divide.

    Nothing if the number of GPUs is not known, or the degrees do not divide it.
    """
    sp, tp = facts.sequence_parallel, facts.tensor_parallel
    if facts.gpus is None or facts.gpus % (sp * tp):
        return
    ranks = facts.gpus // sp
    train, micro, steps = (facts.whole(key) for key in (TRAIN, MICRO, ACCUMULATION))
    product = (micro or 1) * (steps or 1) * ranks
    whole = micro > 0 and steps > 0
    if train and (train != product if whole else train % product):
        parts = {f"micro-batch {micro}": micro, f"accumulation {steps}": steps, f"{ranks} ranks": ranks}
        factors = " x ".join(name for name, size in parts.items() if size)
        why = f", and this release counts the {tp} AutoTP ranks of a group as data ranks" if tp > 1 else ""
        what = f"{train} {'is not' if whole else 'does not divide by'} {factors}{why}"
        nearest = product if whole else max(round(train / product), 1) * product
        yield facts.tree.problem((TRAIN,), what, hint=str(nearest))


def deepspeed_trainer_mismatch(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each key whose value differs from the Trainer's argument; nothing for other programs."""
    if facts.trainer:
        for path, got, need in trainer_mismatches(facts.tree.data, facts.arguments):
            what, got, need = "is not what the program's arguments say", shorten(repr(got)), shorten(repr(need))
            yield facts.tree.problem(path, what, got=got, need=need, hint='"auto"')


def deepspeed_four_bit_weights_whole(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for 4-bit weights under ZeRO-3 without --bnb_4bit_quant_storage: they cannot be sharded."""
    option = four_bits(facts.arguments)
    if facts.stage == 3 and option is not None and not facts.arguments.given("bnb_4bit_quant_storage"):
        what = f"stage 3 does not split the 4-bit weights that {option.spelled} loads: every GPU holds all of them"
        yield facts.tree.problem((ZERO, "stage"), what, hint="bnb_4bit_quant_storage bfloat16, or stage 2")


# Attributes of the facts that rows name as they are. Every other name is a key, a path with dots.
FACTS = words("stage precision tensor_parallel sequence_parallel expert_parallel may_share_data trainer gpus")
TABLE: Mapping[str, Constraint] = {**vars(shared), **vars(constraints)}

ACCUMULATED = "data_types.grad_accum_dtype"
# What follows from keys and from what is around them, by the names that rows give it.
DERIVED: Mapping[str, Callable[[DeepSpeedFacts], Any]] = {
    "degree": lambda facts: facts.tensor_parallel * facts.sequence_parallel,
    "key_of_degree": lambda facts: (
        "tensor_parallel.autotp_size" if facts.tensor_parallel > 1 else "sequence_parallel_size"
    ),
    "key_of_precision": lambda facts: "bf16" if facts.section("bf16") else "",
    "key_of_accumulation": lambda facts: ACCUMULATED if _key(facts, ACCUMULATED) else ACCUMULATION,
    "accumulates_otherwise": lambda facts: facts.precision not in (_key(facts, ACCUMULATED), "unknown"),
    "stage3_key": lambda facts: next((key for key in facts.section(ZERO) if key.startswith("stage3_")), None),
    "gib": lambda facts: Lookup(lambda key: 2 * _key(facts, key) / 2**30),
    "torchrun": lambda facts: any("torchrun" in word or "torch.distributed" in word for word in facts.launcher),
    "threads_unset": lambda facts: facts.environment is not None and "OMP_NUM_THREADS" not in facts.environment,
}


def _key(facts: DeepSpeedFacts, path: str) -> Any:
    return facts.get(*path.split("."))


def _value(facts: DeepSpeedFacts, name: str) -> Any:
    if name in FACTS:
        return getattr(facts, name)
    return DERIVED[name](facts) if name in DERIVED else _key(facts, name)


def _refusal(facts: DeepSpeedFacts, names: str) -> tuple[str, str | None] | None:
    """Return sentence and hint of the first constraint of `names` that is known to fail; None if none is."""
    fixed, point = Fixed() if facts.model is None else Fixed.of(facts.model), _point(facts)
    for constraint in failing([TABLE[name] for name in names.split()], fixed, point):
        return constraint.sentence_at(fixed, point), constraint.hint
    return None


def _point(facts: DeepSpeedFacts) -> ConfigurationSet:
    """Return the configuration's degrees and options as the planner's columns; tp is AutoTP's, cp Ulysses' degree."""
    share = facts.number(ZERO, "offload_optimizer", "ratio")
    return ConfigurationSet(
        tp=facts.tensor_parallel,
        cp=facts.sequence_parallel,
        ep=facts.expert_parallel,
        cp_comm="a2a",
        zero_stage=facts.stage,
        grad_bytes=gradient_bytes_of(facts.config),
        optimizer_offload=0.0 if not facts.offloads("offload_optimizer") else 1.0 if share is None else share,
        param_offload=facts.offloads("offload_param"),
    )


def _problem(facts: DeepSpeedFacts, about: list[str], texts: dict[str, Any], row: Row) -> Problem | None:
    """Return a problem at the key `about[0]`, or at its name (`of_key`); without `about` on the whole JSON.

    The row's `fails` names constraints; the first failing one supplies sentence and hint; None if none fails.
    """
    if "fails" in row:
        if (failed := _refusal(facts, row["fails"])) is None:
            return None
        texts["what"], texts["hint"] = failed
    return facts.tree.problem(tuple(about[0].split(".")) if about else (), of_key=row.get("of_key", False), **texts)


NAME_TESTS: Mapping[str, Callable[[DeepSpeedFacts, str], bool]] = {
    "stated": lambda facts, path: path.rpartition(".")[2] in facts.section(*path.split(".")[:-1]),  # with any value
    "fails": lambda facts, name: _refusal(facts, name) is not None,
}
LANGUAGE = Language(_value, _problem, NAME_TESTS, bases_of("deepspeed"))

KEYS, *_OTHERS = (
    rules_of(file, LANGUAGE, globals())
    for file in ("deepspeed_keys", "deepspeed_batch", "deepspeed_zero", "deepspeed_numbers")
)
MEANING = tuple(rule for rules in _OTHERS for rule in rules)
RULES = (*KEYS, *MEANING)
GRID = "deepspeed-grid"  # the rule of degrees that do not divide

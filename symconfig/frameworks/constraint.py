"""A constraint: one thing that a framework's releases cannot run, asked of arrays of points or of a single one.

The search reads constraints as masks, the renderers as refusals, the audit as rules, and recovery as facts. Each stands
in one table: `frameworks/shared.py`, or `constraints.py` in the folder of its framework.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from symconfig.descriptor.architectures.keys import recorded, words
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER, Attention
from symconfig.descriptor.training import Optimizer
from symconfig.errors import Problem
from symconfig.format import picked
from symconfig.frameworks.megatron import adapters
from symconfig.frameworks.megatron.hybrid import DELTA, hybrid, parts_of_layer
from symconfig.frameworks.megatron.releases import between
from symconfig.graph.model import mixer_pieces
from symconfig.plans.configuration import FIELD_OF_PIN, Configuration
from symconfig.plans.configuration_set import COLUMNS, UNKNOWN, ConfigurationSet, Unknown, among, no

# Transformer Engine 2.x, pytorch/attention/dot_product_attention/utils.py, get_attention_backend: flash and fused
# attention are disabled below compute capability 8.0, and unfused attention under context parallelism.
NO_FLASH = ("volta",)


FIXED = words(
    """model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    latent indexed shared_choice attention_sinks attention_dropout hidden_dropout sliding_window
    num_nextn_predict_layers num_experts moe_intermediate_size shared_expert_intermediate_size expert_bias
    mixer_pieces hybrid parts_of_layer exchanged_pieces scans delta own_attention adapted column_rank head_adapters
    flash joined architecture optimizer narrow_states pretrained backend vocab_size samples per_example reads_others
    packed"""
)

_OF_MODEL = words(
    """model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    attention_sinks attention_dropout hidden_dropout num_nextn_predict_layers vocab_size"""
)
_OF_EXPERTS = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")


class Fixed:
    """The model, by the names of ModelDescriptor (sizes that it has not are 0), and the kernels that there are.

    sliding_window: tokens; 0: none. indexed: whether attention reads the keys that an indexer chooses; shared_choice:
    in some layers those of a layer before. column_rank: of adapters beside column-parallel layers, where tp splits the
    rank. head_adapters: whether queries, keys and values have one each. flash: whether flash attention runs. joined:
    GPUs that the fastest links join. mixer_pieces: of what ranks hold whole pieces of in blocks in attention's place,
    the greatest common divisor; exchanged_pieces: of what they have where heads are exchanged for the sequence; 0
    without such blocks. scans: whether a block other than attention mixes tokens; delta: whether a gated delta net
    does. own_attention: whether Transformers' modules of the family compute attention in code of their own. hybrid:
    whether Megatron-LM's HybridModel is built; parts_of_layer: of how many of its layers one of the model's is, 0 where
    that differs. architecture: of the GPU (`descriptor.cluster.Gpu`). optimizer: its name. narrow_states: whether it
    keeps something narrower than fp32 by a setting of its own. pretrained: whether the run begins with weights of
    others, without their optimizer's state. backend: the framework's name. samples: of an update of reinforcement
    learning, else 0. per_example: sequences of an example, 2 for pairs. reads_others: whether the loss has a KL term of
    other answers. packed: whether the job packs its sequences.
    """

    __slots__ = ("_facts",)

    def __init__(self, **facts: Any) -> None:
        """Take facts by name, those that are UNKNOWN left out. Raises TypeError for a name that is none of FIXED."""
        if unknown := facts.keys() - FIXED:
            raise TypeError(f"no facts that a constraint can ask for: {', '.join(sorted(unknown))}")
        self._facts = {name: value for name, value in facts.items() if value is not UNKNOWN}

    def __getattr__(self, name: str) -> Any:
        """Return a fact, UNKNOWN if it is not given."""
        if name not in FIXED:
            raise AttributeError(f"{name} is no fact that a constraint can ask for")
        return self._facts.get(name, UNKNOWN)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(frozenset(self._facts.items()))

    @classmethod
    def of(
        cls,
        model: ModelDescriptor,
        flash: Any = UNKNOWN,
        joined: Any = UNKNOWN,
        architecture: Any = UNKNOWN,
        *,
        optimizer: Any = UNKNOWN,
        **more: Any,
    ) -> Self:
        """Return the facts of a model; what is not given stays UNKNOWN, sizes of parts that the model lacks are 0.

        flash: whether flash attention runs. joined: GPUs that the fastest links connect. optimizer: an Optimizer, of
        which the name and whether its states are narrow are kept; another value is both. more: other facts by name.
        Raises KeyError for an adapter's target that Megatron-Bridge does not name.
        """
        experts, put = model.experts, adapters.targets(model)
        return cls(
            **picked(model, *_OF_MODEL),
            **{name: getattr(experts, name, 0) for name in _OF_EXPERTS},
            latent=model.attention is Attention.MLA,
            indexed=model.indexer is not None,
            shared_choice=model.indexer is not None and not all(model.indexer.layers or (True,)),
            sliding_window=(model.sliding_window or 0) if any(model.sliding_layers) else 0,
            expert_bias=experts is not None and experts.expert_bias,
            mixer_pieces=mixer_pieces(model),
            hybrid=hybrid(model),
            parts_of_layer=parts_of_layer(model) or 0,
            exchanged_pieces=mixer_pieces(model, exchanged=True),
            scans=any(mixer.block != NO_MIXER for mixer in model.mixers),
            delta=any(mixer.block == DELTA for mixer in model.mixers),
            own_attention=bool(recorded(model.model_type, "own_attention")),
            adapted=model.adapter is not None,
            column_rank=0 if put is None or model.adapter is None or not put.by_columns else model.adapter.r,
            head_adapters=put is not None and "linear_q" in put.modules,
            flash=flash,
            joined=joined,
            architecture=architecture,
            optimizer=optimizer.name if isinstance(optimizer, Optimizer) else optimizer,
            narrow_states=optimizer.narrow if isinstance(optimizer, Optimizer) else optimizer,
            **more,
        )


def flash(architecture: str, attention: str | None, engine: bool) -> bool:
    """Return whether flash attention runs: not if `attention`, the kernel that the job asks for, is `unfused`.

    Nor, if `engine` (attention is Transformer Engine's), on the GPU architectures NO_FLASH.
    """
    return attention != "unfused" and not (engine and architecture in NO_FLASH)


class Verdict(Enum):
    """What a constraint says of one point."""

    HOLDS = "holds"
    FAILS = "fails"
    UNKNOWN = "unknown"  # what it asks for is not known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constraint:
    """A combination that cannot run.

    name: stable and unique in its table. predicate: true where a point cannot run, of the fixed facts and the point;
    written with &, | and no(), so that it takes arrays and UNKNOWN alike. rule: said of all points, for a search.
    sentence: said of one, a template in `f` (Fixed) and `p` (Configuration); without one, the rule. about, got: the
    field of a plan that is at fault (by default that of the first pin), and a template of its value. hint: what else
    helps. pins: of which every plan without the problem has one; `tp` stands for every other tp, and `tp=1` for itself.
    source: where it is known from. since, until: the first and the last release that it holds for. divides: shares
    would not be whole, so that no figure can be given. unsaid: a plan can want it and no launch have it, since its
    releases lack the option, or the model what the option is for. example: facts at which it fails, beside those of a
    model that runs, by name.
    """

    name: str
    predicate: Callable[[Any, Any], Any]
    rule: str
    source: str
    example: Mapping[str, Any]
    sentence: str = ""
    about: str = ""
    got: str | None = None
    hint: str | None = None
    pins: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    divides: bool = False
    unsaid: bool = False
    asks: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", _columns(self.predicate))
        object.__setattr__(self, "sentence", self.sentence or self.rule)
        object.__setattr__(self, "about", self.about or self.pins[0].partition("=")[0])

    def in_force(self, release: str) -> bool:
        """Return whether a release lies between `since` and `until`, both included; None is no bound."""
        return between(release, self.since, self.until)

    def mask(self, fixed: Fixed, points: ConfigurationSet, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return which points cannot run, as an array of this shape; an UNKNOWN answer counts as able to run."""
        fails = self.predicate(fixed, points)
        known = np.asarray(False if fails is UNKNOWN else fails, dtype=bool)
        return known if known.shape == shape else np.full(shape, known)

    def verdict(self, fixed: Any, point: Any) -> Verdict:
        """Return whether a point fails the constraint: FAILS, HOLDS, or UNKNOWN if facts that decide it are not known.

        fixed, point: anything with the attributes of Fixed and Configuration. Of arrays all elements must fail.
        """
        fails = self.predicate(fixed, point)
        if isinstance(fails, Unknown):
            return Verdict.UNKNOWN
        return Verdict.FAILS if (fails.all() if isinstance(fails, np.ndarray) else fails) else Verdict.HOLDS

    def sentence_at(self, fixed: Any, point: Any) -> str:
        """Return the sentence with the values of one point filled in."""
        return self.sentence.format(f=fixed, p=point)

    def problem(self, fixed: Any, point: Configuration) -> Problem:
        """Return the problem of one point that fails the constraint, with the pins that avoid it."""
        got = None if self.got is None else self.got.format(f=fixed, p=point)
        pins = self.avoiding(point)
        return Problem(self.sentence_at(fixed, point), field=self.about, got=got, hint=self.hint, pins=pins)

    def avoiding(self, point: Configuration) -> tuple[str, ...]:
        """Return pins of which every plan without the problem satisfies one; () if none are known.

        A degree alone in `pins` becomes ranges below and above the point's value: `tp=..3`, `tp=5..`.
        """
        return tuple(
            pin
            for name in self.pins
            for pin in ((name,) if "=" in name else other(name, int(getattr(point, FIELD_OF_PIN.get(name, name)))))
        )


def only(
    column: str, values: tuple[Any, ...], wrong: Any, pins: str, rule: str, *, source: str, **more: Any
) -> Constraint:
    """Return the constraint that fails unless a column of a configuration has one of these values.

    wrong: a value that is none of them, for the example, to which one in `more` adds. pins: those that avoid the
    problem, separated by blanks. more: other fields of the constraint, in place of those that follow from the column.
    """
    shown = None if isinstance(wrong, bool) or "sentence" in more else f"{{p.{column}}}"
    fields: dict[str, Any] = {"name": f"no other {column}", "got": shown, **more}
    fields["example"] = {column: wrong, **more.get("example", {})}
    return Constraint(
        predicate=lambda f, p: no(among(getattr(p, column), frozenset(values))),
        rule=rule,
        pins=tuple(pins.split()),
        source=source,
        **fields,
    )


def of_module(names: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Return the constraints among a module's values, in the order of their definition. names: its `globals()`."""
    return tuple(one for one in list(names.values()) if isinstance(one, Constraint))


def in_force(constraints: Iterable[Constraint], release: str) -> tuple[Constraint, ...]:
    """Return the constraints that hold for a release, in order."""
    return tuple(one for one in constraints if one.in_force(release))


def failing(constraints: Iterable[Constraint], fixed: Any, point: Any) -> tuple[Constraint, ...]:
    """Return the constraints that one point is known to fail; those whose facts are unknown are left out."""
    return tuple([one for one in constraints if one.verdict(fixed, point) is Verdict.FAILS])


def possible(constraints: Iterable[Constraint], fixed: Any, point: Any) -> tuple[Constraint, ...]:
    """Return the constraints that one point fails, or may fail, as their facts are unknown."""
    return tuple([one for one in constraints if one.verdict(fixed, point) is not Verdict.HOLDS])


def other(name: str, value: int) -> tuple[str, ...]:
    """Return two pins, or one, that together admit every value of a degree but this one: `tp=..3`, `tp=5..`.

    The pin below is left out for a value of 1 or less; for zero, whose least value is 0, only for 0.
    """
    below = (f"{name}=..{value - 1}",) if value > 1 or (name == "zero" and value) else ()
    return (*below, f"{name}={value + 1}..")


@dataclass(slots=True)
class _Probe:
    """Facts that are all UNKNOWN and record which names are read in `reads`; AttributeError for any other name."""

    names: Collection[str]
    reads: set[str]

    def __getattr__(self, name: str) -> Unknown:
        if name not in self.names:
            raise AttributeError(f"{name} is no fact that a constraint can ask for")
        self.reads.add(name)
        return UNKNOWN


def _columns(predicate: Callable[[Any, Any], Any]) -> frozenset[str]:
    """Return the names of the facts and columns that a predicate reads.

    Raises:
        TypeError: it decides by `if`, `and`, `or` or `not` instead of &, | and no().
        AttributeError: it reads a name that is neither of Fixed nor of ConfigurationSet.
    """
    columns: set[str] = set()
    predicate(_Probe(FIXED, columns), _Probe(COLUMNS, columns))
    return frozenset(columns)

"""What measured rows do not state: assumptions per source and release, as data with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Field, create_model

from symconfig.cost.framework import Framework, Hide
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.job import Backend, Packing
from symconfig.descriptor.measurements import Degree, MeasuredBatch, Row, Software
from symconfig.descriptor.sections import Adapter
from symconfig.descriptor.strict import Count, PositiveInt, Strict, validate
from symconfig.frameworks.behaviour import kinds
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON


class Counting(Strict):
    """One source's way of counting FLOP; all count a multiply-add as 2, forward and backward.

    causal: attention's products by the half that the mask leaves, or full. vocabulary: how many matrices of
    vocabulary x hidden size count (the head; some count the embedding's look-up as another).
    peak_tflops: what MFU is relative to; None: the GPU's dense peak at the row's precision.
    """

    causal: Literal["half", "full"] = "half"
    vocabulary: Literal[0, 1, 2] = 1
    peak_tflops: float | None = None


COUNTING = Counting()  # symconfig's own way, for sources of which nothing is known


class ModelDefault(Strict):
    """The public model behind a name in the measurements: one of the zoo, or what its rows leave out of its shape."""

    name: str
    zoo: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict, description="as its public config.json has them")


class ClusterDefault(Strict):
    """A GPU that the zoo does not have, as a change of one that it has."""

    gpu: str
    base: str
    memory_gib: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    power_w: float | None = None
    reason: str


# Fields of a framework that a habit may change; others are of its bytes, of what it hides, and options of its kernels.
OF_FRAMEWORK = (
    "accumulated_bytes",
    "adam_bytes",
    "all_reduced_gradients",
    "beside_bytes",
    "blocking_launches",
    "copied_bytes",
    "gathers",
    "graphed",
    "listed",
    "microbatch_group",
    "optimizer_instances",
    "quantised_weights",
    "reduced_bytes",
    "reuse_elements",
    "scattered_sends",
    "shard_bytes",
    "torch_workspace",
    "vocab_multiple",
)
SIZES = ("weight", "gradient", "optimizer")
_Amount = Annotated[float, Field(ge=0)]
_AT_LEAST: dict[Any, Any] = {int: Count, float: _Amount, float | None: _Amount | None}
KINDS: dict[str, Any] = {
    **kinds(MEGATRON.implementation),
    **{name: _AT_LEAST.get(kind, kind) for name, kind in get_type_hints(Framework).items() if name in OF_FRAMEWORK},
    "optimizer_instances": PositiveInt,
    "graphed": Literal[tuple(GRAPHED)],
    **{f"{name}_bytes": _Amount for name in SIZES},
    **{f"hide_{part.name}": _Amount for part in fields(Hide)},
}

Flash = Literal["flash1", "flash2", "triton"]

if TYPE_CHECKING:

    class Deviations(Strict):
        """The deviations of a framework from its usual, each where it deviates."""
else:
    Deviations = create_model(
        "Deviations", __base__=Strict, **{name: (kind | None, None) for name, kind in KINDS.items()}
    )


class Behaviour(Strict):
    """What runs do: options as rows state them, habits beside their framework's usual, and fields of their model."""

    options: dict[str, Any] = Field(default_factory=dict)
    habits: Deviations = Deviations()
    model: dict[str, Any] = Field(default_factory=dict)


class Program(Behaviour):
    """What runs of a program do unless they say otherwise: the nearest framework, and how its code differs from that.

    names: of the program, or as `version` where `name` is only its library. measured: runs of it are among those that
    intervals come from.
    """

    names: tuple[str, ...]
    framework: Backend = "megatron"
    measured: bool = True
    reason: str
    flash: Flash | None = None


class Recipe(Behaviour):
    """The settings that a source's public recipe adds to its printed table.

    Empty: for every program, version, model, GPU, precision. degrees: names, and those of their values that it holds
    for.
    """

    file: str = Field(description="where it stands, in the source's repository at the version's tag")
    software: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    degrees: dict[Degree, tuple[int, ...]] = Field(default_factory=dict)

    def covers(self, row: Row) -> bool:
        """Return whether the row matches the recipe in software, version, model, GPU, precision and degrees. An empty
        field of the recipe matches any row.
        """
        pairs = (
            (self.software, row.software.name if row.software else None),
            (self.versions, row.software.version if row.software else None),
            (self.models, row.model.name),
            (self.gpus, row.cluster.gpu),
            (self.precisions, row.options.precision),
            *((values, row.parallel.get(name, 1)) for name, values in self.degrees.items()),
        )
        return all(not known or value in known for known, value in pairs)


class Tuned(Strict):
    """The ranges of which the source ran the best configuration, as it says, without printing it."""

    micro: tuple[int, ...] = ()
    vpp: tuple[int, ...] = Field(default=(), description="chunks of a stage; a number that no stage has is left out")


class Assumption(Behaviour):
    """An assumption for one source, or one release of its software. Only what a row leaves out is taken from here."""

    source: str
    version: str | None = None
    gpus: tuple[str, ...] = Field(default=(), description="of tables that one release made, where rows do not tell it")
    reason: str
    flash: Flash | None = Field(default=None, description="what `flash` means at its time")
    assumed: tuple[str, ...] = Field(
        default=(), description="names of what neither the source's text nor its recipes or code state for its rows"
    )
    batch: MeasuredBatch = MeasuredBatch()
    tuned: Tuned = Tuned()
    vpp: int = Field(default=1, description="chunks of a pipeline's stage, where rows do not print them")
    lora: Adapter | None = None
    packing: Packing | None = Field(default=None, description="of fine-tuning rows")
    network: str | None = Field(default=None, description="between nodes, as a row states its `inter_node`")
    gpu: str | None = None
    flops: Counting = Field(default=COUNTING, description="how its TFLOP/s and MFU count")
    recipes: tuple[Recipe, ...] = ()

    @property
    def documented(self) -> frozenset[str]:
        """Return the names of assumed values that the source itself documents for its rows."""
        sections = (self.options, self.habits.model_dump(exclude_none=True), self.model, self.batch.model_fields_set)
        return frozenset[str]().union(self.model_fields_set, *sections) - set(self.assumed)


class Assumptions(Strict):
    """The file."""

    schema_: Literal["symconfig.assumptions/1"] = Field(alias="schema")
    models: tuple[ModelDefault, ...] = ()
    clusters: tuple[ClusterDefault, ...] = ()
    software: tuple[Program, ...] = ()
    sources: tuple[Assumption, ...] = ()

    def program(self, row: Row) -> Program | None:
        """Return the known program of the row's software, by its version's or its own name in lower case, or None."""
        stated = row.software or Software(name="")
        words = [word.lower() for word in (stated.version, stated.name) if word]
        return next((each for word in words for each in self.software if word in each.names), None)

    def of(self, source: str, row: Row) -> Assumption:
        """Return the row's assumption: merged options, model fields and habits of its program, its source and each
        recipe that covers the row, later ones overriding.

        Of the source's entries for this version (or any) and GPU (or any), the one that names the version, then the
        GPU, is used; an empty one if none. The program's `flash` serves where the source has none.
        """
        version, gpu = row.software.version if row.software else None, row.cluster.gpu
        fitting = [item for item in self.sources if item.source == source and item.version in (None, version)]
        fitting = [item for item in fitting if not item.gpus or gpu in item.gpus]
        fitting.sort(key=lambda item: (item.version is None, not item.gpus))
        own = fitting[0] if fitting else Assumption(source=source, reason="nothing is known of this source")
        program = self.program(row)
        layers = [program or Behaviour(), own, *(recipe for recipe in own.recipes if recipe.covers(row))]
        merged = {
            "options": {name: value for each in layers for name, value in each.options.items()},
            "model": {name: value for each in layers for name, value in each.model.items()},
            "habits": Deviations(
                **{name: value for each in layers for name, value in each.habits.model_dump(exclude_none=True).items()}
            ),
        }
        return own.model_copy(update=merged | {"flash": own.flash or (program and program.flash)})

    def before(self, others: Assumptions) -> Assumptions:
        """Return both merged, with entries of `self` before those of `others`, so that they are found first."""
        parts = ("models", "clusters", "software", "sources")
        return others.model_copy(update={part: (*getattr(self, part), *getattr(others, part)) for part in parts})


_given: ContextVar[Assumptions | None] = ContextVar("given", default=None)


@contextmanager
def assuming(path: Path | None) -> Iterator[None]:
    """Put the assumptions of a file before the built-in ones within the block; None: built-in ones only. Raises
    InputError for a file that cannot be read or is invalid.
    """
    token = _given.set(None if path is None else _read(path).before(_own()))
    try:
        yield
    finally:
        _given.reset(token)


def assumptions() -> Assumptions:
    """Return the assumptions in force: the built-in ones, or those of the enclosing `assuming` block."""
    return _given.get() or _own()


@cache
def _own() -> Assumptions:
    return _read(Path(__file__).with_name("data") / "assumptions.yaml")


def _read(path: Path) -> Assumptions:
    return validate(load_yaml_strict(path), Assumptions)

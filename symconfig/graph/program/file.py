"""A program file: its fields, and its steps as one list with repeats turned out, where each tensor has one name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.strict import MAX_LAYERS, Strict
from symconfig.errors import nearest
from symconfig.graph.program.calls import checked
from symconfig.graph.program.notation import Mistake, Statement, names, statement

Word: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)]
Size: TypeAlias = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
]
Float = Literal["fp64", "fp32", "bf16", "fp16", "fp8", "fp4"]


def _dims(value: Any) -> Any:
    """Write a list of dims as text."""
    if isinstance(value, list) and all(isinstance(dim, str | int) and not isinstance(dim, bool) for dim in value):
        return "[" + ", ".join(map(str, value)) + "]"
    return value


class Declaration(Strict):
    """In the file also as a list of dims, or as `int64[b, s]`."""

    dims: Annotated[str, BeforeValidator(_dims)]
    frozen: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"dims": value} if isinstance(value, str | list) else value


class Repeat(Strict):
    """The body so many times. Each turn has its own parameters; `carry` x: y makes a turn's y the next one's x."""

    name: Word
    times: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    carry: dict[Word, Word] = Field(default_factory=dict)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    body: list[Step] = Field(min_length=1)


class Step(Strict):
    """A statement (in the file also as mere text), or a repeat. path: of the module, for people."""

    do: str | None = None
    repeat: Repeat | None = None
    path: str = Field(default="", max_length=200)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"do": value} if isinstance(value, str) else value


class ProgramFile(Strict):
    schema_: Literal["symconfig.program/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=200)
    source: str | None = None
    element: Float = "bf16"
    dims: dict[Word, Size]
    batch: tuple[Word, ...] = ()
    inputs: dict[Word, Declaration] = Field(min_length=1)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    operators: tuple[Step, ...] = Field(min_length=1)
    outputs: tuple[Word, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


Repeat.model_rebuild()


MAX_OPERATORS = 100_000
UNKNOWN = ""  # in place of a tensor that a mistake has told already


@dataclass(frozen=True, slots=True)
class Line:
    """A statement of the file, where it stands, and the module that it names."""

    text: str
    at: KeyPath
    call: Statement
    module: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A statement in one turn of the repeats around it. names: of its targets and terms, in the whole program."""

    line: Line
    prefix: str
    made: tuple[str, ...]
    read: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"{self.prefix}{self.line.module}".rstrip(".")


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or a parameter, under its name in the whole program."""

    name: str
    declaration: Declaration
    at: KeyPath
    parameter: bool


@dataclass(slots=True)
class Expansion:
    """mistakes: each with the path and the text that it is in; a text's own places count within it."""

    declared: list[Declared] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    scope: dict[str, str] = field(default_factory=dict)
    mistakes: dict[tuple[KeyPath, str, int], tuple[str, Mistake]] = field(default_factory=dict)
    lines: dict[KeyPath, Line | None] = field(default_factory=dict)

    def wrong(self, at: KeyPath, mistake: Mistake, text: str = "") -> None:
        """Note a mistake; the same one in another turn is the same mistake."""
        self.mistakes.setdefault((at, mistake.what, mistake.at), (text, mistake))

    @contextmanager
    def telling(self, at: KeyPath, text: str) -> Iterator[None]:
        """Note a mistake that is made inside, instead of raising it."""
        try:
            yield
        except Mistake as mistake:
            self.wrong(at, mistake, text)

    def line(self, step: Step, at: KeyPath) -> Line | None:
        """Read a line; None: it cannot be read."""
        if at not in self.lines:
            text, self.lines[at] = step.do or "", None
            with self.telling(at, text):
                self.lines[at] = Line(text, at, checked(statement(text)), step.path)
        return self.lines[at]


def expand(file: ProgramFile) -> Expansion:
    """Expand all turns; mistakes are reported, not raised."""
    result = Expansion()
    for kind, section in (("inputs", file.inputs), ("parameters", file.parameters)):
        for name, declaration in section.items():
            _enter(result, result.scope, name, name, (kind, name))
            result.declared.append(Declared(name, declaration, (kind, name), kind == "parameters"))
    _walk(result, file.operators, result.scope, "", ("operators",))
    return result


def _walk(result: Expansion, steps: Sequence[Step], scope: dict[str, str], prefix: str, at: KeyPath) -> None:
    """Enter into the scope all that the steps make, whatever their order, and then append their turns."""
    inner: list[str] = []
    for index, step in enumerate(steps):
        where = (*at, index)
        if (step.do is None) == (step.repeat is None):
            result.wrong(where, Mistake("a step does one thing", need="either `do` or `repeat`"))
        elif step.repeat is not None:
            if step.repeat.name in inner:
                mistake = Mistake("two repeats have the same name", got=step.repeat.name)
                result.wrong((*where, "repeat", "name"), mistake)
            inner.append(step.repeat.name)
            for made in step.repeat.carry.values():
                last = f"{prefix}{step.repeat.name}.{step.repeat.times - 1}.{made}"
                _enter(result, scope, made, last, (*where, "repeat", "carry"))
        elif line := result.line(step, where):
            for target in line.call.targets:
                _enter(
                    result, scope, target.name, whole=prefix + target.name, at=where, text=line.text, place=target.at
                )
        else:
            scope.update((name, UNKNOWN) for name in names(step.do or "") if name not in scope)
    for index, step in enumerate(steps):
        if len(result.turns) > MAX_OPERATORS:
            result.wrong((*at, index), Mistake("the program has too many operators", need=f"<= {MAX_OPERATORS:,}"))
            return
        if step.repeat is not None:
            _repeat(result, step.repeat, scope, prefix, (*at, index, "repeat"))
        elif line := result.lines.get((*at, index)):
            targets = tuple(scope[target.name] for target in line.call.targets)
            for term in line.call.terms:
                if term.name not in scope:
                    hint = nearest(term.name, scope)
                    mistake = Mistake("there is no such tensor", term.at, got=term.name, hint=hint)
                    result.wrong(line.at, mistake, line.text)
            read = tuple(scope.get(term.name, UNKNOWN) for term in line.call.terms)
            result.turns.append(Turn(line, prefix, targets, read))


def _repeat(result: Expansion, repeat: Repeat, outer: Mapping[str, str], prefix: str, at: KeyPath) -> None:
    carried = {name: outer.get(name, UNKNOWN) for name in repeat.carry}
    for name in carried:
        if name not in outer:
            result.wrong((*at, "carry", name), Mistake("nothing of this name is there before the first turn", got=name))
    inside = [step.repeat.carry.values() if step.repeat else names(step.do or "") for step in repeat.body]
    makes = {name for some in inside for name in some}  # by its own statements, or carried out of a repeat within
    for name, made in repeat.carry.items():
        if made not in makes:
            result.wrong((*at, "carry", name), Mistake("the body makes nothing of this name", got=made))
    exported = set(repeat.carry.values())
    visible = {name: source for name, source in outer.items() if name not in exported}
    before = len(result.turns)
    for turn in range(repeat.times):
        here = f"{prefix}{repeat.name}.{turn}."
        scope = visible | carried
        for name, declaration in repeat.parameters.items():
            place = (*at, "parameters", name)
            _enter(result, scope, name, here + name, place)
            result.declared.append(Declared(here + name, declaration, place, True))
        _walk(result, repeat.body, scope, here, (*at, "body"))
        carried = {name: scope.get(made, UNKNOWN) for name, made in repeat.carry.items()}
        if not before < len(result.turns) <= MAX_OPERATORS:  # nothing could be read; or too much, which is told
            return


def _enter(
    result: Expansion, scope: dict[str, str], name: str, whole: str, at: KeyPath, text: str = "", place: int = 0
) -> None:
    if name in scope:
        result.wrong(at, Mistake("the name is taken", place, got=name, need="a name for each tensor"), text)
    scope[name] = whole

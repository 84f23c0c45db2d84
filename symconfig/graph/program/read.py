"""A program from a YAML file: docs/reference/programs.md describes it and every function.

What splits an operator and what it keeps for its backward is never written: it follows from the function
(`symconfig.graph.program.build`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath, parse_yaml_strict, read_text
from symconfig.descriptor.json_strict import parse_json_strict
from symconfig.descriptor.load import find
from symconfig.descriptor.strict import MAX_LAYERS, Strict, validate
from symconfig.errors import InputError, Problem, nearest
from symconfig.graph.operator import Operator, Tensor
from symconfig.graph.program.calls import Site, check_dims, checked, make, used
from symconfig.graph.program.notation import (
    ELEMENT_BYTES,
    Mistake,
    Statement,
    declaration,
    names,
    size_of_number,
    sizes,
    statement,
)
from symconfig.graph.program.program import Parameter, Program

Word: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=200)]
Size: TypeAlias = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
]
MAX_OPERATORS = 100_000


def _dims(value: Any) -> Any:
    """Return a list of dims as text, `[b, s]`; any other value unchanged, for validation to reject."""
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
    element: Literal["fp64", "fp32", "bf16", "fp16", "fp8", "fp4"] = "bf16"
    dims: dict[Word, Size]
    batch: tuple[Word, ...] = ()
    inputs: dict[Word, Declaration] = Field(min_length=1)
    parameters: dict[Word, Declaration] = Field(default_factory=dict)
    operators: tuple[Step, ...] = Field(min_length=1)
    outputs: tuple[Word, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()


Repeat.model_rebuild()


def load_program(name_or_path: str | Path, dims: Mapping[str, int] | None = None) -> Program:
    """Return the program in a file, or of this name in the zoo; `.json` is read as JSON, everything else as YAML.

    dims: sizes that replace those in the file. Raise InputError if nothing is found, the text cannot be parsed or does
    not match the schema; else with all mistakes in the order of the file, at most MAX_PROBLEMS.
    """
    path = find(str(name_or_path), "programs", None)
    text = read_text(path)
    parse = parse_json_strict if path.suffix == ".json" else parse_yaml_strict
    document = parse(text, str(path))
    reader = _Reader(validate(document, ProgramFile))
    program = reader.program(dims or {})
    if reader.mistakes:
        lines = text.splitlines()
        each = [_problem(document, lines, at, text, one) for (at, *_), (text, one) in reader.mistakes.items()]
        raise InputError(sorted(each, key=lambda problem: (problem.line or 0, problem.column or 0))[:MAX_PROBLEMS])
    return program


Scope = dict[str, str | None]  # names in the whole program; None: hidden by a mistake that is recorded


@dataclass(slots=True)
class _Reader:
    """A program file while it is read, statement after statement.

    statements: with their texts, by their places; None where one cannot be read. made: by places of statements and
    declarations, the tensors that they make in all turns. read: tensors. mistakes: each with the text that it is in, by
    the path of that text and the place within it, so that the same one in another turn is the same mistake.
    """

    file: ProgramFile
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    statements: dict[KeyPath, tuple[str, Statement | None]] = field(default_factory=dict)
    made: dict[KeyPath, list[str]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    mistakes: dict[tuple[KeyPath, str, int], tuple[str, Mistake]] = field(default_factory=dict)

    def program(self, instead: Mapping[str, int]) -> Program:
        """Return the program; it is valid only if `mistakes` is empty afterwards. instead: sizes that replace the
        file's.

        Outputs that no operator makes and undefined batch dims are recorded as mistakes, too; tensors that nothing
        reads only if there is no other mistake.
        """
        file = self.file
        self.sizes = sizes(
            file.dims, instead, lambda dim, mistake, text: self.record_mistake(("dims", dim), mistake, text)
        )
        scope: Scope = {}
        for kind, section in (("inputs", file.inputs), ("parameters", file.parameters)):
            for name, declared in section.items():
                self.declare(scope, "", name, declared, (kind, name), trained=kind == "parameters")
        fed = tuple(file.inputs)
        self.walk(file.operators, scope, "", ("operators",))
        computed = {name: whole for name, whole in scope.items() if name not in {*fed, *file.parameters}}
        for index, name in enumerate(file.outputs):
            if name not in computed:
                mistake = Mistake("the output is never made", got=name, hint=nearest(name, computed))
                self.record_mistake(("outputs", index), mistake)
        for dim in file.batch:
            if dim not in self.sizes:
                self.record_mistake(("batch",), Mistake("the batch is counted by an undefined dim", got=dim))
        outputs = tuple(whole for name in file.outputs if (whole := computed.get(name)) is not None)
        if not self.mistakes:
            self.unused(outputs)
        return Program(
            name=file.name,
            sizes=self.sizes,
            tensors=self.tensors,
            inputs=fed,
            parameters=tuple(self.parameters),
            operators=tuple(self.operators),
            outputs=outputs,
            batch=frozenset(file.batch),
            notes=file.notes,
        )

    def record_mistake(self, at: KeyPath, mistake: Mistake, text: str = "") -> None:
        """Record a mistake, unless the same one at the same place is already recorded (from another turn of a
        repeat).
        """
        self.mistakes.setdefault((at, mistake.what, mistake.at), (text, mistake))

    @contextmanager
    def recording_mistakes(self, at: KeyPath, text: str) -> Iterator[None]:
        """Record a Mistake that is raised inside the context instead of passing it on."""
        try:
            yield
        except Mistake as mistake:
            self.record_mistake(at, mistake, text)

    def enter(self, scope: Scope, name: str, tensor: Tensor, at: KeyPath, text: str = "", place: int = 0) -> None:
        """Enter a tensor in the scope under `name`, in `tensors` and in `made` of its declaration or statement `at`.

        If the name is taken in the scope or the program, record a mistake and replace the old tensor. text, place: for
        the mistake, the statement and the character index within it.
        """
        if name in scope or tensor.name in self.tensors:
            taken = name if name in scope else tensor.name
            self.record_mistake(at, Mistake("the name is taken", place, got=taken, need="a name for each tensor"), text)
        scope[name] = tensor.name
        self.tensors[tensor.name] = tensor
        self.made.setdefault(at, []).append(tensor.name)

    def literals(self, *every: Sequence[str]) -> None:
        """Add the sizes of dims that are numbers to `sizes`; 0 is left out, so that it is reported as a mistake."""
        self.sizes |= {dim: size for dims in every for dim in dims if (size := size_of_number(dim))}

    def declare(
        self, scope: Scope, prefix: str, name: str, declared: Declaration, at: KeyPath, *, trained: bool
    ) -> None:
        """Enter an input, or a parameter if `trained`, which has a gradient unless it is frozen.

        Dims that cannot be read or are undefined, an unknown element type and a frozen input are recorded as mistakes,
        and the tensor entered all the same: with the file's default element type or no dims if those could not be read.
        """
        width = ELEMENT_BYTES[self.file.element]
        dims: tuple[str, ...] = ()
        with self.recording_mistakes(at, declared.dims):
            if declared.frozen and not trained:
                raise Mistake("an input has no gradient anyway", got="frozen", need="a parameter")
            element, dims = declaration(declared.dims)
            width = _width(element, 0) or width
            self.literals(dims)
            check_dims(dims, self.sizes, 0)
        tensor = Tensor(prefix + name, dims, width, trained and not declared.frozen)
        self.enter(scope, name, tensor, at)
        if trained:
            self.parameters.append(Parameter(tensor, tensor.name))

    def walk(self, steps: Sequence[Step], scope: Scope, prefix: str, at: KeyPath) -> None:
        """Make the operators of the steps in order and enter their results in `scope`.

        Records a mistake and returns early beyond MAX_OPERATORS; a step with both or neither of `do` and `repeat` is
        recorded and skipped.
        """
        for index, step in enumerate(steps):
            if len(self.operators) > MAX_OPERATORS:
                self.record_mistake(
                    (*at, index), Mistake("the program has too many operators", need=f"<= {MAX_OPERATORS:,}")
                )
                return
            if (step.do is None) == (step.repeat is None):
                self.record_mistake((*at, index), Mistake("a step does one thing", need="either `do` or `repeat`"))
            elif step.repeat is not None:
                self.repeat(step.repeat, scope, prefix, (*at, index, "repeat"))
            else:
                self.operator(step, scope, prefix, (*at, index))

    def repeat(self, repeat: Repeat, outer: Scope, prefix: str, at: KeyPath) -> None:
        """Unroll a repeat: each iteration has a new scope, its own parameters, and the carried tensors of the one
        before. Afterwards `outer` has the carried tensors of the last iteration, under the names that the body gives
        them.

        Stops after an iteration if the repeat has added no operator yet or there are too many. Recorded as mistakes: a
        carried name that `outer` lacks before the first iteration, and one that the body does not make or `outer` has
        already.
        """
        carried: Scope = {name: outer.get(name) for name in repeat.carry}
        for name in carried.keys() - outer.keys():
            self.record_mistake(
                (*at, "carry", name), Mistake("nothing of this name is there before the first turn", got=name)
            )
        scope, before = Scope(), len(self.operators)
        for turn in range(repeat.times):
            here, scope = f"{prefix}{repeat.name}.{turn}.", outer | carried
            for name, declared in repeat.parameters.items():
                self.declare(scope, here, name, declared, (*at, "parameters", name), trained=True)
            self.walk(repeat.body, scope, here, (*at, "body"))
            for name, made in repeat.carry.items():
                if made not in scope or made in outer:
                    self.record_mistake((*at, "carry", name), Mistake("the body makes nothing of this name", got=made))
            carried = {name: scope.get(made) for name, made in repeat.carry.items()}
            if (
                not before < len(self.operators) <= MAX_OPERATORS
            ):  # nothing could be read; or too much, which is recorded
                break
        outer.update((made, scope.get(made)) for made in repeat.carry.values())

    def operator(self, step: Step, scope: Scope, prefix: str, at: KeyPath) -> None:
        """Make the operators of a statement and enter its targets in `scope`; the text is parsed only in the first
        iteration of a repeat.

        Mistakes are recorded. Targets are then entered all the same, as default tensors without operators, so that
        later statements can be checked; if the statement cannot be parsed, its names are hidden (None).
        """
        text = step.do or ""
        if at not in self.statements:
            self.statements[at] = text, None
            with self.recording_mistakes(at, text):
                self.statements[at] = text, self.parsed(text)
        call = self.statements[at][1]
        if call is None:
            scope.update((name, None) for name in names(text) if name not in scope)
            return
        tensors = [Tensor(prefix + target.name, target.dims) for target in call.targets]
        with self.recording_mistakes(at, text):
            made = self.built(call, scope, tuple(tensor.name for tensor in tensors), f"{prefix}{step.path}".rstrip("."))
            tensors = [made.pop(tensor.name) for tensor in tensors] if made else tensors
            for name in self.tensors.keys() & made.keys():
                raise Mistake("the name is taken", call.targets[0].at, got=name, need="a name for each tensor")
            self.tensors |= made
        for target, tensor in zip(call.targets, tensors, strict=True):
            self.enter(scope, target.name, tensor, at, text, target.at)

    def parsed(self, text: str) -> Statement:
        """Return a parsed statement, checked for its function, its dims and element types. Adds the sizes of number
        dims.

        Raise Mistake for the first fault.
        """
        call = checked(statement(text))
        self.literals(*(target.dims for target in call.targets), *(term.loops or () for term in call.terms))
        for target in call.targets:
            _width(target.element, target.at)
            check_dims(target.dims, self.sizes, target.at)
        return call

    def built(self, call: Statement, scope: Scope, own: tuple[str, ...], path: str) -> dict[str, Tensor]:
        """Append the operators of a statement and return the tensors that they make, by name. Empty, without operators,
        if an operand is hidden by an earlier mistake or has an undefined dim.

        Operands count as read in any case. Raise Mistake for an unknown tensor or operands that do not fit. own:
        program names of the targets.
        """
        for term in call.terms:
            if term.name not in scope:
                raise Mistake("there is no such tensor", term.at, got=term.name, hint=nearest(term.name, scope))
        given = [name for term in call.terms if (name := scope[term.name]) is not None]
        self.read.update(given)
        if len(given) < len(call.terms):
            return {}
        terms = zip(given, call.terms, strict=True)
        uses = tuple(used(self.tensors[name], term.loops, self.sizes, term.at) for name, term in terms)
        if not all(dim in self.sizes for use in uses for dim in use.loops):
            return {}  # recorded where the dim was first named
        site = Site(call, uses, own, path, self.sizes, ELEMENT_BYTES[self.file.element])
        self.operators += make(site)
        return site.made

    def unused(self, outputs: tuple[str, ...]) -> None:
        """Record a mistake for each declaration and statement whose tensors nothing reads, in any iteration of a
        repeat, and that are no output.
        """
        for at, made in self.made.items():
            if {*made}.isdisjoint((*self.read, *outputs)):
                text, call = self.statements.get(at, ("", None))
                if call is None:
                    self.record_mistake(at, Mistake("nothing reads it", hint="remove it, or name it where it belongs"))
                else:
                    target, what = call.targets[0], "what is made is neither read nor an output"
                    self.record_mistake(at, Mistake(what, target.at, got=target.name), text)


def _width(element: str, at: int) -> float | None:
    """Return the bytes per element; None if `element` is "". Raise Mistake for an unknown element type."""
    if element and element not in ELEMENT_BYTES:
        need = "one of " + ", ".join(ELEMENT_BYTES)
        raise Mistake("there is no such element", at, got=element, need=need, hint=nearest(element, ELEMENT_BYTES))
    return ELEMENT_BYTES.get(element)


def _problem(document: Document, lines: list[str], at: KeyPath, text: str, mistake: Mistake) -> Problem:
    """Return the problem at the exact character if the statement's text is on one line of the file unchanged, else at
    the position where its value begins.
    """
    problem = document.problem(mistake.what, at, got=mistake.got, need=mistake.need, hint=mistake.hint)
    if not text or problem.line is None or problem.column is None or problem.line > len(lines):
        return problem
    line = lines[problem.line - 1]
    begins = line.find(text, problem.column - 1)
    return problem if begins < 0 else replace(problem, column=begins + mistake.at + 1)

"""The state of a shell while a script is read, and how far the reading may go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import tree_sitter

from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import (
    Array,
    Field,
    Part,
    Parts,
    Value,
    fields,
    holds_options,
    hole,
    opens,
    options_of,
    text_of,
)
from symconfig.existing.launch.text import Place

STEPS = 150_000  # of 30 microseconds; a script of 300 lines takes a few thousand
CHARACTERS = 512  # of a value, kept in a step
DEPTH = 60  # of statements, expansions and calls in each other


class Exhausted(Exception):
    """The script asks for more than the reading may take. place: where."""

    place: Place | None = None


class Budget:
    """The steps and depth that are left to the reading."""

    def __init__(self) -> None:
        self._steps: float = STEPS
        self._depth = 0

    def spend(self, steps: float = 1) -> None:
        """Spend steps. Raises Exhausted."""
        self._steps -= steps
        if self._steps < 0:
            raise Exhausted("is too much work to follow")

    def kept(self, value: Value) -> Value:
        """Return the value; spend what keeping it takes. Raises Exhausted."""
        if isinstance(value, Array):
            self.spend(len(value.items) // 4)
        elif value:
            self.spend(len(value) + sum(len(part.text) for part in value) / CHARACTERS)
        return value

    def enter(self) -> None:
        """Go one level deeper. Raises Exhausted."""
        self._depth += 1
        if self._depth > DEPTH:
            self._depth -= 1
            raise Exhausted(f"is nested more than {DEPTH} deep")

    def leave(self) -> None:
        self._depth -= 1


@dataclass(frozen=True, slots=True)
class Function:
    """A function's body, in the code it is of."""

    source: Source
    body: tree_sitter.Node


@dataclass(frozen=True, slots=True)
class Cover:
    """Code that is not read: any variable that the script does not set after it may be of its setting.

    name: how a person would name it, "env.sh". where: "line 3". before: what variables had until then, as far as they
    had a text.
    """

    place: Place
    name: str
    where: str
    before: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.name} may set ({self.where})"


@dataclass
class State:
    """Variables, functions and arguments. A copy is independent: all that is in it is immutable.

    given: the variables that come from outside. taken: which of them were read, and the places of the arguments that
    were: of all copies together. covers: code before this that was not read. A function of the script is taken to stay
    as the script has it, and so is what a person gives.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, Function] = field(default_factory=dict)
    arguments: tuple[Field, ...] = ()
    folder: Parts | None = None
    files: dict[str, Parts] = field(default_factory=dict)
    given: Mapping[str, Parts] = field(default_factory=dict)
    taken: set[str | Place] = field(default_factory=set)
    covers: tuple[Cover, ...] = ()

    def copy(self) -> State:
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            functions=dict(self.functions),
            files=dict(self.files),
        )

    def read(self, name: str) -> Value:
        """Return what a variable has; None also where nothing sets it."""
        value = self.variables.get(name)
        if value is not None and value is self.given.get(name):
            self.taken.add(name)
        return value

    def argument(self, index: int) -> Field | None:
        """Return an argument, counted from 0."""
        if index >= len(self.arguments):
            return None
        self.taken.add(self.arguments[index].place)
        return self.arguments[index]

    def take(self, other: State) -> None:
        """Become the other state."""
        self.variables, self.exported, self.functions = other.variables, other.exported, other.functions
        self.arguments, self.folder, self.files = other.arguments, other.folder, other.files
        self.covers = other.covers

    def missing(self, name: str) -> str:
        """Say why a name that the script has not set has no known value."""
        if name.isdigit():
            return f"depends on the script's argument ${name}, which is not given"
        if not name.isidentifier() or name == "_":
            return f"depends on ${name}"
        if self.open(name):
            return may_set(name, self.covers)
        return f"depends on ${name}, which is not set in the script"

    def open(self, name: str) -> bool:
        """Tell whether code that was not read may have set a name that the script has not."""
        return bool(self.covers) and name not in self.variables and _is_settable(name)

    def cover(self, cover: Cover) -> None:
        """Forget what code that is not read may have set: every variable that the script set so far."""
        earlier = self.covers
        before = {name: text for name in self.variables if (text := self.text(name)) is not None}
        cover = replace(cover, before=before)
        self.covers = tuple(dict.fromkeys((*earlier, cover)))
        for name, value in self.variables.items():
            if not _is_settable(name):
                continue
            if name in self.given:
                self.variables[name] = self.given[name]
                continue
            whose = [each for each in earlier if str(each) in (_why(value) or "")]
            why = may_set(name, tuple(dict.fromkeys((*whose, cover))))
            if isinstance(value, Array):
                self.variables[name] = Array({0: Field((hole(why, cover.place, name, loose=True),), cover.place)})
            else:
                self.variables[name] = (hole(why, cover.place, name),)

    def items(self, name: str, place: Place) -> dict[int | str, Field]:
        """Return a variable's items; of a scalar, the one at 0, which is written at `place`."""
        value = self.read(name)
        if isinstance(value, Array):
            return dict(value.items)
        return {} if value is None else {0: Field(value, place)}

    def text(self, name: str) -> str | None:
        """Return a scalar's text where it is known."""
        value = self.variables.get(name)
        if value is None or isinstance(value, Array) or any(part.unknown for part in value):
            return None
        return text_of(value)


# What a shell and its scheduler keep for themselves: a file that is sourced has no reason to set them.
_OWN = frozenset(("IFS", "0", "BASH_SOURCE", "OPTARG", "OPTIND", "PWD", "OLDPWD", "RANDOM", "REPLY", "_"))


def _is_settable(name: str) -> bool:
    return name.isidentifier() and name not in _OWN and not name.startswith("SLURM_")


def may_set(name: str, covers: Sequence[Cover]) -> str:
    """Say why a variable has no known value after code that was not read."""
    return f"depends on ${name}, which {' or '.join(map(str, covers))}"


def _why(value: Value) -> str | None:
    """Say why a value is not known; None where it is."""
    if isinstance(value, Array):
        return next((item.unknown for item in value.items.values() if item.unknown), None)
    return next((part.unknown for part in value or () if part.unknown), None)


def merged(budget: Budget, states: Iterable[State], why: str, place: Place) -> State:
    """Merge several states of which nobody knows which one it is. What differs becomes a hole. Raises Exhausted."""
    alternatives = list(states)
    first = alternatives[0].copy()
    first.covers = tuple(dict.fromkeys(cover for state in alternatives for cover in state.covers))
    names = dict.fromkeys(name for state in alternatives for name in state.variables)
    budget.spend(len(names) * len(alternatives) / 8)
    for name in names:
        values = [_of(state, name, place) for state in alternatives]
        covered = [value for value in values if _covered(value, first.covers)]
        rest = [value for value in values if not _covered(value, first.covers)]
        if covered and all(same(rest[0], value) for value in rest[1:]):
            first.variables[name] = covered[0]
        elif not all(same(values[0], value) for value in values[1:]):
            first.variables[name] = _common(name, values, why, place)
        elif name not in first.variables:
            first.variables[name] = next(state.variables[name] for state in alternatives if name in state.variables)
    for state in alternatives[1:]:
        first.exported |= state.exported
        first.functions = {**state.functions, **first.functions}
        for name, content in state.files.items():
            known = first.files.get(name)
            first.files[name] = content if known is None or same(known, content) else (hole(why, place),)
        if [item.text for item in state.arguments] != [item.text for item in first.arguments]:
            first.arguments = (Field((hole(why, place, loose=True),), place),)
    return first


def _covered(value: Value | str, covers: Sequence[Cover]) -> TypeGuard[Value]:
    """Tell whether all of it is not known because code was not read."""
    if isinstance(value, str) or value is None:
        return False
    parts = [part for item in value.items.values() for part in item.parts] if isinstance(value, Array) else value
    why = parts[0].unknown if len(parts) == 1 else None
    return why is not None and any(str(cover) in why for cover in covers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A state that the shell may be in. output: what was printed on the way. maybe: why it may not come to that."""

    state: State
    output: Parts = ()
    maybe: str | None = None


def one_of(budget: Budget, outcomes: Sequence[Outcome], why: str, place: Place) -> Outcome:
    """Merge several outcomes of which nobody knows which one it is. Raises Exhausted."""
    if len(outcomes) == 1:
        return outcomes[0]
    outputs = [outcome.output for outcome in outcomes]
    alike = all(same(outputs[0], output) for output in outputs[1:])
    reasons = [outcome.maybe for outcome in outcomes]
    return Outcome(
        merged(budget, [outcome.state for outcome in outcomes], why, place),
        outputs[0] if alike else _common_parts(outputs, why, place),
        reasons[0] if all(reasons) else None,
    )


def _of(state: State, name: str, place: Place) -> Value | str:
    """Return a state's value; a name that it does not have stands for what the environment has: a text that no value
    equals.
    """
    if state.open(name):
        return (hole(state.missing(name), place, name),)
    return state.variables.get(name, f"${name}")


def same(left: Value | str, right: Value | str) -> bool:
    """Tell whether two values have the same text and the same holes."""
    if isinstance(left, Array) and isinstance(right, Array):
        return list(left.items) == list(right.items) and all(
            _meaning(left.items[key].parts) == _meaning(right.items[key].parts) for key in left.items
        )
    if isinstance(left, tuple) and isinstance(right, tuple):
        return left is right or _meaning(left) == _meaning(right)
    return left == right


def _meaning(parts: Parts) -> list[str]:
    texts = [""]
    for part in parts:
        if part.unknown:
            texts += [part.unknown, ""]
        else:
            texts[-1] += part.text
    return texts


def _common(name: str, values: list[Value | str], why: str, place: Place) -> Value:
    arrays = [value for value in values if isinstance(value, Array)]
    if len(arrays) == len(values) and not any(value.keyed for value in arrays):
        return _common_items([list(value.items.values()) for value in arrays], why, place)
    texts = [value for value in values if isinstance(value, tuple)]
    if len(texts) == len(values):
        return _common_parts(texts, why, place)
    if arrays:
        return Array({0: Field((hole(why, place, loose=True),), place)})
    # What the environment has instead is a value, unless the name says that it is options.
    brings = None if holds_options(name) else _brought(texts, place)
    return (hole(why, place, brings=brings),)


def _common_items(items: list[list[Field]], why: str, place: Place) -> Array:
    """Return what all begin with, and one item for all that may come after."""
    shortest = min(len(each) for each in items)
    count = next(
        (
            index
            for index in range(shortest)
            if any(_meaning(each[index].parts) != _meaning(items[0][index].parts) for each in items)
        ),
        shortest,
    )
    while count and any(len(each) > count and not opens(each[count].text) for each in items):
        count -= 1  # an option's name stays with its value
        if opens(items[0][count].text):
            break
    rest = next((each[count] for each in items if len(each) > count), None)
    there = rest.place if rest is not None else place
    brings = options_of(item for each in items for item in each[count:])
    unknown = Field((hole(why, there, loose=True, brings=brings),), there)
    return Array(dict(enumerate((*items[0][:count], unknown))))


def _common_parts(values: list[Parts], why: str, place: Place) -> Parts:
    """Return what all begin with, up to the last word that all have whole."""
    count = 0
    while all(len(value) > count for value in values) and all(
        _meaning((value[count],)) == _meaning((values[0][count],)) for value in values
    ):
        count += 1
    head = list(values[0][:count])
    rests = [value[count:] for value in values]
    whole = all(not rest or rest[0].text[:1].isspace() for rest in rests)
    while head and not whole and not head[-1].unknown:
        last = head.pop()
        kept = len(last.text.rstrip()) if last.text[-1:].isspace() else max(last.text.rfind(" "), 0)
        if kept:
            head.append(last.cut(0, kept))
            whole = True
    places = [part.written or part.place for rest in rests for part in rest]
    there = next((each for each in places if each is not None), place)
    return (*head, *((Part(" "),) if head else ()), hole(why, there, brings=_brought(rests, place)))


def _brought(values: Iterable[Parts], place: Place) -> tuple[str, ...] | None:
    """Return the options among the words of values; None where there may be any."""
    loose = ([part if part.unknown else replace(part, loose=True) for part in value] for value in values)
    return options_of(Field(words, place) for value in loose for words in fields(value, " \t\n"))


def visible(state: State) -> State:
    """Return what a program that is started sees: exported variables and files."""
    return replace(
        state,
        variables={name: state.variables[name] for name in state.exported if name in state.variables},
        exported=set(state.exported),
        functions={},
        arguments=(),
        files=dict(state.files),
    )


def environment(state: State) -> Mapping[str, Parts]:
    """Return the exported scalars."""
    exported = {}
    for name in sorted(state.exported):
        value = state.variables.get(name)
        if isinstance(value, tuple):
            exported[name] = value
    return exported

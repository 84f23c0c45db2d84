"""What a person sets of a launcher, with its name: `--launcher pytorchjob:image=registry/train:1,namespace=team`.

The text as a whole is the launcher that was asked for, so it is all that has to be kept to write the files again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symconfig.errors import InputError, Problem, among

ENVIRONMENT = "env."  # env.NAME=VALUE: a variable that launch.sh then finds on every node, with any launcher
# What a launcher tells launch.sh of the nodes and of the process, or launch.sh the processes: no setting may differ.
LAUNCHER_VARIABLES = frozenset(
    {"NNODES", "GPUS_PER_NODE", "NODE_RANK", "MASTER_ADDR", "PER_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETTING = re.compile(r"[a-z][a-z0-9-]*|env\.[^=,]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """A launcher's setting. default: None: it is left out of the files."""

    name: str
    does: str
    default: str | None = None
    pattern: str = r"[A-Za-z0-9_.,:@/+-]+"
    need: str = "letters, digits and any of _ . , : @ / + -"


LABEL = {"pattern": r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?", "need": "at most 53 of a-z, 0-9 and -, a letter first"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The values of one launcher's settings, and variables for launch.sh."""

    values: Mapping[str, str | None]
    environment: Mapping[str, str]


def split(launcher: str) -> tuple[str, dict[str, str]]:
    """Return the name of a launcher and its settings, of a text like slurm:partition=big,time=2:00:00.

    A comma belongs to the value unless `name=` follows. Raises InputError for a part without `=` at first and for a
    setting given twice.
    """
    name, _, rest = launcher.partition(":")
    settings: dict[str, str] = {}
    last = None
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if equals and _SETTING.fullmatch(key):
            if key in settings:
                raise InputError("is set twice", field=f"{name}:{key}", got=f"{settings[key]!r} and {value!r}")
            settings[key] = value
            last = key
        elif last is None:
            raise InputError("is no setting", field=f"launcher {name}", got=repr(part), need="name=value")
        else:
            settings[last] += f",{part}"
    return name, settings


def choose(settings: Sequence[Setting], name: str, given: Mapping[str, str]) -> Chosen:
    """Return the launcher's settings, defaults included, and the variables for launch.sh (`env.NAME`).

    Raises InputError with every setting that is unknown or has a wrong value, and every variable that the launcher
    itself sets.
    """
    known = {setting.name: setting for setting in settings}
    problems = []
    for key, value in given.items():
        field = f"{name}:{key}"
        if key.startswith(ENVIRONMENT):
            variable = key.removeprefix(ENVIRONMENT)
            if not _VARIABLE.fullmatch(variable):
                problems.append(Problem("is no name of a variable", field=field, need="env.NAME"))
            elif variable in LAUNCHER_VARIABLES:
                problems.append(
                    Problem(
                        "is what the launcher itself tells launch.sh, by the plan and the node",
                        field=field,
                        got=repr(value),
                        need="another variable",
                    )
                )
            elif not value.isprintable():
                problems.append(Problem("wrong value", field=field, got=repr(value), need="one printable line"))
        elif key not in known:
            problems.append(
                Problem("is not a setting of this launcher", field=field, **among(key, (*known, f"{ENVIRONMENT}NAME")))
            )
        elif not re.fullmatch(known[key].pattern, value):
            problems.append(Problem("wrong value", field=field, got=repr(value), need=known[key].need))
    if problems:
        raise InputError(problems)
    environment = {key.removeprefix(ENVIRONMENT): value for key, value in given.items() if key.startswith(ENVIRONMENT)}
    return Chosen({key: given.get(key, setting.default) for key, setting in known.items()}, environment)

"""Files of a target and of its launchers in one folder, where each has a place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.render.files import File
from symconfig.render.target import Target

LAUNCH = "launch.sh"  # what a target writes for its launchers to start


def startable(target: str, own: Sequence[File], launchers: Sequence[Target]) -> None:
    """Raise InfeasibleError where launchers are asked for, and the target writes nothing that they could start."""
    if launchers and not any(item.path == LAUNCH for item in own):
        raise InfeasibleError(
            f"the target {target!r} writes no {LAUNCH}, which is what launchers start",
            field="launcher",
            got=", ".join(source.name for source in launchers),
            hint=f"no launcher, or a {LAUNCH}.j2 among its templates",
        )


def together(made: Sequence[tuple[Target, Sequence[File]]]) -> list[File]:
    """Return all of them. Raises InputError with every file that would be lost under another one, or has to be a
    folder.
    """
    whose: dict[str, Target] = {}
    problems = []
    for source, files in made:
        for item in files:
            if (other := whose.setdefault(item.path, source)) is not source:
                problems.append(
                    Problem(
                        f"{item.path} is written by {other.name} and by {source.name}",
                        file=_place(item.path, other, source),
                        hint="another name for the template, or another --launcher",
                    )
                )
    if problems := [*problems, *_within_files(whose)]:
        raise InputError(problems)
    return [item for _, files in made for item in files]


def _within_files(whose: Mapping[str, Target]) -> Iterator[Problem]:
    """Yield a problem for each path that leads through another file."""
    for path, source in whose.items():
        for parent in PurePosixPath(path).parents:
            if (other := whose.get(str(parent))) is not None:
                yield Problem(
                    f"needs a folder where {other.name} writes the file {parent}",
                    file=_place(path, source) or path,
                    hint="another name for the template",
                )


def _place(path: str, *sources: Target) -> str | None:
    """Return the template that makes the file: a user's own rather than one of symconfig's."""
    ranked = sorted(sources, key=lambda source: not source.foreign)
    return next((place for source in ranked if (place := source.template_of(path)) is not None), None)

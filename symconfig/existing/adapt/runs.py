"""A script that starts its program several times, or other programs beside it: what of that a plan can be for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from symconfig.existing.adapt.draft import Progress
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.launch.text import Edit
from symconfig.formats.megatron_run import DECIDED
from symconfig.frameworks.megatron.flags import FlagTable

MOST_PLACES = 6  # that a sentence names


def apart(reading: Reading, table: FlagTable) -> bool:
    """Tell whether the runs of the program say different things of what a plan decides."""
    names = {name for name, flag in table.flags.items() if flag.dest in DECIDED}
    return several(reading, names)


def several(reading: Reading, names: Collection[str]) -> bool:
    """Tell whether the runs give different values to options of these names, or other DeepSpeed configurations."""
    mine = _values(reading, names)
    return any(_values(run, names) != mine for run in reading.runs)


def _values(reading: Reading, names: Collection[str]) -> object:
    values = {
        setting.name: [(word.text, word.unknown) for word in setting.values]
        for setting in reading.settings
        if setting.name in names
    }
    return values, reading.deepspeed.data if reading.deepspeed is not None else None


def why_apart(reading: Reading) -> str:
    """Return words that follow "because"."""
    return (
        f"{_program(reading)} is started {len(reading.runs) + 1} times with different values "
        f"({_places(reading)}), and the plan is for one of them"
    )


def _program(reading: Reading) -> str:
    return Path(reading.program.text).name if reading.program is not None else "the program"


def _places(reading: Reading) -> str:
    """Return where the runs stand: in a loop or a function all of them in one line."""
    places = dict.fromkeys(str(run.program.place) for run in (reading, *reading.runs) if run.program is not None)
    shown = list(places)[:MOST_PLACES]
    return ", ".join(shown) + (", ..." if len(places) > len(shown) else "")


def noted(progress: Progress) -> Progress:
    """Note what else the script starts, where anything of it was changed."""
    if not progress.changes:
        return progress
    reading = progress.draft.reading
    if reading.runs:
        progress = progress.noted(
            f"{_program(reading)} is started {len(reading.runs) + 1} times ({_places(reading)}); "
            "all of them say the same of what the plan decides, and are changed alike."
        )
    lines = {run.program.place.line for run in (reading, *reading.runs) if run.program is not None}
    for item in reading.unread:
        if item.why.startswith("is another program") and not (reading.runs and item.place.line in lines):
            progress = progress.noted(f"{item.place}: {item.what} {item.why}; it is left as it is.")
    for file in progress.draft.files:
        if file != reading.file:
            progress = progress.noted(
                f"{file} is changed as well: whatever else sources or names it gets the plan's values, too."
            )
    return progress


def alike(reading: Reading, setting: Setting) -> tuple[Setting, ...]:
    """Return the option, and the same one of the other runs."""
    words = setting.texts
    same = (
        next(
            (each for each in reversed(run.settings) if each.name == setting.name and each.texts == words),
            None,
        )
        for run in reading.runs
    )
    return setting, *(each for each in same if each is not None)


def together(ways: Sequence[Iterator[tuple[Edit, ...]]]) -> Iterator[tuple[Edit, ...]]:
    """Yield ways to change several runs at once, the same way in each. What is common to them is edited once."""
    for each in zip(*ways, strict=False):
        yield tuple(dict.fromkeys(edit for edits in each for edit in edits))

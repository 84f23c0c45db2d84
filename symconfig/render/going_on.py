"""How a person starts a run that goes on from a checkpoint, with options of the framework's own program.

What a checkpoint and a schedule ask for are options of the framework's own programs (Megatron-LM's pretrain_gpt.py,
train.py). A target's module takes those, or has words of its own for them: its `goes_on`. Without one, how it goes on
is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from symconfig.plans.plan import Plan

GoesOn = Callable[[Plan, Sequence[str]], str | None]


def launched(plan: Plan, words: Sequence[str]) -> str:
    """Say the command of a target whose launch.sh passes them to the framework's own program."""
    return f"bash launch.sh {' '.join(words)}"


def translated(known: Mapping[str, str]) -> GoesOn:
    """Make the `goes_on` of a program by a table of what each option is there; "": nothing."""

    def goes_on(plan: Plan, words: Sequence[str]) -> str | None:
        given = options(words)
        if not given.keys() <= known.keys():
            return None
        return " ".join(("bash launch.sh", *filter(None, (known[name].format(given[name]) for name in given))))

    return goes_on


def options(words: Sequence[str]) -> dict[str, str]:
    """Return the options by name; a switch has the value ""."""
    values: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            values[name] = value
        else:
            values[name] = word
    return values

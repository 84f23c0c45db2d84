"""How a person starts a run that resumes from a checkpoint, and how one is told to save any.

What a checkpoint and a schedule ask for are options of the framework's own programs (Megatron-LM's pretrain_gpt.py,
train.py). A target takes those, or has words of its own for them: its `resume_command`. Without one, how it resumes is
not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from symconfig.plans.plan import Plan

ResumeCommand = Callable[[Plan, Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Saving:
    """How a run is told to save checkpoints. word: the text that a command with saving contains. command: an example of
    one.
    """

    word: str
    command: str


def launched(plan: Plan, words: Sequence[str]) -> str:
    """Return the command that resumes a run: launch.sh with the framework's own options."""
    return f"bash launch.sh {' '.join(words)}"


def translated(known: Mapping[str, str]) -> ResumeCommand:
    """Return a `resume_command` that translates Megatron-LM's options by a table; an option mapped to "" is dropped.

    It returns None if the table lacks any of the options.
    """

    def command(plan: Plan, words: Sequence[str]) -> str | None:
        given: dict[str, str] = {}  # a switch has the value ""
        name = ""
        for word in words:
            if word.startswith("--"):
                name, _, value = word.partition("=")
                given[name] = value
            else:
                given[name] = word
        if not given.keys() <= known.keys():
            return None
        return " ".join(("bash launch.sh", *filter(None, (known[name].format(given[name]) for name in given))))

    return command

"""Options as somebody writes them, as a namespace of one version."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.namespace import Namespace
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.render.megatron import moe_args
from symconfig.render.megatron_args import Arguments
from symconfig.render.megatron_model import model_args
from tests.sample_plans import sample_plan

NEWEST = "core_v0.19.0"


def names_of(words: str | Sequence[str], version: str = NEWEST) -> Namespace:
    """Of words, or of a line without quotes around spaces; every option stands where the line has it."""
    items = shlex.split(words) if isinstance(words, str) else list(words)
    text, at = Text("train.sh", " ".join(items).encode()), 0
    found: list[tuple[str, list[Word], int]] = []
    for item in items:
        place = text.place(at, at + len(item.encode()))
        at = place.end + 1
        if item.startswith("--"):
            found.append((item, [], place.start))
        else:
            found[-1][1].append(Word.of(item, place, literal=True))
    ends = [start - 1 for _, _, start in found[1:]] + [at - 1]
    settings = [
        Setting(name, name, tuple(values), text.place(start, end))
        for (name, values, start), end in zip(found, ends, strict=True)
    ]
    return Namespace(settings, flags(resolve(version)))


def rendered(model: ModelDescriptor, version: str = NEWEST, seq_length: int = 2048, tp: int = 4) -> list[str] | None:
    """A model's options, and those of mock data; None where the version cannot express it."""
    out = Arguments(flags(version))
    model_args(out, model, seq_length, tp)
    moe_args(out, replace(sample_plan("mixtral-8x7b", "h100"), model=model))
    if out.problems:
        return None
    words = [word for group in out.groups() for option in group.options for word in option]
    return [*words, "--tokenizer-type", "NullTokenizer"]

"""The optimizer of a DeepSpeed launch: of its JSON, or of Trainer's arguments."""

from __future__ import annotations

import pytest

from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import stepped


@pytest.mark.parametrize(
    ("kind", "optim", "found", "taken"),
    [
        (None, None, "adam", False),
        ("AdamW", "adafactor", "adam", False),  # DeepSpeed's own goes first
        (None, "adamw_bnb_8bit", "adam8bit", False),
        (None, "paged_adamw_8bit", "adam8bit", False),
        (None, "adafactor", "adafactor", False),
        (None, "adamw_torch_fused", "adam", False),
        (None, "lion_8bit", "adam", True),
        ("Lamb", None, "adam", True),
        ("SGD", None, "sgd", False),
    ],
)
def test_what_steps_the_weights(kind: str | None, optim: str | None, found: str, taken: bool) -> None:
    config = {} if kind is None else {"optimizer": {"type": kind}}
    words = [] if optim is None else ["--optim", optim]
    optimizer, assumed = stepped(config, Arguments(settings(words, "launch.sh")))
    assert (optimizer.name, bool(assumed)) == (found, taken)

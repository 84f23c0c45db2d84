"""The reward of a response under GRPO: the share of its words whose number is even."""

from __future__ import annotations

from typing import Any

MOST = 16  # words of a response


def even(completions: list[str], **more: Any) -> list[float]:
    return [sum(word[:1] == "w" and not int(word[1:]) % 2 for word in text.split()) / MOST for text in completions]

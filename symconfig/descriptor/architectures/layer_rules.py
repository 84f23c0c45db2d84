"""The type of each layer of a model, where its file does not list them: as the classes of transformers fill them in."""

from __future__ import annotations

from collections.abc import Callable

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Values


def _types(sliding: list[bool]) -> list[str]:
    return [SLIDING if one else FULL for one in sliding]


def all_sliding(values: Values, layers: int) -> list[str]:
    """Give every layer the window, where there is one."""
    return _types([True] * layers)


def qwen2(values: Values, layers: int) -> list[str]:
    """Give layers from max_window_layers on the window, with use_sliding_window."""
    return _types([bool(values["use_sliding_window"]) and i >= values["max_window_layers"] for i in range(layers)])


def qwen2_moe(values: Values, layers: int) -> list[str]:
    """Give every other layer before max_window_layers the window, with use_sliding_window."""
    on = bool(values["use_sliding_window"])
    return _types([on and i % 2 == 0 and i < values["max_window_layers"] for i in range(layers)])


def qwen3_moe(values: Values, layers: int) -> list[str]:
    """Give every layer the window, with use_sliding_window."""
    return _types([bool(values["use_sliding_window"])] * layers)


def alternate(values: Values, layers: int) -> list[str]:
    """Give every other layer the window, the first one first."""
    return every(2)(values, layers)


def every(n: int, key: str = "sliding_window_pattern") -> Callable[[Values, int], list[str]]:
    """Return the rule of all but every n-th layer; by a key of the file, where it has one."""

    def rule(values: Values, layers: int) -> list[str]:
        step = values.get(key) or n
        return _types([(i + 1) % step != 0 for i in range(layers)])

    return rule


def but_first_of(n: int) -> Callable[[Values, int], list[str]]:
    """Return the rule of all but the first of every n layers."""
    return lambda values, layers: _types([i % n != 0 for i in range(layers)])

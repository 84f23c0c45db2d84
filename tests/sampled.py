"""Cases that each take seconds and hold one promise: an ordinary run takes some of them, `python -m tools verify cases`
all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

EVERY_CASE = "SYMCONFIG_EVERY_CASE"


def sampled(cases: Iterable[Any], one_in: int) -> list[Any]:
    """Return each `one_in`-th case, from the first on; all where the environment has EVERY_CASE."""
    return list(cases)[:: 1 if os.environ.get(EVERY_CASE) else one_in]

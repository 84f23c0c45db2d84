"""Arrays as text inside a page: little-endian, deflated, in base 64."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Width = Literal["u1", "i2", "i4", "f4"]


def packed(values: NDArray[Any], width: Width) -> dict[str, Any]:
    """Return an array as the page reads it: `{"width", "shape", "data"}`. Equal arrays give equal text.

    Raises OverflowError for whole numbers that the width does not hold.
    """
    if width != "f4" and values.size:
        info = np.iinfo(np.dtype(width))
        if values.min() < info.min or values.max() > info.max:
            raise OverflowError(f"{values.max()} does not fit into {width}")
    data = np.ascontiguousarray(values, dtype=f"<{width}").tobytes()
    return {"width": width, "shape": list(values.shape), "data": b64encode(zlib.compress(data, 9)).decode()}

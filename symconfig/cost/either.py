"""The larger, the smaller and the comparison of two numbers, for floats as for the terms of a tape.

NumPy's own, on arrays of objects, would keep only the argument that is the larger one now and lose the formula. The
search calls these millions of times: the question whether there are terms is asked in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symconfig.cost.tape import Term, above_of_terms, maximum_of_terms, minimum_of_terms


def has_terms(number: Any) -> bool:
    """Return whether a number or an array may hold terms."""
    return number.dtype.hasobject if isinstance(number, np.ndarray) else isinstance(number, Term)


def _of_both(of_terms: Callable[[Any, Any], Any], of_numbers: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function of two numbers or arrays, element by element, by what they hold."""

    def apply(a: Any, b: Any) -> Any:
        if a.__class__ is Term or b.__class__ is Term:
            return of_terms(a, b)
        if (a.__class__ is np.ndarray and a.dtype.hasobject) or (b.__class__ is np.ndarray and b.dtype.hasobject):
            return of_terms(a, b)
        return of_numbers(a, b)

    return apply


maximum = _of_both(maximum_of_terms, np.maximum)
minimum = _of_both(minimum_of_terms, np.minimum)
greater = _of_both(above_of_terms, lambda a, b: np.asarray(a > b, dtype=np.float64))  # 1.0 where the first is larger


def largest(array: Any) -> Any:
    """Return the largest along the first axis."""
    return maximum_of_terms.reduce(array, axis=0) if has_terms(array) else array.max(axis=0)

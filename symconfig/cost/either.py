"""The larger, the smaller and the comparison of two numbers, for floats as for the terms of a tape.

NumPy's own, on arrays of objects, would keep only the argument that is the larger one now and lose the formula. The
search calls these millions of times: the question whether there are terms is asked in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symconfig.cost.tape import Term, above_of_terms, maximum_of_terms, minimum_of_terms


def has_terms(number: Any) -> bool:
    """Return whether a number or an array may hold terms."""
    return number.dtype.hasobject if isinstance(number, np.ndarray) else isinstance(number, Term)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two, element by element."""
    if a.__class__ is Term or b.__class__ is Term:
        return maximum_of_terms(a, b)
    if (a.__class__ is np.ndarray and a.dtype.hasobject) or (b.__class__ is np.ndarray and b.dtype.hasobject):
        return maximum_of_terms(a, b)
    return np.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two, element by element."""
    if a.__class__ is Term or b.__class__ is Term:
        return minimum_of_terms(a, b)
    if (a.__class__ is np.ndarray and a.dtype.hasobject) or (b.__class__ is np.ndarray and b.dtype.hasobject):
        return minimum_of_terms(a, b)
    return np.minimum(a, b)


def greater(a: Any, b: Any) -> Any:
    """Return 1.0 where the first is larger, else 0.0."""
    if a.__class__ is Term or b.__class__ is Term:
        return above_of_terms(a, b)
    if (a.__class__ is np.ndarray and a.dtype.hasobject) or (b.__class__ is np.ndarray and b.dtype.hasobject):
        return above_of_terms(a, b)
    return np.asarray(a > b, dtype=np.float64)


def largest(array: Any) -> Any:
    """Return the largest along the first axis."""
    return maximum_of_terms.reduce(array, axis=0) if has_terms(array) else array.max(axis=0)

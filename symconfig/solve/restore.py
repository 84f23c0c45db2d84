"""From a plan's candidate back to the point of the lattice that it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from symconfig.errors import InputError
from symconfig.frameworks.extras import in_effect
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.extras import switched_on
from symconfig.solve.pins import parse
from symconfig.solve.predict import at_point
from symconfig.solve.prospect import Prospect
from symconfig.solve.run import request


@contextmanager
def retraced(file: str) -> Iterator[None]:
    """Turn errors in the `with` block into an InputError that the plan of this file cannot be computed again.

    Those are LookupError, ValueError, ArithmeticError and AttributeError; others, such as InputError, pass through.
    """
    try:
        yield
    except (LookupError, ValueError, ArithmeticError, AttributeError) as error:
        what = f"holds a plan that this version cannot retrace ({type(error).__name__}: {error})"
        raise InputError(what, file=file, hint="plan again with this version of symconfig") from None


def restore(plan: Plan, candidate: Candidate) -> Prospect:
    """Return the candidate of a plan as the search had it, with its predicted step and bytes, the step also as score.

    The framework is that of the candidate's backend, with the candidate's options. Raises InputError if pins or degrees
    are not possible any more.
    """
    predicted = candidate.predicted
    job = plan.job.model_copy(update={"backend": candidate.target.backend})  # `render --target` may have chosen another
    base = request(plan.model, plan.cluster, job, candidate.configuration.precision, parse(job.pins))
    base = switched_on(base, in_effect(candidate.configuration), plan.cluster.gpu.architecture)
    point = at_point(base, plan.cluster, candidate.configuration)
    return replace(point, step_s=predicted.step_s, device_bytes=predicted.device_bytes, score=predicted.step_s)

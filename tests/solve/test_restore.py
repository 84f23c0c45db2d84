"""A plan's file is computed again, or says in a sentence that it cannot be."""

from __future__ import annotations

import pytest

from symconfig.errors import InputError
from symconfig.solve.restore import retraced


@pytest.mark.parametrize("error", [KeyError("tp"), IndexError(), ValueError(), ZeroDivisionError(), AttributeError()])
def test_what_an_edited_plan_makes_fail_is_said_of_the_plan(error: Exception) -> None:
    with pytest.raises(InputError, match="cannot retrace") as raised, retraced("plan.json"):
        raise error
    assert "plan.json" in str(raised.value)


def test_other_errors_are_not_the_plans() -> None:
    with pytest.raises(RuntimeError), retraced("plan.json"):
        raise RuntimeError

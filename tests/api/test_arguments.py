"""Arguments of Python functions as a job's file has them."""

from __future__ import annotations

from pathlib import Path

from symconfig.api import planning as api
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster


def test_an_argument_is_what_a_job_says() -> None:
    given = (load_cluster("h100"), Limits(memory_margin=0.1), Path("x/y"), {"a": 1}, 8)
    assert [api.as_field(each) for each in given] == ["h100", {"memory_margin": 0.1}, "x/y", {"a": 1}, 8]

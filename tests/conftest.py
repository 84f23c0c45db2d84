"""In what order files are run, so that two processes that take whole files end together; what a busy machine may do."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes by the clock says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=2000)

# Parallel workers are told 80, and output would be broken into lines as wide as that.
os.environ.pop("COLUMNS", None)
# A shell has what it starts in the background ignore interrupts, and programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
# Those that take most, longest first: begun last, each would be waited for. All others follow as they are collected.
LONGEST = (
    "render/test_deepspeed_train.py",
    "test_spread.py",
    "solve/test_brute_force.py",
    "measured/test_accuracy.py",
    "test_packaging.py",
    "verify/states/test_megatron_states.py",
    "verify/test_megatron_rank.py",
    "verify/test_megatron_session.py",
    "verify/test_deepspeed.py",
    "runs/checkpoint/test_real_megatron.py",
    "solve/test_counters.py",
    "solve/stages/test_brute_force.py",
    "runs/replan/test_replan.py",
    "solve/stages/test_large.py",
    "solve/partition/test_cheapest.py",
    "render/test_trainer_formats.py",
    "measured/gpu/test_run.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of LONGEST first. Tests of a file stay together and in order: sorting keeps what is equal as it was."""
    place = {HERE / name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """What is imported by now, frameworks among it, stays to the end: no search for garbage need look through it."""
    gc.collect()
    gc.freeze()

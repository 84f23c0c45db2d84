"""In what order files are run, so that two processes that take whole files end together; what a busy machine may do."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.warm import warm

# How long an example takes by the clock says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=2000)

# Parallel workers are told 80, and output would be broken into lines as wide as that.
os.environ.pop("COLUMNS", None)
# A shell has what it starts in the background ignore interrupts, and programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As symconfig's commands do (cli/main.py): looking for garbage took a third of the time in which tests are collected.
gc.set_threshold(100_000)

HERE = Path(__file__).parent
# Those that take most, longest first by seconds of a processor: begun last, each would be waited for. All others follow
# as they are collected.
LONGEST = (
    "render/test_deepspeed_train.py",
    "test_spread.py",
    "solve/partition/test_executed.py",
    "solve/partition/test_quality.py",
    "report/page/test_browser.py",
    "runs/rl/test_step.py",
    "verify/test_megatron_rank.py",
    "solve/choice/test_monotone.py",
    "verify/states/test_predicted_states.py",
    "verify/states/test_transformers.py",
    "solve/test_brute_force.py",
    "verify/test_deepspeed_build.py",
    "cli/test_width.py",
    "cli/test_process.py",
    "verify/test_stages.py",
    "existing/rules/test_megatron_refuses.py",
    "existing/audit/test_round_trip.py",
    "cli/test_help.py",
    "measured/test_calibrate.py",
    "test_jobs_pages.py",
    "measured/test_accuracy.py",
    "serve/test_browser.py",
    "verify/states/test_megatron_states.py",
    "runs/checkpoint/test_real_megatron.py",
    "descriptor/test_import_against_transformers.py",
    "solve/test_counters.py",
    "measured/gpu/test_run.py",
    "solve/test_infeasible.py",
    "render/test_target_pins.py",
    "test_packaging.py",
    "verify/test_megatron_session.py",
    "render/test_trainer_formats.py",
    "solve/partition/test_cheapest.py",
    "verify/test_deepspeed.py",
)  # fmt: skip


@pytest.fixture(scope="session")
def _warm_symconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = {"PYTHONPATH": str(HERE.parent), "OPENBLAS_NUM_THREADS": "1"}
    with warm(tmp_path_factory.mktemp("warm"), "tests.warm_commands", environment=path) as python:
        yield python


@pytest.fixture
def warm_symconfig(_warm_symconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork processes of this Python from one that has run symconfig: for tests of what commands say, not of a start."""
    monkeypatch.setattr(sys, "executable", str(_warm_symconfig))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of LONGEST first. Tests of a file stay together and in order: sorting keeps what is equal as it was."""
    if gone := [name for name in LONGEST if not (HERE / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py: LONGEST names what is no file: {', '.join(gone)}")
    place = {HERE / name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """What is imported by now, frameworks among it, stays to the end: no search for garbage need look through it."""
    gc.collect()
    gc.freeze()

"""In what order files are run, so that two processes that take whole files end together; what a busy machine may do."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cli.support import asked as asked  # fixtures of every test of a command
from tests.cli.support import run as run
from tests.sampled import EVERY_CASE
from tests.warm import warm

# How long an example takes by the clock says how busy the machine is.
EXAMPLES = 100 if os.environ.get(EVERY_CASE) else 50
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES
)
settings.load_profile("any machine")
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=2000)

# Ids of models are looked for in caches alone; tests/descriptor/test_hub.py has a hub of its own.
os.environ["HF_HUB_OFFLINE"] = "1"
# Threads of OpenMP wait for one another by spinning: tiny tensors took four times the CPU time with one for each core.
os.environ["OMP_NUM_THREADS"] = "1"
# Parallel workers are told 80, and output would be broken into lines as wide as that.
os.environ.pop("COLUMNS", None)
# A shell has what it starts in the background ignore interrupts, and programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As symconfig's commands do (cli/main.py): looking for garbage took a third of the time in which tests are collected.
gc.set_threshold(100_000)

HERE = Path(__file__).parent
# Those that take most, longest first by the seconds of a whole run: begun last, each would be waited for. All others
# follow as they are collected.
LONGEST = (
    "render/test_deepspeed_train.py", "test_pages.py", "solve/test_pins_hold.py", "solve/test_choice.py",
    "verify/test_megatron_rank.py", "graph/test_families.py", "solve/test_brute_force.py", "verify/test_stages.py",
    "solve/partition/test_executed.py", "existing/rules/test_megatron_refuses.py", "measured/test_accuracy.py",
    "test_spread.py", "verify/test_megatron_sameness.py", "measured/test_calibrate.py", "cli/test_process.py",
    "runs/rl/test_step.py", "solve/partition/test_quality.py", "cli/test_width.py", "descriptor/test_load.py",
    "graph/program/test_fold.py", "runs/rl/test_rewards.py", "existing/audit/test_rl.py",
    "existing/audit/test_tuners.py", "render/test_renamed.py", "verify/test_megatron_trace.py",
    "verify/test_deepspeed_build.py", "serve/test_serve.py", "existing/audit/test_steps.py", "solve/test_monotone.py",
    "existing/audit/test_round_trip.py", "solve/test_counters.py", "render/test_target_pins.py",
    "existing/audit/test_openrlhf.py", "graph/program/test_of_model.py", "verify/test_megatron_mixers.py",
    "existing/recover/test_deepspeed.py", "runs/rl/test_shards.py", "solve/test_pins.py",
    "runs/rl/test_tuned.py", "descriptor/test_parameter_counts.py", "existing/adapt/test_scripts.py",
    "verify/test_logits.py", "verify/test_altered.py", "cli/test_help.py",
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


@pytest.fixture(scope="session")
def _megatron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = {"PYTHONPATH": str(HERE.parent), "CUDA_VISIBLE_DEVICES": ""}
    with warm(tmp_path_factory.mktemp("megatron"), "tests.warm_megatron", environment=path) as python:
        yield python


@pytest.fixture(scope="module")
def warm_megatron(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork runners of Megatron, if it is here, from one that has imported it: for what it finds, not for its start."""
    from symconfig.verify import megatron_session, megatron_source

    with pytest.MonkeyPatch.context() as monkeypatch:
        if importlib.util.find_spec("torch") is not None and megatron_source.find() is not None:
            python = str(request.getfixturevalue("_megatron"))
            monkeypatch.setattr(megatron_session, "COMMAND", (python, *megatron_session.COMMAND[1:]))
        yield


@pytest.fixture(scope="session")
def _deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from symconfig.verify.runners import deepspeed_runner

    here = {"PYTHONPATH": str(HERE.parent), "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    modules = (name for name in deepspeed_runner.IMPORTED_ONCE["build"] if importlib.util.find_spec(name.split(".")[0]))
    with warm(tmp_path_factory.mktemp("deepspeed"), *modules, environment=here) as python:
        yield python


@pytest.fixture
def warm_deepspeed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork runners of DeepSpeed, if it is here, from one that has imported it: for what it finds, not for its start."""
    if importlib.util.find_spec("deepspeed") is not None and importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr(sys, "executable", str(request.getfixturevalue("_deepspeed")))


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

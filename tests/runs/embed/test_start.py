"""What a training script runs on is held against its plan: every mismatch in one sentence each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import symconfig
import symconfig.deepspeed
import symconfig.megatron
from symconfig.api.planning import PlanResult
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.known import ENTRIES
from symconfig.plans.file import loaded
from symconfig.runs import start
from symconfig.runs.start import RANK, Gpu, MismatchError, Surroundings, look, mismatches, started
from tests.sample_plans import sample_plan

ALL_NAMES = (*start.WORLD_SIZE, *start.LOCAL_WORLD_SIZE, *RANK, *start.LOCAL_RANK)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no torch, no framework."""
    for name in ALL_NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    monkeypatch.setattr(start, "installed_versions", dict)


def has_versions(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str]) -> None:
    monkeypatch.setattr(start, "installed_versions", lambda: dict(versions))


def torch_with(product: str, memory: int, units: int) -> Any:
    properties = SimpleNamespace(name=product, total_memory=memory, multi_processor_count=units)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 8, get_device_properties=lambda index: properties
        )
    )


def fields(error: pytest.ExceptionInfo[MismatchError]) -> list[str | None]:
    return [problem.field for problem in error.value.problems]


def test_a_process_as_planned_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = sample_plan()
    monkeypatch.setenv("WORLD_SIZE", "64")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    gpu = plan.cluster.gpu
    monkeypatch.setitem(sys.modules, "torch", torch_with(gpu.product, int(gpu.memory_bytes.value), gpu.compute_units))
    has_versions(monkeypatch, {"megatron": "0.19.2"})
    assert started(plan, "megatron") is plan
    assert not caplog.records


def test_all_mismatches_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "32")
    monkeypatch.setitem(sys.modules, "torch", torch_with("NVIDIA A100-SXM4-40GB", 42294690447, 108))
    has_versions(monkeypatch, {"megatron": "0.14.0"})
    with pytest.raises(MismatchError) as caught:
        symconfig.megatron.argv(sample_plan(cluster=load_cluster("a100-80gb")))
    said = str(caught.value)
    assert fields(caught) == ["WORLD_SIZE", "GPU", "megatron-core"]
    assert "(got 32, need 64)" in said
    assert "got NVIDIA A100-SXM4-40GB with 39.4 GiB, need NVIDIA A100-SXM4-80GB with 79.2 GiB" in said
    assert "--cluster a100-40gb" in said
    assert "(got core_v0.14.0, need core_v0.19.0)" in said
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 1


def test_a_plan_for_many_ranks_needs_a_launcher_and_one_for_a_single_rank_none() -> None:
    with pytest.raises(MismatchError, match="no launcher states the number of ranks, and the plan is for 16"):
        symconfig.deepspeed.config(sample_plan(backend="deepspeed"))
    assert symconfig.deepspeed.config(sample_plan(backend="deepspeed", dp=1))["train_micro_batch_size_per_gpu"] == 1


def test_other_nodes_than_planned_are_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "64")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(MismatchError, match=r"LOCAL_WORLD_SIZE: .* \(got 4, need 8\)"):
        started(sample_plan(), "megatron")


@pytest.mark.parametrize("text", ["many", "0", "-3", "1e9", "²"])
def test_a_world_size_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(InputError, match="WORLD_SIZE: is no whole number"):
        look()


def test_the_process_group_knows_better_than_the_environment_and_the_caller_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 64)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert (look().world_size, look().said_by) == (64, "torch.distributed")
    assert look(8).world_size == 8
    with pytest.raises(InputError, match="world_size"):
        look(0)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Gpu("NVIDIA H100 80GB HBM3", 84932978278, 132), False),
        (Gpu("NVIDIA H100", 84932978278, 132), False),  # a driver that spells it otherwise
        (Gpu("NVIDIA H100", 79 * 10**9, 132), True),
        (Gpu("NVIDIA H100", 84932978278, 114), True),  # the PCIe card
        (Gpu("NVIDIA H800", 84932978278, 132), True),  # the zoo knows it as another one
    ],
)
def test_a_gpu_is_known_by_its_name_or_else_by_what_it_has(found: Gpu, wrong: bool) -> None:
    plan = sample_plan(cluster=load_cluster("h100"))
    here = Surroundings(plan.best.configuration.world_size, "WORLD_SIZE", None, found)
    assert [each.field for each in mismatches(plan, here, ENTRIES["megatron"])] == ["GPU"] * wrong


@pytest.mark.parametrize(
    ("framework", "versions", "wrong"),
    [
        ("megatron", {"megatron": "0.19.9"}, []),
        ("megatron", {"megatron": "0.18.2", "deepspeed": "1.0"}, ["megatron-core"]),
        ("deepspeed", {"deepspeed": "0.18.9+cu128"}, []),
        ("deepspeed", {"deepspeed": "0.19.0", "transformers": "3.0"}, ["deepspeed"]),
        ("transformers", {"deepspeed": "0.18.1", "transformers": "5.0.0"}, []),
        ("transformers", {"deepspeed": "0.18.1", "transformers": "4.57.9"}, ["transformers"]),
        ("transformers", {"deepspeed": "0.18.1", "transformers": "6.0.0"}, ["transformers"]),
    ],
)
def test_releases_are_compared_as_far_as_their_options_differ(
    framework: Any, versions: dict[str, str], wrong: list[str]
) -> None:
    plan = sample_plan(backend="megatron" if framework == "megatron" else "deepspeed")
    here = Surroundings(plan.best.configuration.world_size, "WORLD_SIZE", versions=versions)
    assert [each.field for each in mismatches(plan, here, ENTRIES[framework])] == wrong


def test_what_is_really_installed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    try:
        installed = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        pytest.skip("DeepSpeed is not installed")
    assert look(1).versions["deepspeed"] == installed == DEEPSPEED_RELEASE


def test_warn_logs_once_and_on_rank_0_only(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    for rank, count in (("0", 1), ("3", 0)):
        monkeypatch.setenv("RANK", rank)
        caplog.clear()
        started(sample_plan(), "megatron", on_mismatch="warn")
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * count


def test_ignore_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "nonsense")
    assert symconfig.megatron.argv(sample_plan(), on_mismatch="ignore")
    with pytest.raises(InputError, match="on_mismatch"):
        started(sample_plan(), "megatron", on_mismatch="later")  # type: ignore[arg-type]


def test_a_plan_is_taken_in_any_form(tmp_path: Path) -> None:
    plan = sample_plan()
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    forms = (plan, PlanResult(plan), tmp_path, str(tmp_path), tmp_path / "plan.json")
    assert {loaded(form).to_json() for form in forms} == {plan.to_json()}


def test_the_environment_is_said_without_starting_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA reads its variables when it starts."""
    monkeypatch.setenv("WORLD_SIZE", "64")

    def started_cuda() -> bool:
        raise AssertionError("CUDA was started")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=started_cuda)))
    assert symconfig.megatron.environment(sample_plan())["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    with pytest.raises(AssertionError, match="CUDA was started"):
        symconfig.megatron.argv(sample_plan())

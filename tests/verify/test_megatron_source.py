"""Megatron's code is found in a written order, fetched only when asked, and taken only if it is the expected file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from symconfig.errors import InputError, SymconfigError
from symconfig.verify import megatron, megatron_source
from tests.sample_plans import sample_plan


def checkout(root: Path, minor: int = 14) -> Path:
    for name, text in (
        ("training/arguments.py", ""),
        ("core/package_info.py", f"MAJOR = 0\nMINOR = {minor}\nPATCH = 1\n"),
    ):
        path = root / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    monkeypatch.setattr(megatron_source, "_installed", list)


def test_a_named_place_comes_before_the_variable_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert megatron_source.find() is None
    cached = checkout(megatron_source.cache_dir(), 19)
    found = megatron_source.find()
    assert (found.root, found.version, found.chosen) == (cached.resolve(), "0.19.1", False)
    monkeypatch.setenv("MEGATRON_PATH", str(checkout(tmp_path / "variable", 13)))
    found = megatron_source.find()
    assert (found.release, found.chosen) == ((0, 13), True)
    found = megatron_source.find(checkout(tmp_path / "named", 12))
    assert found.release == (0, 12)


def test_a_named_place_that_is_no_megatron_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no Megatron-LM"):
        megatron_source.find(tmp_path)


def test_an_installed_package_without_a_trainer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = checkout(tmp_path / "site")
    monkeypatch.setattr(megatron_source, "_installed", lambda: [installed])
    found = megatron_source.find()
    assert found.origin == "the installed package"
    (installed / "megatron/training/arguments.py").unlink()
    assert megatron_source.find() is None
    assert megatron_source.installed_core() is not None


def test_another_release_judges_only_when_a_person_named_it(tmp_path: Path) -> None:
    plan = sample_plan(version="core_v0.19.0")
    cached = megatron_source.MegatronSource(tmp_path, "0.14.1", "the cached wheel", chosen=False)
    named = megatron_source.MegatronSource(tmp_path, "0.14.1", "a checkout", chosen=True)
    pytest.importorskip("torch")
    assert "checkout of core_v0.19.0" in str(megatron.unfit(cached, plan))
    assert megatron.unfit(named, plan) is None
    assert "python -m symconfig.verify.megatron_source" in str(megatron.unfit(None, plan))


def test_a_user_without_a_home_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    # Root may look into every folder, but not into one whose name is too long.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 300)))
    assert megatron_source.find() is None
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert megatron_source.find() is None
    with pytest.raises(SymconfigError, match="XDG_CACHE_HOME or HOME: is needed"):
        megatron_source.download()


def test_a_closed_cache_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def closed() -> Path:
        raise PermissionError(13, "Permission denied", "/root/.cache")

    monkeypatch.setattr(megatron_source, "download", closed)
    assert megatron_source.main() == 2
    assert capsys.readouterr().err == "/root/.cache: cannot be written: Permission denied\n"


def test_a_failed_download_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def no_network(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "install"]
        return subprocess.CompletedProcess(command, 1, "", "no route to host")

    monkeypatch.setattr(subprocess, "run", no_network)
    assert megatron_source.main() == 2
    assert "no route to host" in capsys.readouterr().err

"""Which layers a rank is built with: Megatron's own, or Transformer Engine's where they are asked for."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from symconfig.verify import megatron_session


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to Megatron, where a record of it stands in for it."""
    done: list[str] = []
    patches: Any = ModuleType("megatron_patches")
    patches.local = lambda config: done.append("local") or config
    patches.refusals = lambda: done.append("refusals")
    patches.network = lambda: done.append("network")
    patches.device = lambda device: contextlib.nullcontext()
    variables: Any = ModuleType("megatron.training.global_vars")
    variables.set_args = lambda args: done.append(args.transformer_impl)
    specs: Any = ModuleType("megatron_local_specs")
    specs.scans = specs.variants = lambda: None
    for module in (patches, specs, variables):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return done


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ({}, ["local", "refusals", "network", "local"]),
        ({"transformer_impl": "local"}, ["local", "refusals", "network", "local"]),
        ({"transformer_impl": "transformer_engine"}, ["network", "transformer_engine"]),
    ],
)
def test_megatrons_own_layers_stand_in_only_where_transformer_engines_are_not_asked_for(
    asked: dict[str, str], done: list[str], patched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(megatron_session.__file__).with_name("megatron_build.py")
    spec = importlib.util.spec_from_file_location("megatron_build", path)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "megatron_build", build)
    spec.loader.exec_module(build)
    args = SimpleNamespace(transformer_impl="transformer_engine")
    with build.placed(args, SimpleNamespace(), {"device": "cuda", **asked}):
        assert patched == done

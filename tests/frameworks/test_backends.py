"""What other rooms are told of each framework, by hand from its sources."""

from __future__ import annotations

import pytest

from symconfig.frameworks.backend import numbers
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.releases import NEWEST
from tests.sample_models import sample_model

MEGATRON, DEEPSPEED, FSDP = (BACKENDS[name] for name in ("megatron", "deepspeed", "fsdp"))


def test_each_goes_by_its_name() -> None:
    assert {name: backend.name for name, backend in BACKENDS.items()} == {name: name for name in BACKENDS}


@pytest.mark.parametrize(
    ("release", "found"), [("core_v0.15.0", False), ("core_v0.16.1", True), ("core_v0.17.1", False), ("main", False)]
)
def test_generators_are_saved_by_each_replica_of_one_release(release: str, found: bool) -> None:
    """training/checkpointing.py, get_rng_state: over the ranks of experts in core_v0.16 alone."""
    assert MEGATRON.generators_by_replica(release) is found
    assert DEEPSPEED.generators_by_replica("0.19.8") is False


def test_releases_are_ordered_by_number_and_by_what_the_table_has() -> None:
    assert DEEPSPEED.releases.older("0.9.5", "0.19.8")
    assert not DEEPSPEED.releases.older("0.19.8", "0.19.8")
    assert MEGATRON.releases.older("core_v0.12.1", "core_v0.13.0")
    assert MEGATRON.releases.older("core_v0.19.0", "main")
    assert MEGATRON.releases.minor("core_v0.16.1") == (0, 16)
    assert MEGATRON.releases.minor("main") == NEWEST
    assert DEEPSPEED.releases.minor("0.19.8+cu128") == (0, 19)


@pytest.mark.parametrize(
    ("text", "found"), [("0.19.8+cu128", (0, 19, 8)), ("1.0.0rc1", (1, 0, 0)), ("2", (2,)), ("main", ()), ("", ())]
)
def test_numbers_of_a_release(text: str, found: tuple[int, ...]) -> None:
    assert numbers(text) == found


def test_what_pip_has_is_named_as_releases_are_here() -> None:
    assert MEGATRON.releases.installed("0.16.1") == "core_v0.16"
    assert DEEPSPEED.releases.installed("0.19.8+cu128") == "0.19"


def test_adapters_are_trained_by_deepspeed_and_beside_megatron() -> None:
    assert (MEGATRON.adapters, DEEPSPEED.adapters) == (False, True)
    lora = sample_model("llama2-13b-lora")  # beside q and v alone, which no one adapter of Megatron-Bridge's is
    assert len(MEGATRON.refused_adapters(lora)) == 1
    assert MEGATRON.refused_adapters(sample_model("llama2-13b")) == ()
    assert DEEPSPEED.refused_adapters(lora) == ()


def test_capabilities_that_only_one_has() -> None:
    def facts(backend: str) -> tuple[bool, ...]:
        of = BACKENDS[backend]  # type: ignore[index]
        return (
            bool(of.low_precisions),
            of.gradient_buckets,
            of.pads_vocabulary,
        )

    assert facts("megatron") == (True,) * 3
    assert facts("deepspeed") == facts("fsdp") == (False,) * 3
    assert (MEGATRON.names_release, DEEPSPEED.names_release) == (False, True)  # ds_version in its states

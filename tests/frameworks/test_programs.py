"""What programs run otherwise than their framework by itself, against the libraries that they call."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster
from symconfig.solve.run import usual_of


def framework(target: str | None, backend: str, **more: Any) -> Any:
    job = {"model": "qwen3-8b", "cluster": "h100", "gpus": 8, "global_batch_size": 8, "target": target} | more
    return usual_of(load_cluster("h100"), Job.model_validate({**job, "backend": backend}))


def test_accelerate_reduces_gradients_in_the_precision_of_its_products() -> None:
    plugins = pytest.importorskip("accelerate.utils")
    plugin = plugins.FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    reduced = {framework(target, "fsdp").reduced_bytes for target in ("trl", "transformers", "accelerate", None)}
    assert reduced == {plugin.mixed_precision_policy.reduce_dtype.itemsize}
    assert framework("verl-fsdp", "fsdp").reduced_bytes == 4.0
    assert framework("trl", "deepspeed") == framework("accelerate", "deepspeed")


def test_adam_as_it_comes_moves_more_than_a_fused_kernel_and_other_optimizers_are_not_it() -> None:
    verl, other = framework("verl-fsdp", "fsdp"), framework("transformers", "fsdp")
    assert verl.adam_bytes > 2 * other.adam_bytes
    small = framework("verl-fsdp", "fsdp", optimizer={"name": "adam8bit"})
    assert small.stepping == other.stepping != verl.stepping


@pytest.mark.parametrize(
    ("target", "width"),
    [("transformers", 2), ("accelerate", 2), (None, 2), ("trl", 2), ("verl-fsdp", 4), ("llamafactory", 4)],
)
def test_frozen_weights_rest_as_they_were_loaded_unless_the_program_widens_them(target: str | None, width: int) -> None:
    sizes = framework(target, "fsdp").bytes
    assert sizes.frozen + sizes.frozen_rest == width

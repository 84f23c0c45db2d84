"""This process as rank 0 of many: a process group that sends nothing, and the environment that torchrun would give."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def as_rank_0(nodes: int, per_node: int, environment: Mapping[str, str]) -> Iterator[None]:
    """On a machine without GPUs; that the cluster's have bf16 is taken for granted."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(nodes * per_node), "LOCAL_WORLD_SIZE": str(per_node)}
    here = os.getcwd()
    dist.init_process_group("fake", rank=0, world_size=nodes * per_node, store=FakeStore())
    try:
        with (
            mock.patch.dict(os.environ, {**environment, **ranks}),
            mock.patch.object(PartialState, "_prepare_backend", return_value=("gloo", DistributedType.MULTI_CPU)),
            # Else DeepSpeed compiles an extension for ranks of one host before anything else.
            mock.patch("deepspeed.comm.is_initialized", return_value=True),
            mock.patch("transformers.training_args.is_torch_bf16_gpu_available", return_value=True),
        ):
            yield
    finally:
        os.chdir(here)
        AcceleratorState._reset_state(reset_partial_state=True)
        dist.destroy_process_group()

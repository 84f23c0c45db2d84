"""A rank of Trainer or of an Accelerator without a GPU: gloo in the place of NCCL, and bf16, which TrainingArguments
grants to GPUs alone where DeepSpeed is asked for.

Python imports this by itself where the folder is on PYTHONPATH, and changes ranks only: launchers give LOCAL_RANK. Each
rank says at its end of how many numbers its optimizer keeps the state.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def stand_in() -> None:
    import torch
    import transformers.utils
    import transformers.utils.import_utils
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    for module in (transformers.utils, transformers.utils.import_utils):
        module.is_torch_bf16_gpu_available = lambda: True
    if find_spec("llamafactory") and not find_spec("torchaudio"):
        transformers.utils.is_torchaudio_available()  # Transformers remembers that it is not
        sys.modules["torchaudio"] = ModuleType("torchaudio")  # LLaMA-Factory reads sound with it, which no plan has
    network: Any = importlib.import_module("deepspeed.comm.torch")
    network.build_shm_op = lambda: None  # it would compile for a minute, for inference
    # Accelerate shards weights over GPUs alone, so such ranks are told that they are GPUs, and stay on the CPU.
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    kind = DistributedType.MULTI_GPU if sharded else DistributedType.MULTI_CPU
    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", kind)
    PartialState.set_device = lambda state: setattr(state, "device", torch.device("cpu"))


def count_states() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    kept = 0

    def counted(optimizer: Any, *_: Any) -> None:
        """DeepSpeed steps its groups of tensors one after the other, in the same optimizer."""
        nonlocal kept
        moments = [state["exp_avg"] for state in optimizer.state.values() if "exp_avg" in state]
        local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in moments]
        kept = max(kept, sum(tensor.numel() for tensor in local))

    register_optimizer_step_post_hook(counted)
    atexit.register(lambda: print(f"\nkeeps the states of {kept} numbers\n", end="", flush=True) if kept else None)


if "LOCAL_RANK" in os.environ:
    stand_in()
    count_states()

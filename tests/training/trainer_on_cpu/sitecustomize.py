"""A rank of Trainer or of an Accelerator without a GPU: gloo in the place of NCCL, and bf16, which TrainingArguments
grants to GPUs alone where DeepSpeed is asked for.

Python imports this by itself where the folder is on PYTHONPATH, and changes ranks only: launchers give LOCAL_RANK.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def stand_in() -> None:
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
    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_CPU)


if "LOCAL_RANK" in os.environ:
    stand_in()

"""What this machine can train with DeepSpeed: in which precisions, and whether it can build DeepSpeed's optimizers.

Whatever trains on CPU ranks asks here first and leaves out, with the reason, what the machine cannot run. Torch itself
computes in every 16-bit type on every processor, if slowly: runs without DeepSpeed need not ask.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

_NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_ASK = "from deepspeed.accelerator import get_accelerator; print('\\n', *get_accelerator().supported_dtypes())"


@functools.cache
def precisions(python: str = sys.executable) -> frozenset[str]:
    """Return the precisions that DeepSpeed's accelerator for CPUs offers here. python: the one that has DeepSpeed."""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    ended = subprocess.run([python, "-c", _ASK], env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return frozenset(_NAMES[word] for word in ended.stdout.splitlines()[-1].split() if word in _NAMES)


def unbuilt() -> str:
    """Return why DeepSpeed cannot build its optimizers for CPUs here; nothing where it can."""
    compiler = os.environ.get("CXX", "c++")  # as torch.utils.cpp_extension asks
    if shutil.which(compiler):
        return ""
    return f"DeepSpeed builds its optimizers with a C++ compiler, and {compiler} is not here"


def lacking(precision: str, python: str = sys.executable) -> str:
    """Return why DeepSpeed cannot train in the precision on this machine; nothing where it can."""
    if (why := unbuilt()) or precision in precisions(python):
        return why
    return f"DeepSpeed does not train in {precision} on this machine's processor, which lacks it"

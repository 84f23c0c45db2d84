"""What each architecture's `config.json` means: keys with the defaults of transformers' config classes, as data.

Defaults are those of transformers 5.23's configuration_*.py (a test compares them); `qwen` is the
configuration_qwen.py beside the weights of Qwen/Qwen-7B. A key that is in none of an architecture's tables is an
error: it may change the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from symconfig.descriptor.architectures import deepseek, gemma, gpt, llama, multimodal, qwen
from symconfig.descriptor.architectures.architecture import Architecture

_TEXTS = (
    llama.ARCHITECTURES
    | qwen.ARCHITECTURES
    | deepseek.ARCHITECTURES
    | gpt.ARCHITECTURES
    | gemma.ARCHITECTURES
    | multimodal.TEXTS
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(_TEXTS | multimodal.around(_TEXTS))

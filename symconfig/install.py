"""The version of this package, and the commands that install what a check needs, from a checkout or a wheel."""

from __future__ import annotations

VERSION = "0.1.0"

# torch by itself first: deepspeed comes as source and asks it how to build.
EXTRA = (
    "pip install 'torch>=2.13,<3' setuptools wheel ninja py-cpuinfo hatchling editables && "
    "DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation 'symconfig[verify]'"
)
MEGATRON = "python -m symconfig.verify.megatron_source"
TORCH = "pip install 'torch>=2.13,<3'"
SYMBOLIC = "pip install 'symconfig[symbolic]'"

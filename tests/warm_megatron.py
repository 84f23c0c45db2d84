"""Import this to have imported Megatron as symconfig.verify's runner does: its forks need not."""

from __future__ import annotations

from symconfig.verify import megatron_source
from symconfig.verify.runners import megatron_runner

found = megatron_source.find()
assert found is not None
megatron_runner.load("megatron_runner").prepare(found.root, built=True)

"""Import this to have imported Megatron as symconfig.verify's runner does: its forks need not."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

from symconfig.verify import megatron_session, megatron_source

found = megatron_source.find()
assert found is not None
spec = spec_from_file_location("megatron_runner", megatron_session.RUNNER)
assert spec is not None
assert spec.loader is not None
runner = sys.modules["megatron_runner"] = module_from_spec(spec)
spec.loader.exec_module(runner)
runner.prepare(found.root, built=True)

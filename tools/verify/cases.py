"""Run tests that take a sample of their cases with all cases: `python -m tools verify cases [options of pytest]`."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.sampled import EVERY_CASE
from tools.pages import ROOT


def main() -> int:
    """Run the files that import `tests.sampled`, and return pytest's exit status."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "tests.sampled" in path.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", *sys.argv[1:], *map(str, files)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, EVERY_CASE: "1"}, check=False).returncode

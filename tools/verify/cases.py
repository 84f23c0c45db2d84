"""Run tests that take a sample of their cases with all cases: `python -m tools verify cases [options of pytest]`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.sampled import EVERY_CASE
from tools.pages import ROOT


def main() -> int:
    """Run the files that import `tests.sampled` or `hypothesis`, and return pytest's exit status."""
    sampling = re.compile(r"^from (tests\.sampled|hypothesis) import", re.MULTILINE)
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if sampling.search(path.read_text("utf-8"))]
    command = [sys.executable, "-m", "pytest", *sys.argv[1:], *map(str, files)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, EVERY_CASE: "1"}, check=False).returncode

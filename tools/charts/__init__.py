"""Bundle what pages use of Apache ECharts into symconfig/report/page/assets, from npm."""

from __future__ import annotations

import subprocess
from pathlib import Path


def main() -> int:
    """Run build.sh, which needs npm, and return its exit status; the version is in package.json."""
    return subprocess.run([str(Path(__file__).with_name("build.sh"))], check=False).returncode

"""Distil published measurements of kernels into the zoo's priors: `python -m tools priors FOLDER`.

Reads files of the schema symconfig.kernel_measurements/1 and writes model_zoo/kernel_priors.yaml: for each GPU type the
constants of the cost model's own formulas that explain its kernels at training sizes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from tools.pages import ROOT
from tools.priors_distil import distil

COMMAND = "python -m tools priors"
PRIORS = ROOT / "model_zoo" / "kernel_priors.yaml"


def as_yaml(data: dict[str, Any]) -> str:
    """One line for each source and each constant."""

    def line(value: object) -> str:
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()

    lines = [f"# Written by `{COMMAND}`.", f"schema: {data['schema']}", "sources:"]
    lines += [f"  {name}: {json.dumps(title, ensure_ascii=False)}" for name, title in data["sources"].items()]
    lines += [
        "spread:  # of a training's kernels around the measured ones",
        *(f"  {k}: {v}" for k, v in data["spread"].items()),
    ]
    lines += ["gpus:"]
    for gpu in data["gpus"]:
        lines += [f"- cluster: {gpu['cluster']}", "  constants:"]
        lines += [f"    {name}: {line(item)}" for name, item in gpu["constants"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    PRIORS.write_text(as_yaml(distil(parser.parse_args().folder)), encoding="utf-8")

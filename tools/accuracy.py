"""Fit the zoo's constants to published runs and score the model: `python -m tools accuracy FOLDER…`.

Writes model_zoo/kernels/*.yaml (each GPU type that clusters name and that has runs), docs/evidence/constants.md,
symconfig/solve/data/accuracy.json, from which predictions take their intervals, and the places for
it in docs/evidence/accuracy.md and README.md.
The fit starts from what kernels say of each GPU, so it does not depend on what it wrote before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.write import kernels_yaml
from symconfig.measured.calibrate import Calibration, gpu_type
from symconfig.measured.row_options import forget_zoo
from symconfig.measured.runs import calibrations, read, runs
from symconfig.measured.score import source
from symconfig.report.calibration import left_priors
from symconfig.report.validation import validation_data
from tools.accuracy_record import record
from tools.accuracy_tables import markdown, page, summary
from tools.pages import EVIDENCE, ROOT, fill

COMMAND = "make accuracy"
RECORD = ROOT / "symconfig" / "solve" / "data" / "accuracy.json"
CONSTANTS = EVIDENCE / "constants.md"
WIDTH = 400  # of a line of the record
PAGE, README = EVIDENCE / "accuracy.md", ROOT / "README.md"


def as_text(data: Any, depth: int = 0) -> str:
    """JSON in which what fits a line stands on one, and so does each list of ratios."""
    line = json.dumps(data)
    if not isinstance(data, (dict, list)) or len(line) + depth <= WIDTH or all(isinstance(x, float) for x in data):
        return line
    named = data.items() if isinstance(data, dict) else ((None, value) for value in data)
    before = "\n" + " " * (depth + 1)
    items = [("" if name is None else f"{json.dumps(name)}: ") + as_text(value, depth + 1) for name, value in named]
    return f"{line[0]}{before}{f',{before}'.join(items)}{before[:-1]}{line[-1]}"


def kernels_in_zoo() -> dict[tuple[object, ...], str]:
    """The file of constants that clusters of a GPU type name."""
    found = {}
    for name in zoo_clusters():
        stated = yaml.safe_load((ROOT / "model_zoo" / "clusters" / f"{name}.yaml").read_text(encoding="utf-8"))
        if isinstance(stated["kernels"], str):
            found[gpu_type(load_cluster(name))] = stated["kernels"]
    return found


def write_kernels(fitted: list[Calibration]) -> None:
    """The fitted constants of every GPU type that has a file."""
    files = kernels_in_zoo()
    for found in fitted:
        name = files.get(gpu_type(found.cluster))
        if name is None:
            sys.exit(f"{found.cluster.name}: has runs, and its constants lie in no file of model_zoo/kernels")
        path = ROOT / "model_zoo" / "kernels" / f"{name}.yaml"
        head = f"# {name}: fitted to {found.rows} published runs by `{COMMAND}`, which writes this file.\n"
        path.write_text(head + kernels_yaml(found.kernels), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of measured runs")
    folders = parser.parse_args().folders
    paths = sorted((path for folder in folders for path in folder.glob("*.yaml")), key=lambda path: path.stem)
    if not paths:
        sys.exit(
            f"no measured runs in {', '.join(map(str, folders)) or 'no folder'}. Try: make accuracy TRUTH='FOLDER …'"
        )
    timed = runs(paths)
    found = calibrations(timed, COMMAND, from_scratch=True)
    for sentence in (sentence for each in found for sentence in left_priors(each)):
        print(sentence)
    write_kernels(found)
    forget_zoo()
    files = read([str(path) for path in paths])
    scores = [source(name, content) for name, content in files]
    fitted = [(each, items) for each, (_, items) in zip(found, timed.timed, strict=True)]
    described = [
        {**figures, "about": {key: content.source.get(key) for key in ("title", "paper", "repository")}}
        for figures, (_, content) in zip(validation_data(scores)["sources"], files, strict=True)
    ]
    data = record(scores, fitted, described)
    RECORD.write_text(as_text(data) + "\n", encoding="utf-8")
    CONSTANTS.write_text(page(data), encoding="utf-8")
    fill(PAGE, {"accuracy": markdown(data)})
    fill(README, {"accuracy": summary(data)})

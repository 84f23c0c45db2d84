"""Scores the model against published runs and records it: `python docs/accuracy.py FOLDER` (`make accuracy`).

Writes symconfig/solve/data/accuracy.json, from which predictions take their intervals, and the README's tables.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from symconfig.measured.accuracy import record
from symconfig.measured.runs import calibrations, runs
from symconfig.measured.score import score
from symconfig.report.accuracy import markdown
from symconfig.report.validation import to_dict

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "symconfig" / "solve" / "data" / "accuracy.json"
README = ROOT / "README.md"
TABLES = re.compile(r"(<!-- accuracy: written by `make accuracy` -->\n).*?(<!-- end of accuracy -->)", re.DOTALL)


def in_readme(text: str, tables: str) -> str:
    """The README with these tables."""
    if not TABLES.search(text):
        sys.exit("README.md has no place for the tables of accuracy")
    return TABLES.sub(lambda match: f"{match[1]}\n{tables}\n{match[2]}", text)


def as_text(data: dict[str, Any]) -> str:
    """JSON with one line for each list of ratios."""
    text = json.dumps(data, indent=1)
    return re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def main(folder: Path) -> None:
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        sys.exit(f"{folder}: no measured runs; make accuracy TRUTH=FOLDER")
    scores = score(paths)
    timed = runs(paths)
    fitted = [(found, items) for found, (_, items) in zip(calibrations(timed, "make accuracy", True), timed.timed,
                                                            strict=True)]
    data = record(scores, fitted, to_dict(scores)["sources"])
    RECORD.write_text(as_text(data), encoding="utf-8")
    README.write_text(in_readme(README.read_text(encoding="utf-8"), markdown(data)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

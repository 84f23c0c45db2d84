"""Search for inputs that break a reader."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("corpora")

"""Models of this package: one descriptor each."""

from pathlib import Path

MODELS = Path(__file__).parent

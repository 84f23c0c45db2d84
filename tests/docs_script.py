"""The scripts that write pages of docs/, which is no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.append(str(DOCS))  # of what scripts share


@cache
def docs_script(name: str) -> ModuleType:
    """Import docs/NAME.py."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def is_as_written(script: ModuleType) -> bool:
    """Tell whether the places of a script's page hold what it writes there now."""
    text: str = script.PAGE.read_text(encoding="utf-8")
    return bool(docs_script("written").filled(text, script.parts()) == text)

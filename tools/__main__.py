"""Run a tool: `python -m tools VERB [options]`; `python -m tools VERB --help` has its options."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# Verb -> module; the module's `main` reads sys.argv, and the first line of its docstring is the help.
VERBS = {
    "generate": "tools.generate",
    "outputs": "tools.outputs",
    "docs": "tools.site",
    "screenshots": "tools.screenshots",
    "new": "tools.new",
    "verify": "tools.verify",
    "soak": "tools.soak",
    "fuzz": "tools.fuzz",
    "mutants": "tools.mutants.run",
    "bench": "benchmarks.bench",
    "house": "benchmarks.house",
    "accuracy": "tools.accuracy",
    "priors": "tools.priors",
    "recipes": "tools.recipes",
    "partitions": "tools.partitions",
    "flags": "tools.flags",
}


def first_line(module: str) -> str:
    """Return the first line of a module's docstring, without importing it: some need a framework."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def main() -> int | str | None:
    """Run the verb's tool and return its exit status; list all verbs where none is given."""
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in ("-h", "--help"):
        print("usage: python -m tools VERB [options]\n")
        print("\n".join(f"  {name:16}{first_line(module)}" for name, module in VERBS.items()))
        return 0
    if verb not in VERBS:
        return f"error: there is no tool {verb} (got {verb}, need {', '.join(VERBS)}). Try: python -m tools --help"
    sys.argv = [f"python -m tools {verb}", *sys.argv[2:]]
    status: int | str | None = import_module(VERBS[verb]).main()
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Options that a plan may use, and what is known of each, into docs/options.md: `python docs/options.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from written import fill

from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.maturity import Maturity, Option, Standing
from symconfig.frameworks.tables import options

PAGE = Path(__file__).with_suffix(".md")


def parts() -> dict[str, str]:
    """Return the order in which options are opened, and the options of each framework."""
    return {
        "order": "\n".join(f"- **{kind}**" for kind in Maturity),
        "options": "\n".join(line for backend in BACKENDS.values() for line in _of(backend)),
    }


def _of(backend: Backend) -> Iterator[str]:
    yield f"# {backend.label}\n"
    for option in options(backend.name):
        yield from _told(option)


def _told(option: Option) -> Iterator[str]:
    yield f"## {option.name}\n"
    yield f"{option.label[0].upper()}{option.label[1:]}.\n"
    if (standing := option.doubt) is not None:
        yield f"- **{standing.maturity}**{_releases(standing)}: {standing.why} ({standing.source})"
    for need in option.needs:
        wants = [f"the Python module `{need.module}`"] if need.module else []
        wants += [f"`{name}={value}`" for name, value in need.environment.items()]
        yield f"- needs {', '.join(wants)}: {need.why}; {need.hint}"
    if option.doubt or option.needs:
        yield ""


def _releases(standing: Standing) -> str:
    if standing.since and standing.until:
        return f", {standing.since} to {standing.until}"
    if standing.since:
        return f", since {standing.since}"
    return f", up to {standing.until}" if standing.until else ""


if __name__ == "__main__":
    fill(PAGE, parts())

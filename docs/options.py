"""Options that a plan may use, and what is known of each, into docs/options.md: `python docs/options.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from symconfig.frameworks.backend import Backend
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.maturity import Maturity, Option, Standing
from symconfig.frameworks.tables import options

PAGE = Path(__file__).with_suffix(".md")
INTRO = """# Options and what is known of them

What a plan may use beside its degrees, by its framework. What is not stable in the release is left out, unless
`--allow NAME` names it, a pin asks for it, or nothing fits without it. User buffers, DeepEP, HybridEP and CUDA graphs
want something that a site must have: `--without user_buffers,deepep` plans without it, launch.sh looks for it before it
starts, and `symconfig doctor` says whether it is on this machine. Where the gain of one of them cannot be told, it is
left off. How a plan is chosen: [docs/why-this-plan.md](why-this-plan.md). An option with no line below its name is
stable in every release that has it. The tables are `symconfig/frameworks/NAME/maturity.py`; this page is written by
`make options`.
"""


def page() -> str:
    """The whole page."""
    every = "\n".join(line for backend in BACKENDS.values() for line in _of(backend))
    kinds = [f"- **{kind}**" for kind in Maturity]
    head = "Where nothing fits without them, they are opened in this order:"
    return "\n".join([INTRO, head, "", *kinds, "", every])


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
    PAGE.write_text(page(), encoding="utf-8")

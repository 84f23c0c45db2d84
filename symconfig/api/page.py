"""Answers as pages for a browser: one file each, without any request."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from symconfig.api.planning import Asked, Wanted, files
from symconfig.errors import SymconfigError
from symconfig.plans.plan import Plan
from symconfig.report.grid import Block
from symconfig.report.page.charts import Scatter
from symconfig.report.page.data import plan_data, refused_data, report_data
from symconfig.report.page.page import page
from symconfig.report.timeline.section import TRACE
from symconfig.runs.best import prepared

FRAME_PIXELS = 900  # of a notebook's cell


def plan_page(plan: Plan, wanted: Wanted | None = None, before: Sequence[Block] = ()) -> str:
    """Return the page of a plan, with the files that `plan --out` writes. before: what is said first."""
    data = plan_data(plan, page_files(plan, wanted or Wanted()), before)
    return page(data, data["title"])


def page_files(plan: Plan, wanted: Wanted) -> dict[str, str]:
    """Return the text of the files that a page shows, by name: all but the trace, which is drawn."""
    return {item.path: item.text for item in files(plan, wanted) if item.path != TRACE}


def refused_page(asked: Asked, error: SymconfigError) -> str:
    """Return the page of a job that nothing fits: what was weighed, and what each layout would need."""
    model, job = prepared(asked.model, asked.cluster, asked.job)
    data = refused_data(model, asked.cluster, job, error)
    return page(data, data["title"])


def report_page(title: str, blocks: Sequence[Block], scatters: Sequence[Scatter] = ()) -> str:
    """Return the page of a command's answer."""
    data = report_data(title, blocks, scatters)
    return page(data, title)


def framed(html: str) -> str:
    """Return a page as a notebook's cell shows it: in a frame of its own that may run its scripts and nothing else."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{FRAME_PIXELS}px;border:0" '
        f'title="plan" srcdoc="{escape(html, quote=True)}"></iframe>'
    )

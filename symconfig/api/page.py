"""Answers as pages for a browser: one file each, without any request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symconfig.api.planning import LoadedJob, Wanted, page_files
from symconfig.errors import SymconfigError
from symconfig.existing.audit.audit import Audit
from symconfig.plans.plan import Plan
from symconfig.report import audit as report
from symconfig.report.grid import Block
from symconfig.report.page.data import audit_data, plan_data, refused_data, report_data
from symconfig.report.page.page import drawn
from symconfig.runs.best import prepared


def plan_page(plan: Plan, wanted: Wanted | None = None, before: Sequence[Block] = ()) -> str:
    """Return the HTML page of a plan, with the files that `plan --out` writes. before: blocks shown first."""
    return drawn(page_data(plan, page_files(plan, wanted or Wanted()), before))


def page_data(plan: Plan, files: Mapping[str, str], before: Sequence[Block] = ()) -> dict[str, Any]:
    """Return the data of a plan's page. files: name -> text."""
    return plan_data(plan, files, before)


def refused_page(wanted: LoadedJob, error: SymconfigError) -> str:
    """Return the HTML page of a job that nothing fits: evaluated candidates and what each would need."""
    model, job = prepared(wanted.model, wanted.cluster, wanted.job)
    return drawn(refused_data(model, wanted.cluster, job, error))


def audited_data(audit: Audit, source: str) -> dict[str, Any]:
    """Return the data of an audit's page: findings, tables, and the better plan if there is one."""
    blocks, better = report.blocks(audit, headed=True), audit.better
    data = report_data("", blocks) if better is None else page_data(better, page_files(better, Wanted()), blocks)
    return audit_data(audit, source, data)

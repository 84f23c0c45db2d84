"""The options of `symconfig sweep` and `symconfig size`. Imported with every command line."""

from __future__ import annotations

import argparse


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """The options of `symconfig sweep`."""
    add = parser.add_argument
    add("sweep", metavar="SWEEP.yaml", help="a job, lists of values for its fields, and what to leave out")
    add("--out", metavar="FILE", help="the table, .csv or .parquet (default: SWEEP.csv, here); what is done stays done "
        "in FILE.journal, and the same command goes on from there")
    add("--jobs", metavar="N", help="plans at once (default: one on each core)")
    add("--engine", metavar="E", default="local", help="local (default), ray or dask")
    add("--address", metavar="A", help="of a Ray or Dask cluster that runs already (default: one is started here)")
    add("--limit", metavar="N", help="most combinations (default 10,000)")
    add("--force", action="store_true", help="start again, and replace a table that exists")

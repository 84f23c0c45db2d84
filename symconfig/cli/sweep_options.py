"""The options of `symconfig sweep` and `symconfig size`. Imported with every command line."""

from __future__ import annotations

import argparse


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """The options of `symconfig sweep`."""
    add = parser.add_argument
    add("sweep", metavar="SWEEP.yaml", help="a job, lists of values for its fields, and what to leave out")
    add(
        "--out",
        metavar="FILE",
        help="the table, .csv or .parquet (default: SWEEP.csv, here); what is done stays done "
        "in FILE.journal, and the same command goes on from there",
    )
    _add_engine(parser)
    add("--limit", metavar="N", help="most combinations (default 10,000)")
    add("--force", action="store_true", help="start again, and replace a table that exists")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """What runs the plans."""
    add = parser.add_argument
    add("--jobs", metavar="N", help="plans at once (default: one on each core)")
    add("--engine", metavar="E", default="local", help="local (default), ray or dask")
    add("--address", metavar="A", help="of a Ray or Dask cluster that runs already (default: one is started here)")


def add_size(parser: argparse.ArgumentParser) -> None:
    """The options of `symconfig size`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="zoo name, or path of a descriptor or a config.json")
    add("--deadline", metavar="T", required=True, help="the time there is: 30d, 12h, 2w")
    add("--tokens", metavar="N", required=True, help="tokens to train on: 2T, 500B")
    add("--clusters", metavar="A,B", default="all", help="zoo names or paths (default: all of the zoo)")
    add("--global-batch-size", metavar="G", help="sequences per optimizer step (default: 4 Mi tokens)")
    add("--batch-tokens", metavar="N", help="the same in tokens: 4M; rounded to an even number of sequences")
    add("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    add("--gpus-max", metavar="N", help="most GPUs (default 16384, or what the cluster has)")
    add("--goodput", metavar="X", default="1", help="share of the time in which steps run (default 1)")
    add("--price", metavar="C=P", action="append", default=[], help="price of a GPU-hour: h100=2.5; may be repeated")
    add("--backend", metavar="B", help="megatron (default) or deepspeed (default for adapters)")
    add("--megatron-version", metavar="V", help="core_v0.12 to core_v0.19 (default), or dev")
    add("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest")
    add("--pin", metavar="NAME=VALUE", action="append", default=[], help="as for plan: tp=8, pp=2..8; may be repeated")
    add("--memory-margin", metavar="SHARE", help="share of the GPU's memory left free (default 0.04)")
    _add_engine(parser)
    add("--plot", metavar="FILE.png", help="draw cost against time (png, svg or pdf); needs matplotlib")

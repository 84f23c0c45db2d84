"""`symconfig measure`: one rank of a plan, or the kernels of a GPU, measured here."""

from __future__ import annotations

import argparse

from symconfig.errors import InputError, Problem


def measure(arguments: argparse.Namespace) -> int:
    """`symconfig measure`: a folder's rank, or with --kernels the rates of this GPU."""
    if arguments.kernels:
        return _kernels(arguments)
    return _rank(arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    from symconfig.cli_kernels import kernels

    return kernels(arguments)


def _rank(arguments: argparse.Namespace) -> int:
    raise InputError(Problem("measures no rank yet", field="DIR"))

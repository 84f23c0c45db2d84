"""A module traced on the meta device: shapes only, no memory."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from io import StringIO
from typing import Any

import torch
from torch.export import ExportedProgram

from symconfig.errors import InputError, Problem


def traced(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], source: str) -> ExportedProgram:
    """Trace operators as the module calls them (linear, attention, norms are not taken apart), without mutation.

    Raises InputError with torch's reason and the module's own line, where it cannot be traced.
    """
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # torch prints graphs
            warnings.simplefilter("ignore")
            with _plain(module):
                exported = torch.export.export(module, tuple(args), dict(kwargs), strict=False)
            return exported.run_decompositions({})
    except Exception as error:  # whatever the user's own code raises, too
        raise InputError(_problem(error, source)) from error


@contextmanager
def _plain(module: torch.nn.Module) -> Iterator[None]:
    """Let the module give a tuple of tensors: what else it returns (caches, settings) is not traced."""
    given, own = module.forward, "forward" in vars(module)

    @wraps(given)
    def forward(*args: Any, **kwargs: Any) -> Any:
        made = given(*args, **kwargs)
        parts = made.values() if isinstance(made, Mapping) else made if isinstance(made, (tuple, list)) else ()
        return tuple(part for part in parts if isinstance(part, torch.Tensor)) or made

    module.forward = forward
    try:
        yield
    finally:
        if own:
            module.forward = given
        else:
            del module.forward


def _problem(error: Exception, source: str) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "/torch/" not in frame.filename and frame.filename != __file__]
    last = theirs[-1] if theirs else None
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return Problem(
        f"the module of {source} cannot be traced by torch.export: {type(error).__name__}: {reason.rstrip('.')}",
        file=last.filename if last else None,
        line=last.lineno if last else None,
        hint="what depends on the data (a loop over tensors, .item(), nonzero) must be left out or made static",
    )

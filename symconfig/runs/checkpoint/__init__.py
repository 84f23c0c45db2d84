"""Checkpoints: what a folder holds, and whether a run of another plan can go on from it.

`loadable(old, new)` evaluates the rules of rules.yaml, each with its source; `read(folder)` looks into a folder without
unpickling anything.
"""

from symconfig.runs.checkpoint.folder import Checkpoint
from symconfig.runs.checkpoint.loadable import Saving, kinds, loadable, of_folder, savings
from symconfig.runs.checkpoint.read import read
from symconfig.runs.checkpoint.table import Loadable, Reason, Step, Verdict

__all__ = [
    "Checkpoint",
    "Loadable",
    "Reason",
    "Saving",
    "Step",
    "Verdict",
    "kinds",
    "loadable",
    "of_folder",
    "read",
    "savings",
]

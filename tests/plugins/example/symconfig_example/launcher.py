"""Launcher ssh: starts launch.sh on hosts that are listed in a file."""

from __future__ import annotations

from pathlib import Path

from symconfig.plans.plan import Plan
from symconfig.render.files import Files
from symconfig.render.settings import Chosen, Setting

NAME = "ssh"
DOES = "ssh.sh: launch.sh on every host of a list"
START = "./ssh.sh HOSTS"
SETTINGS = (Setting("user", "who logs in", "root", r"[a-z]{1,32}", "a name"),)
TEMPLATES = Path(__file__).parent / "templates" / "launcher"


def variables(plan: Plan, files: Files, chosen: Chosen) -> dict[str, object]:
    """Nothing of its own."""
    return {}

"""Models by their ids on Hugging Face's hub: those of the zoo, what huggingface_hub has on this machine, or fetches.

What is in its cache is read without it (huggingface_hub 1.x, constants.py and file_download.py: models--OWNER--NAME,
refs/main, snapshots/REVISION).
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from symconfig.descriptor.document import shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.resources import data_dir

CONFIG = "config.json"
HUB = "https://huggingface.co"
CONNECT_S = 5.0
# OWNER/NAME of letters, digits, `-`, `_` and `.`, at most 96 characters (huggingface_hub, utils/_validators.py).
_ID = re.compile(r"(?=.{3,96}\Z)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# Endings of names whose weights have the same architecture as those without.
_TUNED = re.compile(r"[-_](instruct|chat|base|it|hf|sft|dpo)(?=$|[-_])", re.IGNORECASE)
_REVISION = re.compile(r"[0-9a-f]{40}")


def is_id(name: str) -> bool:
    """Return whether a name has the form OWNER/NAME of a Hugging Face id and no suffix of a YAML or JSON file."""
    return _ID.fullmatch(name) is not None and not name.endswith((".yaml", ".yml", ".json"))


@cache
def of_zoo() -> tuple[tuple[str, str], ...]:
    """Return (name in the zoo, id on the hub) of the zoo's models, sorted by name and cached; read from their files.

    Left out are models without an id, and those with a `base` (adapters over another model).
    """
    pairs = []
    for path in sorted((data_dir("model_zoo") / "models").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        hub = re.search(r"^huggingface_id: (\S+)$", text, re.MULTILINE)
        if hub and not re.search(r"^base:", text, re.MULTILINE):
            pairs.append((path.stem, hub[1]))
    return tuple(pairs)


def same(given: str, known: str) -> bool:
    """Return whether the last parts of two ids are equal but for case and suffixes such as -instruct or -base."""
    one, other = (_TUNED.sub("", name.rstrip("/").rpartition("/")[2]).lower() for name in (given, known))
    return one == other


def cached(name: str) -> Path | None:
    """Return the path of an id's config.json (main branch) in huggingface_hub's cache.

    None if the id, its branch or the file is not there, cannot be read, or the branch names no revision.
    """
    model = folder() / f"models--{name.replace('/', '--')}"
    try:
        revision = (model / "refs" / "main").read_text(encoding="utf-8").strip()
        config = model / "snapshots" / revision / CONFIG
        return config if _REVISION.fullmatch(revision) and config.is_file() else None
    except (OSError, ValueError):
        return None


def fetched(name: str) -> Path:
    """Download an id's config.json into huggingface_hub's cache and return its path.

    The hub is that of HF_ENDPOINT, else huggingface.co. Raises InputError, with a remedy, without huggingface_hub,
    where the hub cannot be reached, and for a model that is missing, gated or cannot be stored.
    """
    try:
        from huggingface_hub import get_session, hf_hub_download, hf_hub_url
    except ImportError:
        raise absent(
            name, "huggingface_hub, which fetches it, is not installed", "pip install 'symconfig[hub]'"
        ) from None
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    try:
        # By itself it tries again for half a minute where no hub answers.
        get_session().head(hf_hub_url(name, CONFIG, endpoint=endpoint), timeout=CONNECT_S)
    except Exception:  # of its HTTP client, which is another one in each of its major releases
        raise absent(name, f"{endpoint} cannot be reached from here") from None
    try:
        return Path(hf_hub_download(name, CONFIG, cache_dir=folder(), endpoint=endpoint))
    except (OSError, ValueError) as error:  # not there, not for everybody, or no room for it
        why = {"GatedRepoError": "is given only to those whom its owner lets (hf auth login)"}
        raise absent(name, f"{endpoint} {why.get(type(error).__name__, 'has no such model for everybody')}") from None


def folder() -> Path:
    """Return the path of huggingface_hub's cache, whether it exists or not.

    HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in XDG_CACHE_HOME or ~/.cache.
    """
    env = os.environ
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(variable):
            return Path(env[variable]).expanduser()
    usual = Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return (Path(env["HF_HOME"]) if env.get("HF_HOME") else usual).expanduser() / "hub"


def named(model: ModelDescriptor, name: str) -> ModelDescriptor:
    """Return a copy of an imported model with the hub's id, and with name and source made from the id, so that they do
    not depend on the folder of the cache.
    """
    fields = {"name": name.rpartition("/")[2], "huggingface_id": name, "source": f"imported from {HUB}/{name}"}
    return model.model_copy(update=fields)


def absent(name: str, why: str, *ways: str) -> InputError:
    """Return, without raising it, the InputError for an id whose config.json is not on this machine.

    Its hint lists `ways`, then `hf download`, a folder with the file, and the zoo's model that differs only in tuning,
    if there is one. why: the reason that it was not downloaded. ways: further remedies.
    """
    alike = next((own for own, known in of_zoo() if same(name, known)), None)
    similar = f", or --model {alike}, which is tuned otherwise" if alike else ""
    file = f"{HUB}/{name}/resolve/main/{CONFIG}"
    return InputError(
        f"there is no such file, the zoo has no model with this id, no {CONFIG} of it is in {folder()}, and {why}",
        field="model",
        got=shorten(name, 100),
        hint=", or ".join((*ways, "")) + f"hf download {name} {CONFIG}, or --model FOLDER with {file} in it{similar}",
    )

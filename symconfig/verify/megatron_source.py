"""Where Megatron's own code is: a checkout, an installed wheel that has the trainer, or a cache that a person fills.

megatron-core 0.19.2 on PyPI holds `megatron/training/arguments.py`, but its wheels ask for Python 3.12 to 3.14;
only its Python files are used here, and those run on 3.11 with megatron_shims. `verify` never downloads:
`python -m symconfig.verify.megatron_source` (= `python -m symconfig.verify.megatron_source`) does, once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from symconfig import install, resources
from symconfig.errors import InputError, SymconfigError

RELEASE = "0.19.2"
WHEEL_PYTHON = "3.12"
# Of the wheels of https://pypi.org/project/megatron-core/0.19.2/ for Python 3.12 on x86-64 Linux.
WHEEL_PLATFORM = "manylinux_2_28_x86_64"
WHEEL_SHA256 = "8e3e486f13f559450415b9b9dc0ff3331a0bb83dd154553f7f350a75ff9c42b5"
COMMAND = f"python -m symconfig.verify.megatron_source (or: {install.MEGATRON})"
_ARGUMENTS = Path("megatron", "training", "arguments.py")
_PACKAGE_INFO = Path("megatron", "core", "package_info.py")


@dataclass(frozen=True, slots=True)
class MegatronSource:
    """`root` holds `megatron/`. `version`: as its package_info says. `chosen`: a person named this one."""

    root: Path
    version: str
    origin: str
    chosen: bool

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def cache_dir() -> Path | None:
    """Return the folder that the wheel is unpacked into; None if the user has no home or cache directory."""
    root = resources.cache_dir()
    return root and root / f"megatron-core-{RELEASE}"


def find(named: Path | None = None) -> MegatronSource | None:
    """Return the first Megatron of: `named`, $MEGATRON_PATH, an installed megatron with trainer, the cache; else None.
    Raises InputError if the folder of `named` or $MEGATRON_PATH is no Megatron-LM. Only such a folder counts as chosen.
    """
    if named is None and os.environ.get("MEGATRON_PATH"):
        named = Path(os.environ["MEGATRON_PATH"])
    if named is not None:
        source = _at(named, "a checkout", chosen=True)
        if source is None:
            raise InputError(
                "is no Megatron-LM",
                file=str(named),
                field="--megatron",
                need=f"a folder that holds {_ARGUMENTS}",
                hint="git clone https://github.com/NVIDIA/Megatron-LM",
            )
        return source
    for root in _installed():
        if source := _at(root, "the installed package", chosen=False):
            return source
    cached = cache_dir()
    return _at(cached, "the cached wheel", chosen=False) if cached is not None else None


def _installed() -> list[Path]:
    try:
        spec = importlib.util.find_spec("megatron")
    except (ImportError, ValueError):
        return []
    return [Path(place).parent for place in (spec.submodule_search_locations or ())] if spec else []


def installed_core() -> MegatronSource | None:
    """Return an installed megatron-core, with or without the trainer, or None."""
    for root in _installed():
        if (root / _PACKAGE_INFO).is_file():
            return MegatronSource(root, _version(root), "the installed package", chosen=False)
    return None


def _at(root: Path, origin: str, chosen: bool) -> MegatronSource | None:
    if not all(map(os.path.isfile, (root / _ARGUMENTS, root / _PACKAGE_INFO))):  # nor in a home that is closed to us
        return None
    return MegatronSource(root.resolve(), _version(root), origin, chosen)


def _version(root: Path) -> str:
    text = (root / _PACKAGE_INFO).read_text(encoding="utf-8")
    parts = dict(re.findall(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", text, flags=re.MULTILINE))
    return ".".join(parts.get(name, "0") for name in ("MAJOR", "MINOR", "PATCH"))


def download() -> Path:
    """Install the megatron-core wheel of WHEEL_SHA256 with pip into the cache, atomically, and return the folder.
    Nothing is downloaded if it is there. Raises SymconfigError if pip fails or there is no cache.
    """
    target = cache_dir()
    if target is None:
        raise SymconfigError("is needed to keep megatron-core in", field="XDG_CACHE_HOME or HOME")
    if _at(target, "the cached wheel", chosen=False):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        listed, fresh = Path(scratch, "requirements.txt"), Path(scratch, "wheel")
        listed.write_text(f"megatron-core=={RELEASE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
        command += ["--only-binary=:all:", "--python-version", WHEEL_PYTHON, "--platform", WHEEL_PLATFORM]
        command += ["--no-compile", "--target", str(fresh), "--require-hashes", "-r", str(listed)]
        ended = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=600, check=False
        )
        if ended.returncode:
            raise SymconfigError(f"pip could not fetch megatron-core {RELEASE}: {ended.stderr.strip()[-500:]}")
        fresh.rename(target)
    return target


def main() -> int:
    """Download Megatron and print where it is; return 0, or the exit code of an error, printed to standard error."""
    try:
        print(f"megatron-core {RELEASE} is in {download()}")
    except SymconfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a home that cannot be written to
        print(f"{error.filename}: cannot be written: {error.strerror}", file=sys.stderr)
        return SymconfigError.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`make dist`: what is uploaded, built, checked, and installed and run without a network on every Python that is here.

Wheels of the dependencies are fetched once into a folder, for each Python; everything after that gets no index, and,
where the system lets one, no network at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOM = ROOT / ".venv"
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
JOB = "plan --model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1024 --seq-length 4096 --out"
WRITTEN = {"plan.json", "launch.sh", "megatron_args.txt", "sbatch.sh", "REPORT.md"}
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a program and return what it prints; what fails ends everything, with what it said."""
    ended = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"error: {' '.join(map(str, words))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def interpreter(version: str) -> str | None:
    """Find a Python of a version that starts: on the path, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for place in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))):
        if place is not None:
            ended = subprocess.run(
                [place, "-c", "import sys, venv; print(sys.executable)"], capture_output=True, text=True
            )
            if ended.returncode == 0:
                return ended.stdout.strip()
    return None


def wheels(version: str) -> Path:
    """Fetch the dependencies of the package and of its build, as wheels for a Python; which need not be here."""
    house = ROOM / f"wheels-{version}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    given = ("--python-version", version, "--only-binary", ":all:", "--dest", house)
    run(sys.executable, *PIP, "download", *given, *needs)
    return house


def alone() -> tuple[str, ...]:
    """Return the words before a command that leave it no network; none where the system does not let one."""
    words = ("unshare", "--net")
    can = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if can else ()


def try_out(python: str, house: Path, package: Path) -> str:
    """Install a package into an empty environment, plan with it in an empty folder, and say what it is."""
    env = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house), "PIP_CONFIG_FILE": os.devnull}
    with tempfile.TemporaryDirectory(prefix="symconfig-dist") as folder:
        home, place = Path(folder, "venv"), Path(folder, "empty")
        place.mkdir()
        env |= {"HOME": folder}
        run(python, "-m", "venv", home)
        run(*alone(), home / "bin" / "python", *PIP, "install", package, cwd=place, env=env)
        run(home / "bin" / "python", *PIP, "check", cwd=place, env=env)
        run(*alone(), home / "bin" / "symconfig", *JOB.split(), "out", cwd=place, env=env)
        lacking = WRITTEN - {path.name for path in (place / "out").iterdir()}
        if lacking:
            sys.exit(f"error: {package.name} did not write {', '.join(sorted(lacking))}")
        return run(home / "bin" / "symconfig", "--version", cwd=place, env=env).strip()


def main() -> None:
    """Build, check, and try on every Python."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    packages = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    print(f"built and checked: {', '.join(f'{path.name} ({path.stat().st_size:,} bytes)' for path in packages)}")
    print(
        "no network while they are tried"
        if alone()
        else "no index while they are tried; the network cannot be cut here"
    )
    for version in PYTHONS:
        house, python = wheels(version), interpreter(version)
        if python is None:
            print(f"Python {version}: not on this machine; every dependency has a wheel for it")
            continue
        said = {try_out(python, house, package) for package in packages}
        print(f"Python {version}: wheel and source distribution installed and planned: {', '.join(said)}", flush=True)


if __name__ == "__main__":
    main()

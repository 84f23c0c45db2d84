"""Scripts of a folder, run with DRY_RUN=1 in a clean environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from symconfig.descriptor.document import MAX_BYTES
from symconfig.errors import InputError
from symconfig.existing.launch.bash.expand import unescaped
from symconfig.frameworks.megatron.hybrid import GPT_SCRIPT, SCRIPT
from symconfig.plans.plan import Plan
from symconfig.render.manifest import read_manifest
from symconfig.resources import content
from symconfig.verify.checks import Check, Options, Stopwatch

SCRIPTS = ("launch.sh", "sbatch.sh")  # of a folder without a manifest
# A line that ends a script without some variables, and one of these.
_NEEDS = re.compile(r"^\[\[ .*\]\] \|\| fail ", flags=re.MULTILINE)
_NEEDED = re.compile(r'-n "\$\{([A-Z][A-Z0-9_]*):-\}"')
MEGATRON_SCRIPTS = (GPT_SCRIPT, SCRIPT)
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$'((?:[^'\\]|\\.)*)'""", re.DOTALL)
ARGUMENTS = "megatron_args.txt"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The end of a script under DRY_RUN=1. `words`: the command it would start. `exported`: what that would inherit."""

    status: int
    words: tuple[str, ...]
    exported: Mapping[str, str]
    last_words: str  # the end of its standard error


def applies(plan: Plan) -> bool:
    return True


def checks(folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
    """Yield a check for each script of the folder, run with DRY_RUN=1; one skipped check without bash.

    Scripts are the manifest's .sh files, or SCRIPTS without a manifest; each missing one is a failed check. A run
    passes with status 0 and a printed command, launch.sh only with the words of megatron_args.txt, if that is there. If
    `options.refused` is set, nothing is run, and each check has its status.
    """
    watch = Stopwatch()
    if shutil.which("bash") is None:
        yield watch.check("scripts", "skipped", "there is no bash here")
        return
    options.progress("dry runs")
    manifest = read_manifest(folder)
    scripts = SCRIPTS if manifest is None else [name for name in manifest.files if name.endswith(".sh")]
    present = [name for name in scripts if (folder / name).is_file()]
    for name in scripts:
        if name not in present:
            yield watch.check(f"{name} is there", "failed", f"{folder / name} is missing")
    for name in present:
        yield _dry_run_check(folder, name, options)


def dry_run(folder: Path, name: str, timeout_s: float) -> DryRun:
    """Run a script with DRY_RUN=1 in a clean environment, and return its status, the words it prints, the variables it
    exports and the end of its standard error.

    Each variable without which the script fails is set to its own name in lower case. Status 124, without words, if it
    exceeds timeout_s.
    """
    bash = shutil.which("bash") or "bash"
    script = folder / name
    ends = " ".join(_NEEDS.findall(script.read_text(encoding="utf-8")) if script.is_file() else ())
    needed = {variable: variable.lower() for variable in _NEEDED.findall(ends)}
    with tempfile.TemporaryDirectory() as scratch:
        hook, exported = Path(scratch, "hook.sh"), Path(scratch, "exported")
        hook.write_text("trap 'env -0 > \"$SYMCONFIG_EXPORTED\"' EXIT\n", encoding="utf-8")
        path = os.pathsep.join(dict.fromkeys((str(Path(bash).parent), "/usr/local/bin", "/usr/bin", "/bin")))
        given = {**needed, "PATH": path, "DRY_RUN": "1", "BASH_ENV": str(hook), "SYMCONFIG_EXPORTED": str(exported)}
        try:
            ended = subprocess.run(
                [bash, name],
                cwd=folder,
                env=given,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return DryRun(124, (), {}, f"did not end within {timeout_s:.0f} s")
        inherited = exported.read_bytes().split(b"\0") if exported.is_file() else []
    pairs = (item.decode(errors="surrogateescape").partition("=") for item in inherited if item)
    shells_own = {*given, "PWD", "SHLVL", "_", "OLDPWD"}
    return DryRun(
        ended.returncode,
        tuple(words(ended.stdout.decode(errors="surrogateescape"))),
        {key: value for key, _, value in pairs if key not in shells_own},
        ended.stderr.decode(errors="replace").strip()[-500:],
    )


def words(text: str) -> list[str]:
    """Split text into words as bash does, including `$'...'`. Raise ValueError for an unterminated quote."""
    return shlex.split(
        _QUOTED.sub(lambda found: found[0] if found[1] is None else shlex.quote(unescaped(found[1])), text)
    )


def arguments(folder: Path) -> list[str]:
    """Return the words of megatron_args.txt. Raise InputError if it cannot be read, is no UTF-8 or no shell words."""
    path = folder / ARGUMENTS
    try:
        return words(content(path, MAX_BYTES).decode("utf-8"))
    except ValueError as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None


def _dry_run_check(folder: Path, name: str, options: Options) -> Check:
    """Return the check of one script's dry run: status 0 and a command; launch.sh must also pass exactly the words of
    megatron_args.txt, if present, behind Megatron-LM's script. Has the refusal's status if programs may not run.
    """
    watch = Stopwatch()
    title = f"{name} with DRY_RUN=1"
    if options.refused is not None:
        return watch.check(title, options.refused.status, options.refused.why)
    ran = dry_run(options.programs or folder, name, options.timeout_s)
    if ran.status:
        return watch.check(title, "failed", f"ended with status {ran.status}: {ran.last_words or 'it said nothing'}")
    if not ran.words:
        return watch.check(title, "failed", "printed no command")
    if name == "launch.sh" and (folder / ARGUMENTS).is_file():
        return _same_arguments(folder, ran, watch, title)
    return watch.check(title, "passed", f"prints a command of {len(ran.words)} words")


def _same_arguments(folder: Path, ran: DryRun, watch: Stopwatch, title: str) -> Check:
    """Return the check that launch.sh passes exactly the words of megatron_args.txt behind Megatron's script. Raises
    InputError if the file cannot be read.
    """
    script = next((place for place, word in enumerate(ran.words) if Path(word).name in MEGATRON_SCRIPTS), None)
    if script is None:
        return watch.check(title, "failed", f"does not start {' or '.join(MEGATRON_SCRIPTS)}")
    passed, written = list(ran.words[script + 1 :]), arguments(folder)
    pairs = enumerate(zip_longest(passed, written, fillvalue="missing"), start=1)
    for number, (one, other) in pairs:
        if one != other:
            what = f"passes other arguments than {ARGUMENTS}: word {number} is {one!r}, in the file {other!r}"
            return watch.check(title, "failed", what)
    return watch.check(title, "passed", f"passes the {len(passed)} words of {ARGUMENTS}")

"""The command as a process: entry points, streams, signals, what it imports; the same bytes in every locale."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from symconfig import __version__
from tests.cli import support
from tests.sample_plans import sample_plan

JOB = ["plan", *support.JOB]


def python(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_the_module_and_the_script_are_the_same() -> None:
    script = Path(sys.executable).with_name("symconfig")
    if not script.exists():
        pytest.skip("the script is not installed beside this interpreter")
    by_script = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=300, check=False)
    by_module = python("-m", "symconfig", "--help")
    assert by_module.returncode == by_script.returncode == 0
    assert by_module.stdout == by_script.stdout
    assert python("-m", "symconfig", "--version").stdout == f"symconfig {__version__}\n"


def test_bad_input_ends_the_process_with_2_and_no_traceback() -> None:
    ended = python("-m", "symconfig", *JOB[:-1], "-5", "--json")
    assert (ended.returncode, ended.stderr[:40]) == (2, "error: --global-batch-size: out of range")
    assert "Traceback" not in ended.stderr


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    """As `symconfig doctor | true`: 141 is what a shell shows for a process that SIGPIPE ended."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        command = [sys.executable, "-m", "symconfig", "doctor"]
        ended = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
@pytest.mark.parametrize(
    "words", [("list", "targets"), ("list", "targets", "--json"), ("verify", "--frozen", "none", "--json")]
)
def test_a_full_disk_is_a_sentence(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "symconfig", *words]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("error: ")


INTERRUPTED = """
import sys, time
from symconfig.api import planning
from symconfig.cli.main import main

def solve(*given, **named):
    print("here", flush=True)
    time.sleep(300)

planning.solve = solve
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupt_is_quiet_and_130() -> None:
    """In the middle of the work, which here says when it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


@cache
def undisturbed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with all its streams, once."""
    return python("-m", "symconfig", *words)


@pytest.mark.parametrize("words", [["plan", "--model", "x"], ["list", "models"]])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(words: list[str], closed: str) -> None:
    """And no file that is opened gets the number of one, into which somebody else would then write."""
    command, whole = [sys.executable, "-m", "symconfig", *words], undisturbed(*words)
    shut = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert shut.returncode == whole.returncode
    assert "Traceback" not in shut.stderr
    if closed == "2>&-":
        assert shut.stdout == whole.stdout


def test_files_are_written_though_nobody_reads(tmp_path: Path) -> None:
    words = ["plan", "--model", "llama2-7b", "--cluster", "h100", "--gpus", "8", "--global-batch-size", "64", "--out"]
    command = [sys.executable, "-m", "symconfig", *words, str(tmp_path / "run")]
    ended = subprocess.run(["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *command], timeout=300, check=False)
    assert ended.returncode == 0
    assert python("-m", "symconfig", "verify", "--frozen", str(tmp_path / "run")).returncode == 0


def test_text_that_the_terminal_cannot_show_is_escaped() -> None:
    ended = python("-m", "symconfig", "plan", "--model", "模型", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 2
    assert "\\u6a21" in ended.stderr


def imported(code: str) -> set[str]:
    """Names of the modules that are loaded after running `code`."""
    ended = python("-c", f"import sys\n{code}\nprint(*sys.modules)")
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


HEAVY = {"pydantic", "numpy", "sympy", "yaml", "rich", "pulp", "jinja2"}
HELP = "from symconfig.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
DOCTOR = "from symconfig.report.doctor import examine; examine()"


LOADED = "from symconfig.descriptor.load import load_model; load_model('llama3.1-405b')"
DOORS = "import symconfig; symconfig.megatron, symconfig.deepspeed, symconfig.transformers"
FRAMEWORKS = {"torch", "transformers", "deepspeed", "sympy"}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import symconfig", HEAVY),
        (HELP, HEAVY),
        (DOCTOR, {"torch", "deepspeed", "numpy"}),
        (LOADED, FRAMEWORKS | {"numpy", "pulp", "rich", "jinja2"}),
        (DOORS, FRAMEWORKS),
    ],
)
def test_what_needs_nothing_heavy_loads_nothing_heavy(code: str, heavy: set[str]) -> None:
    assert not imported(code) & heavy


@pytest.mark.parametrize(
    "first",
    ["", "import symconfig.plans.plan", "from symconfig.plans.plan import Plan", "import symconfig.api.planning"],
)
def test_symconfig_plan_is_a_function_whoever_imports_the_module_first(first: str) -> None:
    code = (
        f"{first}\nimport symconfig\nassert callable(symconfig.plan)\nfrom symconfig import plan, PlanResult\n"
        "try: plan(model='nope', cluster='nope', gpus=0, global_batch_size=1)\n"
        "except Exception as error: assert len(error.problems) == 3, error\nelse: raise SystemExit(1)"
    )
    imported(code)


# An encoding that has none of the plan's letters, and one that has some of them: a locale need not be installed for it.
MACHINES = {
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
    "nothing of a home": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "", "TZ": "Pacific/Kiritimati", "COLUMNS": "40"},
}
SAVED = "/daten/köln/模型"


COMMANDS = (
    ("render", "plan.json", "--print", "--null"),
    ("render", "plan.json", "--print", "--json"),
    ("render", "plan.json", "--target", "megatron", "--out", "out"),
)
CODE = f"from symconfig.cli.main import main\nfor words in {COMMANDS}: assert main(list(words)) == 0"


def answers(folder: Path, machine: dict[str, str]) -> dict[str, bytes]:
    """Return the words of a plan and their JSON, and every rendered file."""
    plan = sample_plan(dp=1, tp=1, training={"save": SAVED})
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    env = {**os.environ, "PYTHONUTF8": "1", **machine}  # UTF-8, whatever the tests run in
    ended = subprocess.run([sys.executable, "-c", CODE], cwd=folder, env=env, capture_output=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    words = ended.stdout.rpartition(b"}\n")[0]  # what the last command says is as wide as the machine's page
    files = (path for path in (folder / "out").rglob("*") if path.is_file())
    return {"words": words, **{str(path.relative_to(folder)): path.read_bytes() for path in files}}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return answers(tmp_path_factory.mktemp("usual"), {})


@pytest.mark.parametrize("machine", MACHINES)
def test_data_and_files_are_the_same_on_every_machine(machine: str, usual: dict[str, bytes], tmp_path: Path) -> None:
    assert answers(tmp_path, MACHINES[machine]) == usual
    assert all(SAVED.encode() in usual[name] for name in ("words", "out/megatron_args.txt"))

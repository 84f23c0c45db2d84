"""Every command's answer and its errors fit the page: a terminal of 80 columns, and pages of 80, 120 and 200."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from symconfig.cli.main import MODULES
from symconfig.verify import checks
from tests.cli.terminal import Seen, on_terminal
from tests.existing.adapt.scripts import array, options
from tests.measured.support import file_of as runs_of
from tests.measured.support import run_text
from tests.runs.checkpoint.folders import torch_dist
from tests.runs.sweep.support import file_of as sweep_of
from tests.runs.sweep.support import planned, replace_pool
from tests.sample_plans import sample_plan

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "train_13b.sh"
KERNEL_TIMES = ROOT / "tests" / "published" / "kernel_times" / "cpu.yaml"
WIDTHS = (80, 120, 200)
JOBS = {
    "dense": "--model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1024",
    "405b": "--model llama3.1-405b --cluster h100 --gpus 16384 --global-batch-size 2048 --seq-length 8192",
    "experts": "--model deepseek-v3 --cluster h100 --gpus 2048 --global-batch-size 15360 --pin tp=2 --pin pp=8",
    "lora": "--model llama2-70b-lora --cluster a100-80gb --gpus 8 --global-batch-size 64 --backend deepspeed",
}
TOO_LARGE = "plan --model llama3.1-405b --cluster h100 --gpus 8 --global-batch-size 256"


@dataclass(frozen=True, slots=True)
class Shelf:
    """What commands read, made once. Plans of JOBS are in folders of these names."""

    place: Path
    planned: dict[str, Seen]

    def __getitem__(self, name: str) -> str:
        return str(self.place / name)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    place = tmp_path_factory.mktemp("shelf")
    (place / "plan.json").write_text(sample_plan("llama2-13b", global_batch=128, tp=4, pp=2, dp=8).to_json())
    own = sample_plan("llama2-13b", tp=4, pp=2, dp=2, global_batch=32)
    (place / "own.json").write_text(own.to_json())
    (place / "train.sh").write_text(array(own, options(own)))
    (place / "bad.yaml").write_text("schema: symconfig.job/1\nmodel: llama2-14b\ngpus: many\nglobal_batch: 12\n")
    (place / "config.json").write_text(json.dumps({"model_type": "blt", "architectures": ["BltForCausalLM"]}))
    torch_dist(place / "saved", inside=True)
    sweep_of(place)
    runs_of(
        place,
        run_text("kor-a", "{step_s: 8.8, peak_allocated_gib: 60.0, memory_rank: max}"),
        run_text("kor-b", "{tokens_per_s_per_gpu: 718.6}", recompute="full"),
        run_text("kor-c", "{oom: true}", tp=1, dp=8),
        run_text("kor-e", "{step_s: 8.8}", gpu="abacus"),
    )
    jobs = {name: on_terminal(["plan", *job.split(), "--out", str(place / name)]) for name, job in JOBS.items()}
    return Shelf(place, jobs)


# Words are parted by blanks; {name} is on the shelf. A command's name may be followed by what tells cases apart.
ANSWERS = {
    "explain": "explain {405b}",
    "explain experts": "explain {experts}",
    "explain all": "explain {experts} --all",
    "timeline": "explain {405b} --timeline",
    "timeline of one stage": "explain {lora} --timeline",
    "targets": "list targets {experts}",
    "diff": "diff {dense} {405b}",
    "replan": "replan {dense} --gpus 56 --out {again}",
    "whatif changes": "whatif {own.json} --change seq_length=2048 --change global_batch_size=128,gpus=8",
    "whatif": "whatif {own.json} --vary network=0.9..1.1x",
    "replan near": "replan {plan.json} --gpus 32 --pin tp=4",
    "replan on fewer nodes": "replan {plan.json} --lose-nodes 1",
    "verify frozen": "verify --frozen {dense}",
    "render": "render {experts} --target bridge --out {bridge}",
    "render printed": "render {dense} --print",
    "checkpoint": "checkpoint {saved} --plan {plan.json}",
    "audit": f"audit {EXAMPLE} --cluster h200",
    "estimate": "estimate --model llama3.1-8b --cluster h100 --gpus 8 --global-batch-size 64 --pin tp=2",
    "rules": "list rules",
    "rule": "list rules layers-over-stages",
    "launchers": "list launchers",
    "options": "list options",
    "adapt": "adapt {train.sh} --plan {plan.json}",
    "partition": "partition --model llama2-7b --cluster h100 --gpus 8 --solver adaptive --global-batch-size 8 "
    "--num-microbatches 1 --baselines",
    "partition explained": "partition --model llama2-7b --cluster h100 --gpus 8 --solver adaptive "
    "--global-batch-size 8 --num-microbatches 1 --explain layers.*.gate_up_proj",
    "verify": "verify {dense}",
    "measure": f"measure --times {KERNEL_TIMES} --cluster a100-80gb --out {{profile.yaml}}",
    "calibrate": "calibrate {korthikanti2022.yaml}",
    "validate": "validate {korthikanti2022.yaml}",
    "sweep": "sweep {SWEEP.yaml} --out {table.csv}",
    "size": "size --model llama2-13b --clusters a100-80gb,h100 --tokens 1e10 --deadline 9d --gpus-max 64",
    "recipes": "list recipes --model deepseek-v3",
    "clusters": "list clusters",
    "models": "list models",
    "recipes of one": "list recipes mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1",
    "doctor": "doctor",
    "completion": "completion bash",
}
ERRORS = {
    "plan too large": TOO_LARGE,
    "plan of a file": "plan {bad.yaml}",
    "plan options": "plan --model llama2-13b --cluster h1000 --gpus 7 --global-batch-size 12 --pin tp=3 --pin ppp=2",
    "plan unknown": "plan --modle llama2-13b",
    "import": "import {config.json}",
    "serve": "serve --port 1x --workers 0",
    "replan": "replan {dense} --gpus 3 --release tp",
    "checkpoint nothing": "checkpoint {dense} --plan {plan.json}",
    "targets nothing": "list targets {nothing}",
    "render unknown": "render {dense} --target megatronn --out {x}",
    "validate nothing": "validate {nothing.yaml}",
    "unknown": "plot {dense}",
}
DATA = ("render printed", "import", "adapt", "completion")  # what they print is read by a program


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what takes long."""
    replace_pool(monkeypatch, planned)
    long = "differs from what the framework's own parser makes of it, in three places that are listed below " * 3
    found = [
        checks.Check("arguments", "passed", "all known", 0.1),
        checks.Check("ranks", "failed", long, 0.2, (checks.Compared("layers of stage 0", 8, 7, "count"),)),
        checks.Check("parser", "skipped", "no torch", 0.0),
    ]
    monkeypatch.setattr(checks, "verify", lambda folder, **options: found)


def too_long(text: str, columns: int) -> Iterator[str]:
    """Yield lines that are longer than the page, and not since a path, a name, or an option with its value is."""
    for line in text.splitlines():
        words = line.removesuffix(" \\").split()
        if len(line) > columns and len(words) > (2 if words[0].startswith("-") else 1):
            yield line


def fits(seen: Seen, *, data: bool = False) -> list[str]:
    """Return the lines that are too long on any page."""
    found = [*too_long("" if data else seen.out, 80), *too_long(seen.err.rpartition("\r")[2], 80)]
    for columns in WIDTHS:
        found += (line for page in seen.pages(columns) for line in too_long(page, columns))
    return found


@pytest.mark.parametrize("name", JOBS)
def test_a_plan_fits_the_page(shelf: Shelf, name: str) -> None:
    seen = shelf.planned[name]
    assert seen.code == 0, seen.err
    assert "Step: " in seen.out
    assert fits(seen) == []


@pytest.mark.parametrize("name", JOBS)
def test_the_report_of_a_plan_fits_a_page_of_80_columns(shelf: Shelf, name: str) -> None:
    report = (shelf.place / name / "REPORT.md").read_text(encoding="utf-8")
    assert [line for line in too_long(report, 80) if not line.startswith("    ")] == []  # commands, to be copied


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_fits_the_page(shelf: Shelf, name: str) -> None:
    if name == "completion":
        pytest.importorskip("shtab")
    seen = on_terminal(_words(ANSWERS[name], shelf))
    assert seen.code in (0, 1), seen.err
    assert seen.out
    assert fits(seen, data=name in DATA) == []


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_fits_the_page(shelf: Shelf, name: str) -> None:
    seen = on_terminal(_words(ERRORS[name], shelf))
    assert seen.code in (1, 2)
    assert seen.err.rpartition("\r")[2].startswith("error: ")
    assert fits(seen) == []


def _words(command: str, shelf: Shelf) -> list[str]:
    names = {name: str(shelf.place / name) for word in command.split() for name in [word.strip("{}")]}
    return [names[word[1:-1]] if word.startswith("{") else word for word in command.split()]


def test_every_command_is_tried() -> None:
    tried = {command.split()[0] for command in (*ANSWERS.values(), *ERRORS.values())} | {"plan"}
    assert set(MODULES) <= tried


def test_a_page_is_as_wide_as_it_is_where_piped_and_where_nothing_says_so_as_wide_as_it_must(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from symconfig.cli.main import main

    widest: Callable[[], int] = lambda: max(map(len, capsys.readouterr().out.splitlines()))  # noqa: E731
    for columns in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["explain", shelf["405b"]]) == 0
        assert widest() <= columns
    monkeypatch.delenv("COLUMNS")
    assert main(["explain", shelf["405b"]]) == 0
    assert widest() > WIDTHS[1]

"""`symconfig verify --frozen`: what was edited, what is stale, and what only looks so."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import symconfig
from symconfig.api import files as api
from symconfig.api import frozen as api_frozen
from symconfig.api.files import Wanted
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.plans.plan import Plan
from symconfig.render.files import File, Files
from symconfig.resources import data_dir
from tests.cli.support import Outcome, Run
from tests.sample_plans import sample_plan, signed

MANIFEST = {"schema": "symconfig.files/1", "target": "megatron", "launchers": [], "templates": None, "files": {}}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return sample_plan(load_model("llama2-13b"), load_cluster("a100-80gb"))


@pytest.fixture(scope="module")
def rendered(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rendered") / "out"
    api.write(plan, out, Wanted(), force=False)
    return out


@pytest.fixture
def out(tmp_path: Path, rendered: Path) -> Path:
    return Path(shutil.copytree(rendered, tmp_path / "out"))


def found(ended: Outcome) -> list[tuple[str, str]]:
    return [(each["kind"], each["path"]) for each in ended.json()["findings"]]


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


def test_what_was_just_written_passes(run: Run, out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    for place in (out, out / "plan.json"):
        assert "Nothing is edited or stale: 6 files" in run.done("verify --frozen", place).out
    assert found(run("verify --frozen", out, "--json")) == []
    assert symconfig.verify_frozen(out).passed


def test_an_edited_file_is_named_with_its_first_line_that_differs(run: Run, out: Path) -> None:
    edit(out / "launch.sh", "--lr 0.0003", "--lr 0.1")
    ended = run("verify --frozen", out, "--json")
    assert ended.code == 1
    (finding,) = ended.json()["findings"]
    lines = (out / "launch.sh").read_text().splitlines()
    assert finding["line"] == next(number for number, line in enumerate(lines, start=1) if "--lr 0.1" in line)
    assert (finding["written"].strip(), finding["found"].strip()) == ("--lr 0.0003", "--lr 0.1")
    text = run("verify --frozen", out)
    assert "written:     --lr 0.0003" in text.out
    assert f"symconfig render {out}/plan.json --target megatron --launcher slurm --out {out} --force" in text.out


def test_files_that_are_gone_or_no_programs_any_more_or_have_other_line_ends(run: Run, out: Path) -> None:
    (out / "trace.json").unlink()
    (out / "launch.sh").chmod(0o644)
    args = out / "megatron_args.txt"
    args.write_bytes(args.read_bytes().replace(b"\n", b"\r\n"))
    ended = run("verify --frozen", out, "--json")
    assert ended.code == 1
    said = {each["path"]: each for each in ended.json()["findings"]}
    assert said["trace.json"]["kind"] == "missing"
    assert "may not be executed" in said["launch.sh"]["said"]
    assert said["megatron_args.txt"]["found"].endswith("\\r\\n")


def test_what_another_symconfig_would_write_is_stale(run: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = api.files

    def changed(plan: Plan, wanted: Wanted) -> Files:
        items = [
            replace(item, text=item.text.replace("Slurm", "SLURM")) if item.path == "sbatch.sh" else item
            for item in real(plan, wanted)
            if item.path != "REPORT.md"
        ]
        return Files((*items, File("new.txt", "new\n")))

    monkeypatch.setattr(api_frozen, "files", changed)
    edit(out / "sbatch.sh", "#SBATCH", "# SBATCH")
    ended = run("verify --frozen", out, "--json")
    assert ended.code == 1
    assert found(ended) == [("edited", "sbatch.sh"), ("stale", "REPORT.md"), ("stale", "new.txt")]
    assert "would write something else now" in ended.json()["findings"][0]["said"]


def test_an_edited_plan_is_a_failed_check_and_one_that_cannot_be_read_bad_input(run: Run, out: Path) -> None:
    whole = (out / "plan.json").read_text()
    edit(out / "plan.json", '"micro": 1', '"micro": 2')
    ended = run("verify --frozen", out, "--json")
    assert ended.code == 1
    assert found(ended) == [("edited", "plan.json")]
    assert ended.json()["findings"][0]["said"].startswith("best: was edited")
    assert "--accept-edits" in run("verify --frozen", out).out
    (out / "plan.json").write_text(whole[:700])
    assert run("verify --frozen", out).code == 2


def test_inputs_that_changed_since_are_named_by_field(run: Run, out: Path, tmp_path: Path) -> None:
    data = json.loads((out / "plan.json").read_text())
    data["inputs"]["cluster"]["gpus_per_node"] = 4
    data["inputs"]["model"]["notes"] = ["of another time"]
    lone = tmp_path / "older.json"
    lone.write_text(signed(data))
    ended = run("verify --frozen", lone, "--json")
    assert ended.code == 1
    assert found(ended) == [("input", "inputs.model"), ("input", "inputs.cluster")]
    assert "a100-80gb is another one now: gpus_per_node 4 -> 8" in ended.json()["findings"][1]["said"]
    assert "no manifest.json beside the plan" in ended.json()["notes"][0]


def test_the_hint_names_the_model_that_has_changed(run: Run, tmp_path: Path, plan: Plan) -> None:
    """A plan for a model of one's own, whose file says something else now."""
    model, lone = tmp_path / "my model.yaml", tmp_path / "p.json"
    model.write_text((data_dir("model_zoo") / "models" / "llama2-7b.yaml").read_text())
    data = json.loads(plan.to_json())
    data["inputs"]["job"]["model"] = str(model)
    lone.write_text(signed(data))
    ended = run("verify --frozen", lone)
    assert ended.code == 1
    assert f"symconfig replan {lone} --model '{tmp_path}/my model.yaml' --out NEW" in " ".join(ended.out.split())


def test_templates_of_ones_own_must_be_named_and_are_held_too(run: Run, tmp_path: Path, plan: Plan) -> None:
    mine = tmp_path / "mine"
    (mine / "megatron").mkdir(parents=True)
    (mine / "megatron" / "own.txt.j2").write_text("tp {{ best.configuration.tp }}\n")
    out = tmp_path / "out"
    api.write(plan, out, Wanted(launchers=("slurm:env.A=a b",), templates=mine), force=False)
    run.done("verify --frozen", out, "--templates", mine)
    assert "--templates DIR" in run.refused("verify --frozen", out)
    (mine / "megatron" / "own.txt.j2").write_text("tp: {{ best.configuration.tp }}\n")
    ended = run("verify --frozen", out, "--templates", mine, "--json")
    assert ended.code == 1
    assert found(ended) == [("templates", str(mine)), ("stale", "own.txt")]
    again = " ".join(run("verify --frozen", out, "--templates", mine).out.split())
    assert f"--target megatron --launcher 'slurm:env.A=a b' --templates {mine} --out {out} --force" in again


def test_edits_that_force_replaces_are_named(run: Run, out: Path) -> None:
    """Also where nothing says what symconfig had written; and not what is as it was, or would be written the same."""
    assert run("render", out / "plan.json", "--out", out, "--force").err == ""
    edit(out / "launch.sh", "--lr 0.0003", "--lr 0.1")
    edit(out / "REPORT.md", "tp", "TP")
    said = "note: replaced what was not as symconfig had written it: launch.sh, REPORT.md"
    assert said in " ".join(run("render", out / "plan.json", "--out", out, "--force").err.split())
    (out / "launch.sh").write_text("mine")
    (out / "manifest.json").unlink()
    ended = run("render", out / "plan.json", "--out", out, "--force", "--json")
    assert ended.err.strip() == "note: replaced what was not as symconfig had written it: launch.sh"
    assert run("render", out / "plan.json", "--out", out, "--force", "--target", "bridge").err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the file ends in the middle"),
        ("{}", "this field is missing"),
        (json.dumps(MANIFEST | {"schema": "symconfig.files/2"}), "schema"),
        (json.dumps(MANIFEST | {"files": {"../x": "0" * 64}}), "is not a path inside the folder"),
        (json.dumps(MANIFEST | {"target": "cobol"}), "cobol"),
    ],
)
def test_a_manifest_that_is_none_is_bad_input_or_cannot_be_written(run: Run, out: Path, text: str, said: str) -> None:
    (out / "manifest.json").write_text(text)
    ended = run("verify --frozen", out)
    assert ended.code == (1 if said == "cobol" else 2)
    assert said in ended.err + ended.out


def test_a_folder_without_a_manifest_or_a_plan_is_bad_input(run: Run, out: Path, tmp_path: Path) -> None:
    (out / "manifest.json").unlink()
    assert "there is no manifest.json in this folder" in run.refused("verify --frozen", out)
    (out / "nodes-4").mkdir()
    (out / "nodes-4" / "manifest.json").touch()
    assert f"Try: one of {out}/nodes-4." in run.refused("verify --frozen", out)
    run.refused("verify --frozen", tmp_path)


def test_several_folders_are_frozen(run: Run, out: Path) -> None:
    assert run.done("verify --frozen", out, out / "plan.json").out.count("Nothing is edited or stale") == 2

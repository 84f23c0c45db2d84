"""Every launcher's files, for every target: what they hold, that scripts run and manifests read back."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster
from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, render, targets
from symconfig.render.files import Files
from symconfig.render.fill import as_yaml
from symconfig.render.launchers import label, sky_name
from symconfig.render.target import LAUNCHER_VARIABLES
from tests.render.bash import bash, dry_run, shellcheck
from tests.render.test_megatron_launch import TEXT
from tests.sample_plans import sample_model, sample_plan
from tools.generate import is_current, reference

NAMES = sorted(every_launcher())
SCRIPTS = {"slurm": "sbatch.sh", "torchrun": "rendezvous.sh", "deepspeed": "deepspeed.sh", "ray": "ray.sh"}
MANIFESTS = {"pytorchjob": "pytorchjob.yaml", "trainjob": "trainjob.yaml", "skypilot": "sky.yaml"}
ONE_LINE = TEXT.filter(str.isprintable).filter(lambda text: "," not in text)


def _plan(backend: str = "megatron", **overrides: Any) -> Plan:
    return sample_plan("llama2-13b-lora" if backend == "deepspeed" else "llama2-13b", backend=backend, **overrides)


def _documents(text: str) -> dict[str, Any]:
    """Of a manifest, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.mark.parametrize("backend", ["megatron", "deepspeed"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_scripts_are_clean_and_manifests_are_yaml(backend: str, nodes: int, tmp_path: Path) -> None:
    plan = _plan(backend, tp=1, pp=1, dp=8 * nodes)
    files = render(plan, backend, NAMES)
    for script in ("launch.sh", *SCRIPTS.values()):
        args = ("node0",) if script == "rendezvous.sh" else ()
        assert dry_run(files, tmp_path, script, *args)
        assert shellcheck(tmp_path / script) == ""
    for manifest in MANIFESTS.values():
        assert list(yaml.safe_load_all(files[manifest]))
        assert not [line for line in files[manifest].splitlines() if line != line.rstrip()]


@settings(max_examples=8, deadline=None)
@given(TEXT, ONE_LINE)
def test_hostile_names_and_values_stay_what_they_are(name: str, value: str) -> None:
    """In a ConfigMap, in a variable of a container, and in a script."""
    model = sample_model("llama2-13b-lora", name=name, huggingface_id=name)
    plan = sample_plan(model, backend="deepspeed", training={"save": f"/{name}"})
    files = render(plan, "deepspeed", [f"{each}:env.DATA={value}" for each in NAMES])
    for kind in ("PyTorchJob", "TrainJob"):
        found = _documents(files[MANIFESTS[kind.lower()]])
        assert found["ConfigMap"]["data"]["launch.sh"] == files["launch.sh"]
        assert found["ConfigMap"]["data"]["model__config.json"] == files["model/config.json"]
        assert found[kind]["metadata"]["name"] == label(name)
    variables = found["TrainJob"]["spec"]["trainer"]["env"]
    assert {"name": "DATA", "value": value} in variables
    assert yaml.safe_load(files["sky.yaml"])["envs"] == {"DATA": value}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shown = dry_run(files, folder / "out", "ray.sh", "--x", value, LOAD=value)
        variables = json.loads(shown[shown.index("--runtime-env-json") + 1])["env_vars"]
        assert json.loads(variables.pop("LAUNCH_WORDS")) == ["--x", value]
        assert variables == {"DATA": value, "LOAD": value}
        for script in ("sbatch.sh", "rendezvous.sh", "deepspeed.sh"):
            # the last lines would start something: with `env` in their place the script shows what it would pass on
            text = (folder / "out" / script).read_text().rpartition("exec ")[0].replace(":-0}", ":-}")
            (folder / script).write_text(text.partition("COMMAND=(")[0].partition("STEP=(")[0] + "\nenv -0\n")
            (folder / "hostfile").write_text("a slots=8\nb slots=8\n")
            done = bash(folder / script, "node0", cwd=folder)
            assert f"DATA={value}".encode() in done.stdout.split(b"\0"), done.stderr
        assert not list(folder.rglob("PWNED"))


@settings(max_examples=40, deadline=None)
@example("\ntouch PWNED\n", 1)
@example({"a": {"b": " x\ny"}}, 3)
@given(
    st.recursive(st.one_of(TEXT, st.integers(), st.booleans()), lambda inner: st.dictionaries(TEXT, inner)),
    st.integers(0, 8),
)
def test_the_yaml_filter_gives_back_what_it_was_given(value: object, indent: int) -> None:
    text = " " * indent + as_yaml(value, indent) + "\n"
    assert yaml.safe_load(text) == value or text.isspace()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["slurmy"], f"is not a launcher (got 'slurmy', need one of {', '.join(NAMES)})"),
        (["slurm", "slurm:time=1"], "is asked for twice"),
        (["slurm:big"], "is no setting (got 'big', need name=value)"),
        (["slurm:time=1,time=2"], "is set twice"),
        (["slurm:gpus=2"], "slurm:gpus: is not a setting of this launcher (need one of container-image, partition,"),
        (["slurm:partition=a b"], "slurm:partition: wrong value (got 'a b'"),
        (["slurm:partition=a\n#SBATCH --wrap"], "slurm:partition: wrong value"),
        (["pytorchjob:namespace=Team"], "pytorchjob:namespace: wrong value (got 'Team', need at most 53 of a-z"),
        (["pytorchjob:shm=much"], "a size such as 64Gi"),
        (["slurm:nodes=7-9"], "slurm:nodes: is not a setting of this launcher"),
        (["slurm:time=abc"], "slurm:time: wrong value (got 'abc', need a time as sbatch has it"),
        (["ray:env.2=1"], "is no name of a variable"),
        (["ray:env.A=1\n2"], "one printable line"),
    ],
)
def test_wrong_settings_are_told_with_what_there_is(asked: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        render(_plan(), "megatron", asked)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_launcher_tells_launch_sh_is_no_setting(name: str) -> None:
    for variable in LAUNCHER_VARIABLES:
        with pytest.raises(InputError, match=f"env.{variable}: is what the launcher itself tells launch.sh"):
            render(_plan(), "megatron", [f"{name}:env.{variable}=7"])
    assert render(_plan(), "megatron", [f"{name}:env.MASTER_PORT=7"])


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        render(_plan(), "megatron", ["slurm:x=1,partition=(", "nobody", "ray:y=2"])
    assert len(caught.value.problems) == 4


def test_settings_reach_the_files() -> None:
    asked = [
        "slurm:partition=big,container-image=nvcr.io/a:1",
        "skypilot:infra=k8s,image=docker:x,spot=true",
        "pytorchjob:name=mine,namespace=team,image=a/b:1,queue=q,claim=disk,mount=/mnt/d,shm=9Gi,resource=x/y,"
        "rdma=rdma/hca,restarts=3",
    ]
    files = render(_plan(), "megatron", asked)
    assert "#SBATCH --partition=big\n" in files["sbatch.sh"]
    assert "--container-image=nvcr.io/a:1 bash" in files["sbatch.sh"]
    sky = yaml.safe_load(files["sky.yaml"])
    assert sky["resources"] == {
        "accelerators": "A100-80GB:8", "network_tier": "best", "infra": "k8s", "image_id": "docker:x", "use_spot": True,
    }  # fmt: skip
    found = _documents(files["pytorchjob.yaml"])
    job = found["PyTorchJob"]
    assert {each["metadata"]["namespace"] for each in found.values()} == {"team"}
    assert job["metadata"]["name"] == "mine"
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert job["spec"]["runPolicy"]["backoffLimit"] == 3 * 8 + 1  # of eight pods, each of which starts again
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert [replicas[kind]["replicas"] for kind in ("Master", "Worker")] == [1, 7]
    pod = replicas["Worker"]["template"]["spec"]
    container = pod["containers"][0]
    assert (container["image"], container["resources"]) == ("a/b:1", {"limits": {"x/y": "8", "rdma/hca": "1"}})
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert {"name": "data", "mountPath": "/mnt/d"} in container["volumeMounts"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "disk"}} in pod["volumes"]
    assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": "9Gi"}


@pytest.mark.parametrize(("restarts", "policy", "limit"), [(0, "Never", 0), (1, "OnFailure", 9)])
def test_all_pods_start_again_or_none(restarts: int, policy: str, limit: int) -> None:
    """The operator's limit is on the restarts of all pods together; a JobSet's on those of the whole."""
    asked = [f"{name}:restarts={restarts}" for name in ("pytorchjob", "trainjob")]
    files = render(_plan(), "megatron", asked)
    job = _documents(files["pytorchjob.yaml"])["PyTorchJob"]["spec"]
    assert {each["restartPolicy"] for each in job["pytorchReplicaSpecs"].values()} == {policy}
    assert job["runPolicy"]["backoffLimit"] == limit
    jobs = _documents(files["trainjob.yaml"])["TrainingRuntime"]["spec"]["template"]["spec"]
    assert jobs["failurePolicy"] == {"maxRestarts": restarts}
    (node,) = jobs["replicatedJobs"]
    assert node["template"]["spec"]["backoffLimit"] == 0
    assert node["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", "skypilot", "ray"])
def test_checkpoints_that_would_be_lost_with_their_node_are_refused(name: str) -> None:
    plan = _plan("deepspeed", training={"save": "checkpoints"})
    with pytest.raises(InputError, match=f"launcher {name}: its checkpoints .* be lost with it") as error:
        render(plan, "deepspeed", [name])
    assert f"{name}:env.SAVE=" in str(error.value)
    assert render(plan, "deepspeed", [f"{name}:env.SAVE=/data/checkpoints"])
    with pytest.raises(InputError, match=r"an absolute training\.save in the job\.$"):
        render(_plan(training={"save": "checkpoints"}), "megatron", [f"{name}:env.SAVE=/data"])
    for shared in ("/data/checkpoints", "s3://bucket/checkpoints"):
        assert render(_plan(training={"save": shared}), "megatron", [name])


def test_skypilot_names_what_it_knows() -> None:
    """Every GPU of the zoo by the name that SkyPilot's own list has, or not at all."""
    from symconfig.descriptor.load import load_cluster
    from symconfig.resources import data_dir

    zoo = {
        path.stem: sky_name(load_cluster(path.stem).gpu.product)
        for path in (data_dir("model_zoo") / "clusters").glob("*.yaml")
    }
    assert {name for name, known in zoo.items() if known is None} == {
        "a800", "ascend-910b", "ascend-910c", "h800", "mi325x", "mi350x", "mi355x", "mi455x-helios",
        "vr200-nvl72",
    }  # fmt: skip
    assert (zoo["a100-40gb"], zoo["a100-80gb-pcie"], zoo["gb200-nvl72"]) == ("A100", "A100-80GB", "GB200")
    plan = sample_plan("llama2-13b", load_cluster("ascend-910b"))
    with pytest.raises(InfeasibleError, match="skypilot:accelerator=NAME"):
        render(plan, "megatron", ["skypilot"])
    assert "accelerators: Ascend910B:8\n" in render(plan, "megatron", ["skypilot:accelerator=Ascend910B"])["sky.yaml"]


def test_files_that_a_config_map_cannot_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "long.txt.j2").write_text("{% for i in range(99999) %}0123456789\n{% endfor %}")
    with pytest.raises(InfeasibleError, match="do not fit in a ConfigMap"):
        render(_plan(), "megatron", ["trainjob"], tmp_path)


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_a_launch_script_that_cannot_be_one_process_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / target).mkdir()
    own = '{% extends "base_launch.sh.j2" %}{% block command %}mine{% endblock %}'
    (tmp_path / target / "launch.sh.j2").write_text(own)
    for launcher in ("torchrun", "deepspeed"):
        with pytest.raises(InfeasibleError, match="this target starts its processes itself"):
            render(_plan(target), target, [launcher], tmp_path)


def _recorded(folder: Path, program: str) -> None:
    """A stand-in for a program, first on the PATH, that only tells its words and variables."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / program
    path.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" >"$RECORD"\nenv -0 >"$RECORD.env"\n')
    path.chmod(0o755)


def test_one_process_gets_the_very_arguments_of_torchrun(tmp_path: Path) -> None:
    files = render(_plan("deepspeed"), "deepspeed", ["torchrun"])
    under = dry_run(files, tmp_path, "launch.sh", "--x", "a b")
    alone = {"PER_RANK": "1", "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "16"}
    assert dry_run(files, tmp_path, "launch.sh", "--x", "a b", **alone) == ["python3", "-u", *under[11:]]
    _recorded(tmp_path, "python3")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    started = {**alone, "RECORD": str(tmp_path / "record"), "PATH": path, "MASTER_ADDR": "n0"}
    done = bash(tmp_path / "launch.sh", cwd=tmp_path, **started)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "record").read_text().split("\0")[:-1] == ["-u", *under[11:-2]]
    assert "OMP_NUM_THREADS=1" in (tmp_path / "record.env").read_text().split("\0")
    for missing in ({"RANK": ""}, {"WORLD_SIZE": "8"}):
        done = bash(tmp_path / "launch.sh", cwd=tmp_path, **{**started, **missing})
        assert done.returncode == 2
        assert b"PER_RANK=1 is for" in done.stderr or b"this plan is for 16 processes" in done.stderr


def test_rendezvous_gives_torchrun_the_place_to_meet(tmp_path: Path) -> None:
    files = render(_plan(), "megatron", ["torchrun:restarts=2"])
    shown = dry_run(files, tmp_path, "rendezvous.sh", "n7", "--x", "a b", RUN_ID="mine")
    assert shown == [
        "torchrun", "--nnodes", "8", "--nproc-per-node", "8", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n7:29500",
        "--rdzv-id", "mine", "--max-restarts", "2", "--no-python", "bash", f"{tmp_path}/launch.sh", "--x", "a b",
    ]  # fmt: skip
    for host, endpoint in {
        "n7:1": "n7:1",
        "fd00::7": "[fd00::7]:29500",
        "::1": "[::1]:29500",
        "[fd00::7]": "[fd00::7]:29500",
        "[fd00::7]:1": "[fd00::7]:1",
    }.items():
        assert endpoint in dry_run(files, tmp_path, "rendezvous.sh", host)
    for wrong in ((), ("--x",)):
        done = bash(tmp_path / "rendezvous.sh", *wrong, cwd=tmp_path)
        assert (done.returncode, b"which node do all meet at" in done.stderr) == (2, True)


def test_deepspeed_script_refuses_what_its_launcher_would_break(tmp_path: Path) -> None:
    files = render(_plan("deepspeed"), "deepspeed", ["deepspeed"])
    assert dry_run(files, tmp_path, "deepspeed.sh")[:2] == ["deepspeed", "--hostfile"]
    _recorded(tmp_path, "deepspeed")
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record"), "SAVE": "/a b"}
    assert bash(tmp_path / "deepspeed.sh", "--x", "a b", cwd=tmp_path, **env).returncode == 0
    assert (tmp_path / ".deepspeed_env").read_text().splitlines() == ["PER_RANK=1", "SAVE=/a b"]
    for args, more in ((("$HOME",), {}), ((), {"DATA": 'a"b'}), ((), {"DATA": "a\nb"})):
        done = bash(tmp_path / "deepspeed.sh", *args, cwd=tmp_path, **{**env, **more})
        assert (done.returncode, b"does not pass DeepSpeed's launcher" in done.stderr) == (2, True)
    (tmp_path / "few").write_text("a slots=8\n# b slots=8\n")
    done = bash(tmp_path / "deepspeed.sh", cwd=tmp_path, HOSTFILE=str(tmp_path / "few"), **env)
    assert (done.returncode, b"names 1" in done.stderr) == (2, True)


BY_RANK = ("torchrun", "deepspeed")


def _plans() -> tuple[Plan, ...]:
    return (
        sample_plan("llama2-13b", tp=2, pp=1, dp=8),
        sample_plan("llama2-13b", backend="deepspeed"),
        sample_plan("llama2-13b", load_cluster("ascend-910b"), version="core_v0.12.1"),
        sample_plan("llama2-13b-lora", backend="deepspeed"),
    )


def _rendered(target: str) -> tuple[Plan, Files]:
    """The target with the first plan that it can say."""
    for plan in _plans():
        try:
            return plan, render(plan, target, ())
        except InfeasibleError:
            continue
    pytest.skip("none of these plans can be said so")


def _is_within(text: str, longer: str) -> bool:
    """Whether every line of the text is in the longer one, in order."""
    lines = iter(longer.splitlines())
    return all(line in lines for line in text.splitlines())


@pytest.mark.parametrize("target", sorted(targets()))
def test_every_launcher_starts_every_target(target: str, tmp_path: Path) -> None:
    """All that start nodes do, and only add to the target's files; those that start processes do, or say why not."""
    plan, alone = _rendered(target)
    both = {name for name in every_launcher() if name not in BY_RANK}
    named = {
        "skypilot:accelerator=Ascend910B" if name == "skypilot" and target == "mindspeed" else name for name in both
    }
    files = render(plan, target, sorted(named))
    assert set(alone.paths()) < set(files.paths())
    for path in set(alone.paths()) - {"REPORT.md"}:
        assert files[path] == alone[path]
    assert _is_within(alone["REPORT.md"], files["REPORT.md"])
    for name in BY_RANK:
        if "PER_RANK" in alone["launch.sh"]:
            assert dry_run(render(plan, target, [name]), tmp_path / name, "launch.sh")
        else:
            with pytest.raises(InfeasibleError, match="this target starts its processes itself"):
                render(plan, target, [name])


def test_the_page_says_every_launcher_and_setting() -> None:
    assert set(reference.launchers()) == set(every_launcher())
    assert is_current("launchers"), "python -m tools generate launchers"


def test_deepspeeds_own_launcher_takes_the_hostfile_and_the_words(tmp_path: Path) -> None:
    """What pdsh would be told: both hosts, every slot, launch.sh with its words, and what the hosts have to know."""
    multinode = pytest.importorskip("deepspeed.launcher.multinode_runner")
    from deepspeed.launcher import runner

    files = render(sample_plan("llama2-13b-lora", backend="deepspeed"), "deepspeed", ["deepspeed"])
    words = dry_run(files, tmp_path, "deepspeed.sh", "--x", "a b")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepspeed").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "deepspeed").chmod(0o755)
    assert (
        bash(
            tmp_path / "deepspeed.sh",
            cwd=tmp_path,
            SAVE="/to here",
            DATA="x.jsonl",
            PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        ).returncode
        == 0
    )
    arguments = runner.parse_args(words[1:])
    pool = runner.parse_inclusion_exclusion(runner.fetch_hostfile(arguments.hostfile), "", "")
    active = runner.apply_num_nodes_and_gpus(pool, arguments.num_nodes, arguments.num_gpus)
    assert dict(active) == {"node-0": list(range(8)), "node-1": list(range(8))}
    started = multinode.PDSHRunner(arguments, runner.encode_world_info(active))
    for line in (tmp_path / ".deepspeed_env").read_text().splitlines():
        started.add_export(*line.split("=", 1))
    with mock.patch.dict(os.environ):
        command, _, _ = started.get_cmd(dict(os.environ), active)
    told = " ".join(command)
    assert 'export PER_RANK=1; export DATA=x.jsonl; export SAVE="/to here"; ' in told
    assert " --no_python --no_local_rank " in told
    assert told.endswith(f' {tmp_path}/launch.sh --x "a b"')
    assert "--master_addr=node-0 --master_port=29500" in told

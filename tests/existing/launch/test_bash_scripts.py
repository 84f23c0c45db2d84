"""Whole scripts: which command trains, what it is given, what stays dark, and where every character stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.launch.bash.read import Bash, read_bash
from symconfig.existing.launch.reading import Hides, Setting
from symconfig.existing.launch.text import Text
from tests.existing.launch.summary import places_hold


def read(script: str | bytes, *extra: str, folder: Path | None = None, **variables: str) -> Bash:
    data = script.encode() if isinstance(script, str) else script
    bash = read_bash(Text("run.sh", data), folder=folder, variables=variables, extra=extra)
    assert places_hold(bash.reading)
    return bash


def options(bash: Bash) -> dict[str, list[str]]:
    return {setting.name: [word.text for word in setting.values] for setting in bash.reading.settings}


def setting(bash: Bash, name: str) -> Setting:
    return next(each for each in bash.reading.settings if each.name == name)


def dark(bash: Bash) -> list[tuple[str, str]]:
    return [(item.what, item.why) for item in bash.reading.unread if item.matters]


STRING = """#!/bin/bash
TP=${TP:-8}
OPTS=" \\
    --tensor-model-parallel-size $TP \\
    --bf16 --lr 1.0e-5 \\
"
torchrun --nproc_per_node 8 pretrain_gpt.py $OPTS --split=98,2,0 --log-interval 1 2>&1 | tee log
"""


def test_a_string_of_options_is_split_and_keeps_its_places() -> None:
    bash = read(STRING)
    assert options(bash) == {
        "--tensor-model-parallel-size": ["8"],
        "--bf16": [],
        "--lr": ["1.0e-5"],
        "--split": ["98,2,0"],
        "--log-interval": ["1"],
    }
    assert bash.reading.complete
    text = bash.reading.texts[0]
    tp = setting(bash, "--tensor-model-parallel-size")
    (piece,) = tp.values[0].pieces
    assert piece.variables == ("OPTS", "TP", "TP")
    assert text.at(tp.values[0].place) == "$TP"
    assert text.at(tp.place) == "--tensor-model-parallel-size $TP"
    assert text.data[piece.place.start - 4 : piece.place.end + 1] == b"TP:-8}"
    split = setting(bash, "--split")
    assert split.joined
    assert text.at(split.values[0].place) == "98,2,0"


def test_the_environment_and_the_arguments_replace_defaults() -> None:
    bash = read(STRING + "", TP="4")
    assert setting(bash, "--tensor-model-parallel-size").values[0].text == "4"
    assert setting(bash, "--tensor-model-parallel-size").values[0].pieces[0].place is None
    assert options(read('torchrun a.py --x ${1:-3} "${@:2}"', "9", "--y", "a b")) == {"--x": ["9"], "--y": ["a b"]}


def test_array_elements_are_placed_where_they_are_written() -> None:
    bash = read("A=(\n  --x 1 # why\n  --y 'a b'\n)\nA+=(--z)\npython -m torch.distributed.run train.py \"${A[@]}\"\n")
    text = bash.reading.texts[0]
    assert options(bash) == {"--x": ["1"], "--y": ["a b"], "--z": []}
    assert text.at(setting(bash, "--y").place) == "--y 'a b'"
    assert text.at(setting(bash, "--z").place) == "--z"


@pytest.mark.parametrize(
    "line",
    [
        "srun --nodes 2 bash -c 'torchrun a.py --x 1'",
        "ksh -c 'torchrun a.py --x 1'",
        'CMD="torchrun a.py --x 1"; eval $CMD',
        'C="python a.py --x 1"; $C',
        'CMD="cd /x && python a.py --x 1"; echo $CMD; srun -l sh -c "$CMD"',
        "exec python -u a.py --x 1",
        "(python a.py --x 1) &",
        "A=1 nsys profile -o out python a.py --x 1",
        "docker run --gpus all image bash -lc 'python a.py --x 1'",
        "ray job submit -- python3 a.py --x 1",
        "deepspeed --num_gpus 8 a.py --x 1",
        "mpirun -np 8 python a.py --x 1",
        "accelerate launch --num_processes 8 a.py --x 1",
        'f() { python a.py "$@"; }; f --x 1',
        "time numactl -N 0 python a.py --x 1",
        "sbatch <<EOF\n#!/bin/bash\npython a.py --x 1\nEOF",
        "if true; then python a.py --x 1; fi",
        "python a.py \\\n  --x 1 \\\n",
        "nohup torchrun a.py --x 1 > log 2>&1 &",
        "sbatch --wrap='python a.py --x 1'",
        "\ufeffpython a.py --x 1",
        "python a.py --x 1\r\n",
    ],
)
def test_the_training_command_is_found_in_its_wrappers(line: str) -> None:
    bash = read(line)
    assert bash.reading.program.text == "a.py"
    assert options(bash) == {"--x": ["1"]}
    assert bash.reading.complete


@pytest.mark.parametrize(
    "line",
    [
        "torchrun $D src/train --x 1",
        "accelerate launch --num_processes 8 $D src/train --x 1",
        "ray job submit --address=X -- bash -c 'torchrun $D src/train --x 1'",
        "ray job submit --no-wait=1 -- src/train --x 1",
        "srun -n 8 python -m torch.distributed.run --nnodes 1 src/train --x 1",
    ],
)
def test_a_program_of_any_name_is_found_behind_its_launchers(line: str) -> None:
    bash = read(f'D="$(cat dist.txt)"\n{line}')
    assert (bash.reading.program.text, options(bash)) == ("src/train", {"--x": ["1"]})
    assert [what for what, _ in dark(bash)] == ["$D"] * ("$D" in line)


def test_a_line_of_options_has_no_program() -> None:
    bash = read("--num-layers 32 --bf16 --split 9 -1 -0.5")
    assert bash.reading.program is None
    assert options(bash) == {"--num-layers": ["32"], "--bf16": [], "--split": ["9", "-1", "-0.5"]}


def test_of_several_programs_the_one_that_trains_is_read() -> None:
    bash = read(
        "python tools/preprocess_data.py --a 1 --b 2 --c 3\ntorchrun pretrain_gpt.py --x 1\npython convert.py --z 1\n"
    )
    assert options(bash) == {"--x": ["1"]}
    assert [item.what for item in bash.reading.unread] == ["tools/preprocess_data.py", "convert.py"]
    assert bash.reading.complete


def test_options_under_an_unknown_condition_are_named_and_not_taken() -> None:
    bash = read(
        "O='--a 1'\nif [ $(date +%u) = 3 ]; then O=\"$O --b 2\"; fi\nA=(--c 3)\n[ $RANK = 0 ] && A+=(--d 4)\n"
        "python train.py $O ${A[@]} --e 5"
    )
    assert options(bash) == {"--a": ["1"], "--c": ["3"], "--e": ["5"]}
    assert [what for what, _ in dark(bash)] == ["--b", "--d"]
    assert all("condition that is not known" in why for _, why in dark(bash))
    assert [setting.name for setting in bash.reading.possible] == ["--b", "--d"]
    assert bash.reading.complete


def test_what_is_not_known_is_only_the_word_that_it_is_in() -> None:
    bash = read('python train.py --save "$DIR/$(date)" --load $DIR --lr 1 $EXTRA_ARGS')
    assert "$DIR" in str(setting(bash, "--save").values[0].unknown)
    assert "$DIR" in str(setting(bash, "--load").values[0].unknown)
    assert [what for what, _ in dark(bash)] == ["$EXTRA_ARGS"]


@pytest.mark.parametrize(
    "value",
    [
        "a{1,2}",
        "$((A | 2))",
        "$((010))",
        "${A/1/x}",
        "${A:1}",
        "${A^^}",
        "$((A ** 2))",
        "$((1 << 4))",
        "~/x",
        "<(ls)",
    ],
)
def test_what_is_not_followed_is_not_known(value: str) -> None:
    assert setting(read(f"A=17\npython train.py --x {value}"), "--x").values[0].unknown is not None


@pytest.mark.parametrize(
    "line", ["let TP=3", "mapfile -t TP < f", "[[ 3 =~ ^3 ]] && TP=3", "read TP", "while getopts TP o; do :; done"]
)
def test_what_sets_a_variable_in_a_way_that_is_not_followed_makes_it_unknown(line: str) -> None:
    bash = read(f"TP=8\n{line}\npython train.py --tp $TP")
    assert setting(bash, "--tp").values[0].unknown is not None or not bash.reading.complete


def test_checks_that_end_in_an_error_are_passed() -> None:
    bash = read(
        'if [ $# -lt 2 ]; then echo usage; exit 1; fi\nfail() { echo $1 >&2; exit 2; }\nN=4; ((N > 1)) && fail "many"\n'
        "case $1 in -h) exit;; esac\nwhile [ $# -gt 0 ]; do case $1 in --n) N=$2; shift;; esac; shift; done\n"
        "torchrun train.py --n $N"
    )
    assert options(bash) == {"--n": ["4"]}
    assert bash.reading.complete


def test_arguments_are_parsed_as_the_script_parses_them() -> None:
    script = (
        'N=1\nwhile [[ $# -gt 0 ]]; do case $1 in --n) N="$2"; shift 2;; --sp) SP=--sequence-parallel; shift;; '
        "*) break;; "
        'esac; done\npython train.py --n $N $SP "$@"'
    )
    assert options(read(script, "--n", "8", "--sp", "--more")) == {
        "--n": ["8"],
        "--sequence-parallel": [],
        "--more": [],
    }


def test_a_variable_that_is_tested_for_being_unset_has_its_default() -> None:
    bash = read('if [ -z "$TP" ]; then TP=8; fi\n: "${PP:=4}"\npython train.py --tp $TP --pp $PP')
    assert options(bash) == {"--tp": ["8"], "--pp": ["4"]}


def test_a_comment_inside_of_a_continued_command_ends_it() -> None:
    bash = read("torchrun train.py \\\n  --a 1 \\\n  # --b 2 \\\n  --c 3\n")
    assert options(bash) == {"--a": ["1"]}
    assert [what for what, _ in dark(bash)] == ["--c 3"]


def test_a_continuation_that_a_blank_follows_gives_a_word_and_ends_the_command() -> None:
    bash = read("torchrun train.py --a 1 \\ \n  --c 3\n")
    assert options(bash) == {"--a": ["1", " "]}
    assert [what for what, _ in dark(bash)] == ["--c 3"]


def test_placeholders_cost_only_their_variable() -> None:
    bash = read("DATA=<Specify path> (e.g., /x)\nTP=2\ntorchrun train.py --data-path $DATA --tp $TP\n")
    assert setting(bash, "--data-path").values[0].unknown == "is to be filled in"
    assert setting(bash, "--tp").values[0].text == "2"
    assert not dark(bash)


def test_files_that_the_script_writes_are_kept() -> None:
    bash = read(
        'Z=2\ncat <<EOF > ds.json\n{"stage": $Z, "x": ${Q:-3}}\nEOF\ncat > raw.json <<\'EOF\'\n{"a": "$Z"}\nEOF\n'
        "sed s/a/b/ t.json > made.json\ndeepspeed train.py --deepspeed_config ds.json --other made.json"
    )
    assert bash.virtual["ds.json"] == b'{"stage": 2, "x": 3}\n'
    assert bash.virtual["raw.json"] == b'{"a": "$Z"}\n'
    assert [what for what, _ in dark(bash)] == ["made.json"]


def test_crlf_and_lf_are_read_alike() -> None:
    bash = read(STRING.replace("\n", "\r\n"))
    assert options(bash) == options(read(STRING))
    assert bash.reading.complete
    assert bash.reading.texts[0].at(setting(bash, "--bf16").place) == "--bf16"


def test_the_environment_of_the_program() -> None:
    bash = read("export A=1\nB=2\nexport C\nC=3\nD=4 python train.py --x 1", E="5")
    assert {name: word.text for name, word in bash.reading.environment.items()} == {
        "A": "1",
        "C": "3",
        "D": "4",
        "E": "5",
    }


def test_a_name_that_is_exported_without_a_value_stays_exported_in_other_shells() -> None:
    bash = read("export A B\nsrun bash -c 'A=1; C=2; torchrun a.py --x 1'")
    assert {name: word.text for name, word in bash.reading.environment.items()} == {"A": "1"}


def test_sourced_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("TP=4\nsource conf/more.sh\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "more.sh").write_text("PP=2\n")
    script = (
        'DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n. gone.sh\nsource "$DIR/env.sh"\n'
        "source ~/venv/bin/activate\n"
        "python train.py --tp $TP --pp $PP"
    )
    bash = read(script, folder=tmp_path)
    assert options(bash) == {"--tp": ["4"], "--pp": ["2"]}
    assert [Path(text.file).name for text in bash.reading.texts] == ["run.sh", "env.sh", "more.sh"]
    assert dark(bash) == [("source gone.sh", "names a file that is not there")]


def test_files_that_source_each_other_are_refused_with_their_chain(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(". ./b.sh\n")
    (tmp_path / "b.sh").write_text(". ./a.sh\n")
    with pytest.raises(InputError, match=r"a\.sh -> b\.sh -> a\.sh"):
        read("source a.sh\npython train.py --x 1", folder=tmp_path)


def test_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "secret.sh").write_text("A=1\n")
    (tmp_path / "job" / "env.sh").symlink_to(tmp_path / "secret.sh")
    bash = read("source env.sh\npython train.py --x 1", folder=tmp_path / "job")
    assert [why.partition(",")[0] for _, why in dark(bash)] == [f"names a file outside of {tmp_path / 'job'}"]


def test_nothing_that_trains_is_an_error_with_what_was_seen() -> None:
    with pytest.raises(InputError, match=r"starts no training program.*grep"):
        read("grep x y\nmkdir z\n")


@pytest.mark.parametrize(
    "script",
    [
        "python -m pytest tests --x 1",
        "uv run pytest -x tests/test_train.py --y 3",
        "torchrun --nproc_per_node 8 -m pytest tests/test_train.py --y 3",
        "python -m pip install -r requirements.txt --upgrade",
    ],
)
def test_a_tool_is_no_training_program(script: str) -> None:
    with pytest.raises(InputError, match="starts no training program"):
        read(script)


def test_options_that_a_branch_may_add_cost_no_program() -> None:
    for started in (
        'docker exec box bash -lc "torchrun train.py --x 1 $A"',
        'docker exec box bash -lc "Z=1 \\\n swift sft --x 1 $A"',
        'C="torchrun train.py --x 1 $A"; eval $C',
        'C=(torchrun train.py --x 1 $A); "${C[@]}"',
    ):
        bash = read(f"A='--a 1'\npython monitor.py --out f &\nif [ $N = 1 ]; then A+=\" --y 2\"; fi\n{started}")
        assert bash.reading.program.text in ("train.py", "swift")
        assert (options(bash)["--x"], options(bash)["--a"]) == (["1"], ["1"])
        assert [what for what, _ in dark(bash)] == ["--y"]


@pytest.mark.parametrize("line", ['eval "$(python options.py)"', "export $(cat .env | xargs)", "declare $(options)"])
def test_code_that_is_not_known_is_taken_to_set_nothing(line: str) -> None:
    bash = read(f"TP=2\n{line}\npython train.py --tp $TP")
    assert options(bash) == {"--tp": ["2"]}
    assert [item.hides for item in bash.reading.assumptions] == [Hides.VARIABLES]


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="line that is too long"):
        read("python train.py --x " + "a" * (1 << 17))


@pytest.mark.parametrize(
    ("script", "nodes", "per_node", "gpus"),
    [
        ("torchrun --nproc_per_node 8 t.py --x 1", 1, 8, 8),
        ("torchrun --nproc-per-node=8 --nnodes=2:2 t.py --x 1", 2, 8, 16),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 t.py --x 1", None, 8, None),
        ("torchrun --nproc_per_node 8 --nnodes $NNODES t.py --x 1", None, 8, None),
        ("torchrun --nproc_per_node gpu t.py --x 1", 1, None, None),
        ("python -m torch.distributed.launch --nproc_per_node 4 t.py --x 1", 1, 4, 4),
        ("deepspeed --num_nodes 2 --num_gpus 4 t.py --x 1", 2, 4, 8),
        ("accelerate launch --num_processes 16 --num_machines 2 t.py --x 1", 2, 8, 16),
        ("mpirun -np 32 -npernode 8 python t.py --x 1", 4, 8, 32),
        ("srun -N 4 --ntasks-per-node=8 python t.py --x 1", 4, 8, 32),
        ("srun -N4 --gpus-per-node h100:8 python t.py --x 1", 4, 8, 32),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun python t.py --x 1", 4, 8, 32),
        (
            "#SBATCH -N 4 --ntasks-per-node 1\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 t.py --x 1",
            4,
            8,
            32,
        ),
        (
            "#SBATCH --nodes=4\nsrun bash -c 'torchrun --nnodes ${SLURM_NNODES:-1} --nproc_per_node 8 t.py --x 1'",
            4,
            8,
            32,
        ),
        ("msrun --worker_num 16 --local_worker_num 8 t.py --x 1", 2, 8, 16),
        ("deepspeed --include localhost:0,1,2,3 t.py --x 1", 1, 4, 4),
        ("deepspeed --include=worker-0:0,1@worker-1:2,3 t.py --x 1", 2, 2, 4),
        ("deepspeed -i worker-0:0,1@worker-1:2 t.py --x 1", None, None, 3),
        ("deepspeed --include worker-0@worker-1:0,2 t.py --x 1", 2, None, None),
        ("deepspeed --include worker-$RANK:0,2 t.py --x 1", None, None, None),
        ("deepspeed --exclude localhost:0 t.py --x 1", None, None, None),
        ("python t.py --x 1", None, None, None),
        ("CUDA_VISIBLE_DEVICES=0,2,5 deepspeed t.py --x 1", 1, 3, 3),
        ("CUDA_VISIBLE_DEVICES=0,2,5 deepspeed --num_gpus 2 t.py --x 1", 1, 2, 2),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_machines 2 t.py --x 1", 2, 2, 4),
        ("CUDA_VISIBLE_DEVICES=-1 deepspeed t.py --x 1", 1, None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun t.py --x 1", 1, None, None),
    ],
)
def test_numbers_of_gpus(script: str, nodes: int | None, per_node: int | None, gpus: int | None) -> None:
    world = read_bash(Text("run.sh", script.encode())).reading.world
    assert (world.nodes, world.gpus_per_node, world.gpus) == (nodes, per_node, gpus)


def test_a_number_from_a_comment_for_the_scheduler_is_placed_there() -> None:
    text = Text("run.sh", b"#SBATCH --nodes=4\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 8 t.py --x 1\n")
    words = read_bash(text).reading.world.words
    assert [text.at(word.pieces[0].place) for word in words if word.pieces[0].place] == ["4", "8"]
    assert words[0].pieces[0].variables == ("SLURM_NNODES",)

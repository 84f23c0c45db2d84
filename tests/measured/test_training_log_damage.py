"""Logs that are cut off, mixed up, or of runs that died: read as far as they go, and said so."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.measured.log_row import as_row
from symconfig.measured.training_log import TrainingLog, read_log
from tests.measured.log_samples import HEAD, deepspeed_log, iteration, megatron_log, memory, see_memory, write

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, content: str | bytes, name: str = "train.log") -> TrainingLog:
    return read_log(write(folder, content, name))


def kinds(log: TrainingLog) -> set[str]:
    return {remark.kind for remark in log.remarks}


def test_a_cut_last_line_is_said_and_its_number_is_not_believed(tmp_path: Path) -> None:
    whole = megatron_log(6)
    cut = whole + iteration(7, 1234.5)[: iteration(7, 1234.5).index("34.5")]
    log = read(tmp_path, cut)
    assert len(log.steps) == 6
    assert "truncated" in kinds(log)
    assert log.remarks[-1].line == whole.count("\n") + 1
    assert "truncated" not in kinds(read(tmp_path, whole))


def test_a_line_cut_before_its_batch_size_is_no_other_batch_size(tmp_path: Path) -> None:
    text = megatron_log()
    log = read_log(write(tmp_path, text[: text.rindex(" global batch size")]))
    assert not [remark for remark in log.remarks if remark.kind == "batch" or "another batch size" in remark.text]
    assert log.steady is not None
    assert log.steady.samples == 64


def test_a_cut_memory_report_is_not_believed(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log(6) + memory(0, 90_000.0)[:-6])
    assert max(item.max_allocated or 0 for item in log.memory) < 50_000 * 2**20


def test_a_cut_archive_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    noise = "".join(f"{random.Random(i).random()} noise\n" for i in range(2000))
    packed = gzip.compress((megatron_log() + noise).encode())
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    log = read_log(path)
    assert log.steady is not None
    assert "truncated" in kinds(log)


def test_lines_of_eight_ranks_count_once(tmp_path: Path) -> None:
    lines = [f"{rank}: {iteration(number, 1000 + rank)}" for number in range(1, 9) for rank in range(8)]
    log = read(tmp_path, "".join(lines))
    assert [step.iteration for step in log.steps] == list(range(1, 9))
    (remark,) = log.of_kind("interleaved")
    assert "56 lines" in remark.text
    assert not log.of_kind("restarted")


def test_ranks_that_trail_each_other_count_once(tmp_path: Path) -> None:
    order = [1, 2, 1, 3, 2, 4, 3, 5, 4, 5]
    log = read(tmp_path, HEAD + "".join(iteration(number, 1000) for number in order))
    assert [step.iteration for step in log.steps] == [1, 2, 3, 4, 5]
    assert not log.of_kind("restarted")


def test_lines_glued_together(tmp_path: Path) -> None:
    glued = iteration(3, 1000).rstrip("\n") + memory(0, 41_000.0).rstrip("\n") + iteration(4, 1000).rstrip("\n")
    log = read(tmp_path, iteration(1, 5000) + iteration(2, 5000) + glued + iteration(5, 1000))
    assert [step.iteration for step in log.steps] == [1, 2, 3, 4, 5]
    assert log.memory[0].max_allocated == 41_000 * 2**20


def test_arguments_with_other_ranks_lines_between(tmp_path: Path) -> None:
    head = HEAD.splitlines(keepends=True)
    mixed = [part for line in head for part in (line, "[rank5]: some warning ... about nothing\n", "WARNING: x\n")]
    log = read(tmp_path, "".join(mixed) + iteration(1, 1000))
    plain = read(tmp_path, HEAD + iteration(1, 1000))
    assert {name: log.arguments[name] for name in plain.arguments} == plain.arguments


def test_a_restart_from_a_checkpoint_warms_up_again(tmp_path: Path) -> None:
    first = HEAD + "".join(iteration(n, 5000 if n < 3 else 1000) for n in range(1, 11))
    second = HEAD + "  successfully loaded checkpoint from /checkpoints [ t 0/4, p 0/1 ] at iteration 5\n"
    second += "".join(iteration(n, 5000 if n < 8 else 1000) for n in range(6, 12))
    log = read(tmp_path, first + second)
    assert len(log.steps) == 16
    (remark,) = log.of_kind("restarted")
    assert "iteration 6 follows 10" in remark.text
    assert log.steady is not None
    assert (log.steady.high, log.steady.n) == (1.0, 12)


def test_a_restart_without_a_trace_is_seen_by_its_numbers(tmp_path: Path) -> None:
    numbers = [*range(100, 120), *range(105, 120)]
    log = read(tmp_path, "".join(iteration(n, 1000) for n in numbers))
    assert len(log.steps) == 35
    assert len(log.of_kind("restarted")) == 1
    assert not log.of_kind("interleaved")


def test_out_of_memory_says_when_and_on_which_rank(tmp_path: Path) -> None:
    died = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "pretrain_gpt.py", line 1, in <module>\n'
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity\n"
    )
    log = read(tmp_path, megatron_log(7) + died)
    assert log.out_of_memory == 7
    (remark,) = log.of_kind("out of memory")
    assert "after iteration 7 on rank 3" in remark.text
    assert log.steady is not None
    start = read(tmp_path, HEAD + died)
    assert start.out_of_memory == 0
    assert {"out of memory", "no steps"} <= kinds(start)


def test_only_warm_up_steps_give_no_steady_time(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log(2))
    assert log.steady is None
    assert "first 2 steps" in log.of_kind("no steps")[0].text


def test_a_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as file:
        file.write(megatron_log())
        for _ in range(20):
            file.write("x" * 2**20)
        file.write("\n" + iteration(11, 1000))
    tracemalloc.start()
    log = read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(log.steps) == 11
    assert peak < 2**21


def test_nothing_in_a_log_is_run_and_huge_numbers_do_no_harm(tmp_path: Path) -> None:
    evil = (
        HEAD.replace("32\n", "__import__('os').abort()\n", 1)
        + f" iteration {'9' * 30}/ 9 | elapsed time per iteration (ms): 1.0 |\n"
        + f" iteration 3/ 9 | elapsed time per iteration (ms): {'9' * 400} |\n"
        + "[config.py:987:print_user_config]   json = {"
        + "[" * 5000
        + "\n"
        + "}" * 9
        + "\n"
    )
    assert read(tmp_path, evil + iteration(4, 1000)).steps[0].iteration == 4


NAMES = (
    "num_layers",
    "hidden_size",
    "num_query_groups",
    "kv_channels",
    "seq_length",
    "micro_batch_size",
    "bf16",
    "tensor_model_parallel_size",
    "moe_layer_freq",
    "num_experts",
    "recompute_modules",
    "recompute_granularity",
    "multi_latent_attention",
    "cp_comm_type",
    "position_embedding_type",
)
VALUES = ("0", "-1", "1", "None", "True", "[]", "[0, 1]", "nan", "1e9", "x", "", "9" * 17, "full")
SAMPLE = megatron_log(6) + deepspeed_log(30) + "torch.OutOfMemoryError: x\n" + see_memory(3.0)
A100 = load_cluster("a100-80gb")


def reads(folder: Path, content: bytes, name: str = "train.log") -> None:
    """Whatever it is, it is read or refused in a sentence; and so is its row."""
    with suppress(InputError):
        as_row(read(folder, content, name), A100)


@FUZZ
@given(st.integers(0, len(SAMPLE)), st.integers(0, len(SAMPLE)))
def test_any_part_of_a_log_is_read(tmp_path: Path, start: int, end: int) -> None:
    reads(tmp_path, SAMPLE.encode()[min(start, end) : max(start, end)])


@FUZZ
@given(st.lists(st.sampled_from(SAMPLE.splitlines(keepends=True)), max_size=60))
def test_lines_in_any_order_are_read(tmp_path: Path, lines: list[str]) -> None:
    reads(tmp_path, "".join(lines).encode())


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.binary(max_size=6)), max_size=40))
def test_any_damage_to_bytes_is_read(tmp_path: Path, damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(SAMPLE.encode())
    for place, junk in damage:
        data[place : place + len(junk)] = junk
    reads(tmp_path, bytes(data))


@FUZZ
@given(st.binary(max_size=400), st.sampled_from(["train.log", "train.log.gz"]))
def test_any_bytes_are_read(tmp_path: Path, data: bytes, name: str) -> None:
    reads(tmp_path, data, name)


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8))
@example([("num_layers", "9" * 17), ("num_experts", "8")])  # whose list of layers no memory holds
def test_any_arguments_give_a_row_or_a_sentence(tmp_path: Path, damage: list[tuple[str, str]]) -> None:
    end = "-------------------- end of arguments"
    lines = "".join(f"  {name} {'.' * (48 - len(name))} {text}\n" for name, text in damage)
    reads(tmp_path, megatron_log(6).replace(end, lines + end).encode())

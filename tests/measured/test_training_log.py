"""Training logs as the frameworks print them, also cut off, mixed up, or of runs that died."""

from __future__ import annotations

import gzip
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError
from symconfig.measured.log_row import Additions, read_back
from symconfig.measured.training_log import TrainingLog, read_log
from symconfig.units import GIB, MIB
from tests.measured.log_samples import (
    HEAD,
    deepspeed_log,
    iteration,
    megatron_log,
    memory,
    see_memory,
    throughput,
    write,
)

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, content: str | bytes, name: str = "train.log", batch: int | None = None) -> TrainingLog:
    return read_log(write(folder, content, name), batch)


def steady(log: TrainingLog) -> tuple[float, int]:
    """Return the seconds of a steady step, and of how many times they are the median."""
    return pytest.approx(log.steady.seconds), log.steady.n


def test_megatron_steps_memory_and_arguments(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log())
    assert log.framework == "megatron"
    assert log.steady.seconds == pytest.approx(1.0065)  # steps 3 to 10
    assert (log.steady.n, log.steady.samples, log.steady.tflops_per_gpu) == (8, 64, 412.3)
    assert log.steady.low < log.steady.seconds < log.steady.high
    assert log.peaks == {
        rank: {"allocated": (40_000 + rank) * MIB, "reserved": (40_200 + rank) * MIB} for rank in (0, 1)
    }
    assert log.degrees == {"world": 8, "dp": 2, "cp": 1, "tp": 4, "pp": 1}
    assert log.vocab_size == 50257
    assert log.remarks == ("of 10 logged times left out: 2 of warm-up",)
    arguments = log.arguments
    assert (arguments["num_layers"], arguments["bf16"], arguments["add_bias_linear"]) == (32, True, False)
    assert (arguments["vocab_size"], arguments["init_method_std"], arguments["lr"]) == (None, 0.02, 3e-05)
    assert arguments["attention_backend"] == "AttnBackend.auto"
    assert arguments["data_path"] == "['/data/corpus', 'other']"
    assert arguments["delay_wgrad_compute_for_a_name_that_is_longer_than_dots"] is True


BAR = "".join(f" {n}%|####| {n}/100 [00:01<00:01]\r" for n in range(0, 100, 5))
PREFIXES = ("0: ", "  3: ", "[rank3]:", "[1,3]<stdout>:", "node-7: 12: ", "\x1b[32m[INFO]\x1b[0m ")
OTHERS = ("2024-05-01T12:00:00.123Z ", "(trainer pid=1234, ip=10.0.0.1) ", BAR)  # with which no JSON is read


@pytest.mark.parametrize("prefix", [*PREFIXES, *OTHERS])
@pytest.mark.parametrize("text", [megatron_log(), deepspeed_log()], ids=["megatron", "deepspeed"])
def test_prefixes_of_launchers_and_progress_bars_change_nothing(tmp_path: Path, prefix: str, text: str) -> None:
    plain = read(tmp_path, text)
    log = read(tmp_path, "".join(prefix + line for line in text.splitlines(keepends=True)))
    assert (log.arguments, log.steady) == (plain.arguments, plain.steady)
    if prefix in PREFIXES:
        assert log.config == plain.config


def test_gzip_and_windows_line_ends(tmp_path: Path) -> None:
    plain = read(tmp_path, megatron_log())
    assert read(tmp_path, megatron_log(), "train.log.gz").steady == plain.steady
    assert read(tmp_path, megatron_log().replace("\n", "\r\n")).steady == plain.steady


@pytest.mark.parametrize(
    "line",
    [
        " iteration        {i}/     500 | elapsed time per iteration (ms): 1234.5 | learning rate 1.500E-04 |\n",
        " [2026-01-01 00:00:00.123456] iteration {i}/ 500 | consumed samples: 64 | skipped samples: 0 | elapsed time "
        "per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 400.0 | energy per GPU (J/iter/GPU): 1.0 |\n",
        " iteration {i}/infinity | consumed samples: 64 | elapsed time per iteration (ms): 1234.5 | loss scale: 1.0 |"
        "\n",
        " iteration {i}/ 50 | consumed samples: 64 | elapsed time per iteration (ms): 1234.5/1300.0 | hip mem: |\n",
    ],
)
def test_step_lines_of_many_versions(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, "".join(line.replace("{i}", str(number)) for number in range(1, 6)))
    assert log.framework == "megatron"
    assert steady(log) == (1.2345, 3)


@pytest.mark.parametrize(
    ("times", "n"),
    [
        ({n: 2000 if n == 10 else 1000 for n in range(10, 60, 10)}, 4),  # means, of which the first has the warm-up
        # The first step is printed alone and counts in the next mean again (training_log of core_v0.19).
        ({1: 20_000, 10: 2900, 20: 1000, 30: 1000, 40: 1000}, 3),
        (dict.fromkeys(range(700, 705), 1000), 5),  # begins in the middle of a run
    ],
)
def test_the_warm_up_is_left_out(tmp_path: Path, times: dict[int, int], n: int) -> None:
    log = read(tmp_path, "".join(iteration(number, ms) for number, ms in times.items()))
    assert steady(log) == (1.0, n)


def test_a_ramp_of_the_batch_size_counts_its_most_frequent_size(tmp_path: Path) -> None:
    sizes = [16, 16, 16, 32, 64, 64, 64, 64]
    log = read(tmp_path, "".join(iteration(n, 10.0 * size, size) for n, size in enumerate(sizes, 1)))
    assert (log.steady.samples, log.steady.seconds) == (64, 0.64)
    assert "2 of another batch size than 64" in log.remarks[0]


def test_a_step_that_is_printed_again_counts_once(tmp_path: Path) -> None:
    """By another rank, or after a restart from a checkpoint."""
    lines = [f"{rank}: {iteration(number, 1000 + rank)}" for number in range(1, 9) for rank in range(8)]
    assert steady(read(tmp_path, "".join(lines))) == (1.0, 6)
    numbers = [*range(100, 120), *range(105, 125)]
    assert steady(read(tmp_path, "".join(iteration(n, 1000) for n in numbers))) == (1.0, 25)


def test_deepspeed_throughput_settings_and_memory(tmp_path: Path) -> None:
    log = read(tmp_path, deepspeed_log())
    assert log.framework == "deepspeed"
    assert steady(log) == (2.0, 5)  # 64 samples at 32 a second
    assert (log.config["zero_optimization.stage"], log.config["bf16.enabled"]) == (3, True)
    assert log.config["gradient_accumulation_steps"] == 4
    assert log.peaks[None] == {"allocated": 41.5 * GIB, "reserved": 44 * GIB}
    more = read(tmp_path, deepspeed_log() + "[Rank 3] MA 100.0 MB | Max_MA 200.0 MB | CA 300.0 MB | Max_CA 400 MB\n")
    assert more.peaks[3] == {"allocated": 200 * MIB, "reserved": 400 * MIB}


def test_deepspeed_without_a_batch_size_asks_for_it(tmp_path: Path) -> None:
    lines = "".join(throughput(step, 32.0) for step in (10, 20, 30))
    log = read(tmp_path, lines)
    assert log.steady is None
    assert log.needs_batch
    assert steady(read(tmp_path, lines, batch=64)) == (2.0, 2)


def test_deepspeed_pipeline_lines_go_before_samples_per_second(tmp_path: Path) -> None:
    lines = [
        f"steps: {step} loss: 6.1234 iter time (s): 1.250 samples/sec: 51.200\n" + throughput(step, 30.0)
        for step in (10, 20, 30)
    ]
    assert steady(read(tmp_path, "".join(lines))) == (1.25, 2)


def test_megatron_deepspeed_prints_both_and_megatrons_time_counts(tmp_path: Path) -> None:
    log = read(tmp_path, deepspeed_log() + megatron_log())
    assert log.framework == "deepspeed"
    assert steady(log) == (1.0065, 8)
    assert log.arguments["num_layers"] == 32


def test_trainers_summary_is_a_mean_over_the_run(tmp_path: Path) -> None:
    log = read(tmp_path, "{'train_runtime': 100.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5}\n")
    assert steady(log) == (2.0, 1)
    assert "only means over the run" in log.remarks[0]
    log = read(
        tmp_path,
        "  Instantaneous batch size per device = 2\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n"
        "  Gradient Accumulation steps = 64\n"
        "{'train_runtime': '100.0', 'train_samples_per_second': '100.0', 'train_steps_per_second': '0.098'}\n",
    )
    assert steady(log) == (10.24, 1)
    assert list(log.config.values()) == [2, 1024, 64]


def test_symconfigs_own_deepspeed_script(tmp_path: Path) -> None:
    lines = ["8 ranks: tp 2, cp 1, dp 4; micro-batch 2 x 4 x 4 sequences of 4096; 7,000 trained parameters\n"]
    lines += [
        f"step {step} loss 9.{step:06d} lr 1.000e-05 time {9.0 if step < 3 else 2.5:.4f} s tokens/s/GPU 6553.6 "
        f"peak {10 + step / 8:.3f} GiB\n"
        for step in range(1, 9)
    ]
    log = read(tmp_path, "".join(lines))
    assert log.framework == "deepspeed"
    assert steady(log) == (2.5, 6)
    assert log.peaks == {None: {"allocated": 11 * GIB}}
    assert log.config["seq_length"] == 4096
    assert log.config["train_batch_size"] == 64  # as DeepSpeed counts


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"hello\nworld\n", "not a training log"),
        (bytes(range(256)) * 40, "not a training log"),
        (b"\x1f\x8b\x08\x00garbage", "damaged archive"),
        (b"Traceback (most recent call last)\nRuntimeError: CUDA out of memory\n", "not a training log"),
    ],
)
def test_what_is_no_training_log_is_said(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        read(tmp_path, content)
    assert "train.log" in str(error.value)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.log"):
        with pytest.raises(InputError, match=r"this is a folder|there is no such file"):
            read_log(path)


def test_an_unfinished_line_or_archive_is_said_and_not_believed(tmp_path: Path) -> None:
    cut = iteration(7, 1234.5)[: iteration(7, 1234.5).index("34.5")]
    for more in (cut, memory(0, 90_000.0)[:-6]):
        whole, log = read(tmp_path, megatron_log(6)), read(tmp_path, megatron_log(6) + more)
        assert (log.steady, log.peaks) == (whole.steady, whole.peaks)
        assert "the last line has no end" in log.remarks[0]
    noise = "".join(f"{random.Random(i).random()} noise\n" for i in range(2000))
    packed = gzip.compress((megatron_log() + noise).encode())
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    log = read_log(path)
    assert log.steady is not None
    assert "the gzip archive is cut off or damaged" in log.remarks


def test_lines_glued_together(tmp_path: Path) -> None:
    glued = iteration(3, 1000).rstrip("\n") + memory(0, 41_000.0).rstrip("\n") + iteration(4, 1000).rstrip("\n")
    log = read(tmp_path, iteration(1, 5000) + iteration(2, 5000) + glued + iteration(5, 1000))
    assert steady(log) == (1.0, 3)
    assert log.peaks[0]["allocated"] == 41_000 * MIB


def test_out_of_memory_says_when(tmp_path: Path) -> None:
    died = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    log = read(tmp_path, megatron_log(7) + died)
    assert log.out_of_memory
    assert log.steady is not None
    assert "out of memory after iteration 7" in log.remarks
    start = read(tmp_path, HEAD + died)
    assert "out of memory before the first step" in start.remarks
    assert start.steady is None


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
    assert steady(read(tmp_path, evil + "".join(iteration(n, 1000) for n in (4, 5)))) == (1.0, 2)


NAMES = (
    "num_layers", "hidden_size", "num_query_groups", "kv_channels", "seq_length", "micro_batch_size", "bf16",
    "tensor_model_parallel_size", "moe_layer_freq", "num_experts", "recompute_modules", "recompute_granularity",
    "multi_latent_attention", "cp_comm_type", "position_embedding_type",
)  # fmt: skip
VALUES = ("0", "-1", "1", "None", "True", "[]", "[0, 1]", "nan", "1e9", "x", "", "9" * 17, "full")
SAMPLE = megatron_log(6) + deepspeed_log(30) + "torch.OutOfMemoryError: x\n" + see_memory(3.0)
A100 = load_cluster("a100-80gb")


def reads(folder: Path, content: bytes, name: str = "train.log") -> None:
    """Whatever it is, it is read or refused in a sentence; and so is its row."""
    with suppress(InputError):
        read_back(read(folder, content, name), A100, Additions())


@FUZZ
@given(st.lists(st.sampled_from(SAMPLE.splitlines(keepends=True)), max_size=60))
def test_lines_in_any_order_are_read(tmp_path: Path, lines: list[str]) -> None:
    reads(tmp_path, "".join(lines).encode())


@FUZZ
@given(
    st.integers(0, len(SAMPLE)),
    st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.binary(max_size=6)), max_size=40),
)
def test_any_damage_to_bytes_is_read(tmp_path: Path, end: int, damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(SAMPLE.encode())
    for place, junk in damage:
        data[place : place + len(junk)] = junk
    reads(tmp_path, bytes(data)[:end])


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

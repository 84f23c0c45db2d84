"""Training logs as the frameworks print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.measured.log_records import Memory
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


def read(folder: Path, content: str | bytes, name: str = "train.log", batch: int | None = None) -> TrainingLog:
    return read_log(write(folder, content, name), batch)


def seconds(log: TrainingLog) -> float:
    assert log.steady is not None
    return log.steady.seconds


def test_megatron_steps_memory_and_arguments(tmp_path: Path) -> None:
    log = read(tmp_path, megatron_log())
    assert log.framework == "megatron"
    assert [step.iteration for step in log.steps] == list(range(1, 11))
    assert log.steps[4].seconds == pytest.approx(1.005)
    assert log.steps[4].samples == 64
    assert log.steps[4].tflops_per_gpu == 412.3
    assert log.steady is not None
    assert log.steady.seconds == pytest.approx(1.0065)  # steps 3 to 10
    assert (log.steady.n, log.steady.samples) == (8, 64)
    assert log.steady.low < log.steady.seconds < log.steady.high
    peaks = [40_000 * MIB, 40_001 * MIB]
    assert [item.max_allocated for item in log.memory] == peaks
    assert log.memory[0] == Memory(0, 20_000 * MIB, 40_000 * MIB, 40_100 * MIB, 40_200 * MIB)
    assert log.degrees == {"world": 8, "dp": 2, "cp": 1, "tp": 4, "pp": 1}
    assert log.vocab_size == 50257
    assert [remark.kind for remark in log.remarks] == ["left out"]


def test_values_of_arguments_have_their_types(tmp_path: Path) -> None:
    arguments = read(tmp_path, megatron_log()).arguments
    assert arguments["num_layers"] == 32
    assert arguments["bf16"] is True
    assert arguments["add_bias_linear"] is False
    assert arguments["vocab_size"] is None
    assert arguments["init_method_std"] == 0.02
    assert arguments["lr"] == 3e-05
    assert arguments["attention_backend"] == "AttnBackend.auto"
    assert arguments["data_path"] == "['/data/corpus', 'other']"
    assert arguments["delay_wgrad_compute_for_a_name_that_is_longer_than_dots"] is True


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        "  3: ",
        "[rank3]:",
        "[default0]:",
        "[1,3]<stdout>:",
        "node-7: ",
        "node-7: 12: ",
        "\x1b[32m[INFO]\x1b[0m ",
        "2024-05-01T12:00:00.123456Z ",
        "(trainer pid=1234, ip=10.0.0.1) ",
    ],
)
def test_prefixes_of_launchers_change_nothing(tmp_path: Path, prefix: str) -> None:
    plain = read(tmp_path, megatron_log())
    log = read(tmp_path, "".join(prefix + line for line in megatron_log().splitlines(keepends=True)))
    assert log.steps == plain.steps
    assert log.arguments == plain.arguments
    assert log.memory == plain.memory
    assert log.steady == plain.steady


def test_gzip_and_windows_line_ends(tmp_path: Path) -> None:
    plain = read(tmp_path, megatron_log())
    assert read(tmp_path, megatron_log(), "train.log.gz").steps == plain.steps
    assert read(tmp_path, megatron_log().replace("\n", "\r\n")).steps == plain.steps


def test_progress_bars_with_carriage_returns(tmp_path: Path) -> None:
    bar = "\r".join(f" {percent}%|####| {percent}/100 [00:01<00:01]" for percent in range(0, 100, 5)) + "\r"
    log = read(tmp_path, "".join(bar + line for line in megatron_log().splitlines(keepends=True)))
    assert len(log.steps) == 10
    assert log.arguments["num_layers"] == 32


@pytest.mark.parametrize(
    "line",
    [
        " iteration        {i}/     500 | elapsed time per iteration (ms): 1234.5 | learning rate 1.500E-04 |\n",
        " [2026-01-01 00:00:00.123456] iteration {i}/ 500 | consumed samples: 64 | skipped samples: 0 | elapsed time "
        "per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 400.0 | energy per GPU (J/iter/GPU): 1.0 |\n",
        " iteration {i}/infinity | consumed samples: 64 | elapsed time per iteration (ms): 1234.5 | loss scale: 1.0 |"
        "\n",
        " iteration {i}/ 50 | consumed samples: 64 | elapsed time per iteration (ms): 1234.5/1300.0 | hip mem: |\n",
        "Step Time : 1.2345s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n iteration {i}/ 500 | consumed samples: 64 |\n",
        "Step Time : 1.23s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n [2026-01-01 00:00:00] iteration {i}/ 500 | "
        "elapsed time per iteration (ms): 1234.5 | learning rate: 1.0E-5 |\n",
        "Training epoch 0, iteration {i}/99 | lr: 1.5e-05 | global_batch_size: 64 | global_step: {i} | "
        "reduced_train_loss: 11.03 | train_step_timing in s: 1.2345 | consumed_samples: 128\n",
    ],
)
def test_step_lines_of_many_versions(tmp_path: Path, line: str) -> None:
    log = read(tmp_path, "".join(line.replace("{i}", str(number)) for number in range(1, 6)))
    assert log.framework == "megatron"
    assert [step.iteration for step in log.steps] == [1, 2, 3, 4, 5]
    assert seconds(log) == pytest.approx(1.2345)


def test_means_over_an_interval_count_the_first_one_as_warm_up(tmp_path: Path) -> None:
    log = read(tmp_path, "".join(iteration(number, 2000 if number == 10 else 1000) for number in range(10, 60, 10)))
    assert [step.covers for step in log.steps] == [10] * 5
    assert log.steady is not None
    assert (log.steady.n, log.steady.seconds) == (4, 1.0)


def test_the_first_step_that_newer_megatron_prints_alone(tmp_path: Path) -> None:
    """It counts in the next mean again (training_log of core_v0.19: timers are not reset after it)."""
    times = {1: 20_000, 10: 2900, 20: 1000, 30: 1000, 40: 1000}
    log = read(tmp_path, HEAD + "".join(iteration(number, ms) for number, ms in times.items()))
    assert [step.covers for step in log.steps] == [1, 9, 10, 10, 10]
    assert log.steady is not None
    assert (log.steady.n, log.steady.high) == (3, 1.0)


def test_a_log_that_begins_in_the_middle_of_a_run_has_no_warm_up(tmp_path: Path) -> None:
    log = read(tmp_path, "".join(iteration(number, 1000) for number in range(700, 705)))
    assert log.steady is not None
    assert log.steady.n == 5


def test_steps_after_evaluation_and_saving_and_skipped_ones_are_left_out(tmp_path: Path) -> None:
    lines = [iteration(number, 1000) for number in range(1, 21)]
    lines[5] = iteration(6, 100, skipped=1)
    lines[9] += "saving checkpoint at iteration      10 to /checkpoints in torch_dist format\n"
    lines[10] = iteration(11, 9000)
    lines[14] += " validation loss at iteration 15 on validation set | lm loss value: 6.0E+00 |\n"
    lines[15] = iteration(16, 8000)
    log = read(tmp_path, HEAD + "".join(lines))
    assert log.steady is not None
    assert (log.steady.n, log.steady.seconds, log.steady.high) == (15, 1.0, 1.0)
    (remark,) = log.of_kind("left out")
    assert "2 of warm-up" in remark.text
    assert "evaluated" in remark.text
    assert "skipped" in remark.text


def test_a_ramp_of_the_batch_size_counts_its_most_frequent_size(tmp_path: Path) -> None:
    sizes = [16, 16, 16, 32, 64, 64, 64, 64]
    log = read(tmp_path, "".join(iteration(n, 10.0 * size, size) for n, size in enumerate(sizes, 1)))
    assert log.steady is not None
    assert (log.steady.samples, log.steady.seconds) == (64, 0.64)
    assert log.of_kind("batch")


def test_deepspeed_throughput_settings_and_memory(tmp_path: Path) -> None:
    log = read(tmp_path, deepspeed_log())
    assert log.framework == "deepspeed"
    assert [step.iteration for step in log.steps] == [10, 20, 30, 40, 50, 60]
    assert seconds(log) == 2.0  # 64 samples at 32 a second
    assert log.config["zero_optimization.stage"] == 3
    assert log.config["bf16.enabled"] is True
    assert log.config["gradient_accumulation_steps"] == 4
    (item,) = log.memory
    assert item.max_allocated == 41.5 * GIB
    assert item.max_reserved == 44 * GIB


def test_deepspeed_without_a_batch_size_asks_for_it(tmp_path: Path) -> None:
    lines = "".join(throughput(step, 32.0) for step in (10, 20, 30))
    log = read(tmp_path, lines)
    assert log.steady is None
    assert "batch size" in log.of_kind("batch")[0].text
    assert seconds(read(tmp_path, lines, batch=64)) == 2.0


def test_deepspeed_pipeline_lines_go_before_samples_per_second(tmp_path: Path) -> None:
    lines = [
        f"steps: {step} loss: 6.1234 iter time (s): 1.250 samples/sec: 51.200\n" + throughput(step, 30.0)
        for step in (10, 20, 30)
    ]
    log = read(tmp_path, "".join(lines))
    assert seconds(log) == 1.25
    assert [step.covers for step in log.steps] == [10, 10, 10]


def test_megatron_deepspeed_prints_both_and_megatrons_time_counts(tmp_path: Path) -> None:
    text = deepspeed_log() + megatron_log()
    log = read(tmp_path, text)
    assert log.framework == "deepspeed"
    assert seconds(log) == pytest.approx(1.0065)
    assert log.arguments["num_layers"] == 32


def test_trainer_summary_is_a_mean_over_the_run(tmp_path: Path) -> None:
    log = read(tmp_path, "{'train_runtime': 100.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5}\n")
    assert seconds(log) == 2.0
    assert log.of_kind("averaged")


def test_trainers_batch_size_sharpens_its_summary(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "  Instantaneous batch size per device = 2\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n"
        "  Gradient Accumulation steps = 64\n"
        "{'train_runtime': '100.0', 'train_samples_per_second': '100.0', 'train_steps_per_second': '0.098'}\n",
    )
    assert seconds(log) == 10.24
    assert log.config == {
        "train_batch_size": 1024,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 64,
    }


def test_deepspeeds_first_two_steps_are_warm_up(tmp_path: Path) -> None:
    log = read(tmp_path, deepspeed_log(steps=6, every=1))
    assert log.steady is not None
    assert log.steady.n == 4
    log = read(tmp_path, deepspeed_log(steps=60, every=10))
    assert log.steady is not None
    assert log.steady.n == 6


def test_symconfigs_own_deepspeed_script(tmp_path: Path) -> None:
    lines = ["8 ranks: tp 2, cp 1, dp 4; micro-batch 2 x 4 x 4 sequences of 4096; 7,000 trained parameters\n"]
    lines += [
        f"step {step} loss 9.{step:06d} lr 1.000e-05 time {9.0 if step < 3 else 2.5:.4f} s tokens/s/GPU 6553.6 "
        f"peak {10 + step / 8:.3f} GiB\n"
        for step in range(1, 9)
    ]
    log = read(tmp_path, "".join(lines))
    assert log.framework == "deepspeed"
    assert log.steady is not None
    assert (log.steady.seconds, log.steady.high, log.steady.n) == (2.5, 2.5, 6)
    assert log.memory[0].max_allocated == 11 * GIB
    assert log.config["seq_length"] == 4096
    assert log.config["train_batch_size"] == 64  # as DeepSpeed counts


def test_oldest_deepspeed_has_a_running_mean(tmp_path: Path) -> None:
    memory_gb = "MemAllocated=1.0GB, MaxMemAllocated=2.0GB"
    lines = "".join(
        f"[INFO] [timer.py:157:stop] 0/{step}, SamplesPerSec={rate}, {memory_gb}\n"
        for step, rate in ((10, 30.0), (20, 32.0))
    )
    log = read(tmp_path, lines, batch=64)
    assert seconds(log) == 2.0
    assert log.memory[0].max_allocated == 2 * GIB


def test_memory_by_rank_keeps_the_highest_peak(tmp_path: Path) -> None:
    text = megatron_log() + memory(0, 50_000.0, 10) + memory(0, 30_000.0, 20) + memory(7, 1000.0)
    log = read(tmp_path, text)
    peaks = {item.rank: item.max_allocated for item in log.memory}
    assert peaks == {0: 50_000 * MIB, 1: 40_001 * MIB, 7: 1000 * MIB}


def test_memory_usage_in_megabytes_with_bars(tmp_path: Path) -> None:
    log = read(tmp_path, deepspeed_log() + "[Rank 3] MA 100.0 MB | Max_MA 200.0 MB | CA 300.0 MB | Max_CA 400 MB\n")
    assert Memory(3, 100 * MIB, 200 * MIB, 300 * MIB, 400 * MIB) in log.memory


def test_see_memory_usage_alone_is_a_log(tmp_path: Path) -> None:
    log = read(tmp_path, see_memory(10.0))
    assert log.steady is None
    assert log.of_kind("no steps")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"hello\nworld\n", "not a training log"),
        (bytes(range(256)) * 40, "binary"),
        (b"\x1f\x8b\x08\x00garbage", "gzip"),
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

"""What is fuzzed: readers of what people hand to symconfig, each with where its first inputs come from.

A reader gets any bytes. It may answer or refuse them in symconfig's own words (exit 0, 1 or 2); an exception of another
kind, a warning, or more processor time than `BUDGET_S` is a defect.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from symconfig.cli.main import main
from symconfig.errors import SymconfigError
from symconfig.existing.launch.bash import source as lexer
from symconfig.existing.launch.bash.read import read_bash
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_json, parse_yaml
from symconfig.plans.file import parse_plan
from symconfig.plans.plan import digest, signed
from symconfig.runs.checkpoint import folder
from tests.fuzz import KEPT, ROOT
from tests.measured.log_samples import deepspeed_log, megatron_log
from tests.measured.support import HEAD, run_text
from tests.runs.checkpoint.folders import archive, common
from tests.sample_plans import sample_plan

BUDGET_S = 10.0  # of the processor, for one input: a hundred times what the largest kept one takes
EXITS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader. seeds: what its corpus begins with, beside the inputs that are kept."""

    read: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]] = tuple


def _files(*patterns: str) -> Callable[[], Iterable[bytes]]:
    """Give the content of files of the tree."""
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _lexed(data: bytes) -> None:
    """Cut bytes into words: ranges lie inside, in order, and the lexer moves on."""
    end = len(data)
    ranges = lexer.words(data, 0, end)
    assert all(0 <= start <= stop <= end for start, stop in ranges)
    assert all(left[1] <= right[0] for left, right in pairwise(ranges))
    for start, stop in ranges:
        assert start < lexer.skip(data, start, stop) <= stop


def _bash(data: bytes) -> None:
    """Interpret bytes as a launch script, without the files beside it."""
    if b"\0" not in data:
        read_bash(Text("fuzz.sh", data.decode("utf-8", "ignore").encode()))


def _yaml(data: bytes) -> None:
    """Read YAML as a configuration of somebody else's."""
    parse_yaml(Text("fuzz.yaml", data.decode("utf-8", "ignore").encode()))


def _json(data: bytes) -> None:
    """Read JSON as a configuration of somebody else's; what it takes equals what Python's own reader takes."""
    text = data.decode("utf-8", "ignore")
    try:
        ours = parse_json(Text("fuzz.json", text.encode())).data
    except SymconfigError:
        return
    with contextlib.suppress(ValueError, RecursionError):  # comments and trailing commas are ours alone
        assert repr(json.loads(text)) == repr(ours)


def _pickle(data: bytes) -> None:
    """Read the plain values of a pickle."""
    folder.entries(data, ("iteration",))


def _command(*words: str, name: str, beside: Mapping[str, str] | None = None) -> Callable[[bytes], None]:
    """Hand bytes as a file of that name to a command, which is to end with an exit code for people's mistakes."""

    def read(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz", dir=_memory()) as folder:
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            for other, text in (beside or {}).items():
                Path(folder, other).write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = main([word.format(file=file, folder=folder) for word in words])
        assert code in EXITS, f"exit {code}"

    return read


def _memory() -> str | None:
    """Return a folder in memory, where there is one: a file is written for every input."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


_VALUES = (0, -1, 1, 3, 7, 10**9, 10**30, -1e300, 1e-300, 0.5, "", "x", None, True, False, [], {}, [0], "\u202e", "nan")


def _alter(tree: Any, data: bytes, *but: str) -> None:
    """Change values of a tree as the bytes say: a triple of bytes for each place and value; of no keys of `but`."""
    for place, low, value in zip(data[::3], data[1::3], data[2::3], strict=False):
        holders = [(holder, key) for holder, key in _leaves(tree) if key not in but]
        holder, key = holders[(place * 256 + low) % len(holders)]
        holder[key] = _VALUES[value % len(_VALUES)]


def _row(data: bytes) -> None:
    """Change values of a good measured row as the bytes say, and hold it against the model."""
    file = yaml.safe_load(HEAD + run_text("row", "{step_s: 1.42}"))
    _alter(file["rows"], data)
    _command("validate", "{file}", "--json", name="rows.yaml")(json.dumps(file).encode())


def _name(data: bytes) -> None:
    """Read the text of a cluster's name."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["list", "clusters", "--json", "--", data.decode("utf-8", "ignore")]) in EXITS


def _resigned(data: bytes) -> None:
    """Change values of a good plan as the bytes say, sign it anew, and read it."""
    plan = json.loads(_plan())
    _alter(plan, data, "digests")
    with contextlib.suppress(KeyError, TypeError, AttributeError, IndexError):  # no part is left to sign
        plan["digests"] = {name: digest(part) for name, (_, part) in signed(plan).items()}
    parse_plan(json.dumps(plan))


@cache
def _plan() -> str:
    """Write a good plan."""
    return sample_plan("llama2-13b").to_json()


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each holder with each of its keys or places."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _leaves(value[key])


_NAMES = (
    *(
        "h100 with network=4x200Gb/s and gpu_memory=96GB",
        "h100*16 + a100-80gb*16 over 100Gb/s",
        "gh200@400Gb/s per GPU",
    ),
    *(f"h100 with network={'9' * 5000}x4Gb/s", f"h100 with network={'9' * 400}Gb/s per GPU", "h100 with x=" * 101),
)
_SCRIPTS = _files("tests/existing/audit/corpus/*/*.sh")
_CLUSTERS = _files("model_zoo/clusters/*.yaml")
TARGETS: Mapping[str, Target] = {
    "lexer": Target(_lexed, _SCRIPTS),
    "bash": Target(_bash, _SCRIPTS),
    "yaml": Target(_yaml, _files("tests/existing/audit/corpus/yaml/*.yaml", "model_zoo/clusters/*.yaml")),
    "json": Target(_json, _files("tests/existing/audit/corpus/deepspeed/*.json")),
    "pickle": Target(_pickle, lambda: [pickle.dumps(common(), protocol) for protocol in range(6)]),
    "resigned": Target(_resigned),
    "row": Target(_row, lambda: [bytes((0, place, value)) for place in range(0, 40, 3) for value in range(0, 24, 5)]),
    "name": Target(_name, lambda: [text.encode() for text in _NAMES]),
    "script": Target(_command("audit", "{file}", "--no-plan", "--json", name="train.sh"), _SCRIPTS),
    "cluster": Target(_command("list", "clusters", "{file}", "--json", name="cluster.yaml"), _CLUSTERS),
    "config": Target(_command("import", "{file}", "--json", name="config.json")),
    "plan": Target(_command("explain", "{file}", name="plan.json"), lambda: [_plan().encode()]),
    "log": Target(
        _command("calibrate", "{file}", "--cluster", "h100", "--json", name="train.log"),
        lambda: [megatron_log(3).encode(), deepspeed_log(20).encode()],
    ),
    "checkpoint": Target(
        _command(
            *("checkpoint", "{folder}", "--json"),
            name="iter_0000001/mp_rank_00/model_optim_rng.pt",
            beside={"latest_checkpointed_iteration.txt": "1"},
        ),
        lambda: [archive(common())],
    ),
}


def hold(name: str, data: bytes) -> None:
    """Hand bytes to a target and hold what it does to the oracle. Raises what is a defect."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(SymconfigError):
            TARGETS[name].read(data)
    spent = time.process_time() - began
    assert spent < BUDGET_S, f"{spent:.1f} s of the processor"


def kept(name: str) -> list[Path]:
    """Return the inputs of a target that are kept: found by a run before, or a seed of its own."""
    return sorted(path for path in (KEPT / name).glob("*") if path.is_file())

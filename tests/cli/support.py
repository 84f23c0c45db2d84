"""Runs the command line in this process, with a search that answers at once where the search is not the subject."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from symconfig.cli.main import main

if TYPE_CHECKING:
    from symconfig.descriptor.cluster import ClusterDescriptor
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.model import ModelDescriptor
    from symconfig.plans.plan import Plan

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
JOB = ("--model", "llama2-13b", "--cluster", "a100-80gb", "--gpus", "64", "--global-batch-size", "1024")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and streams of one command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Run:
    """Runs a command, of which the first text is split at its blanks and further words stay as they are."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, command: str, *words: object) -> Outcome:
        code = main([*command.split(), *map(str, words)])
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(code, captured.out, captured.err)

    def done(self, command: str, *words: object) -> Outcome:
        """Run a command that ends with 0."""
        ended = self(command, *words)
        assert ended.code == 0, ended.err
        return ended

    def refused(self, command: str, *words: object, code: int = 2) -> str:
        """Return what a command says that ends with 2, or another code."""
        ended = self(command, *words)
        assert ended.code == code, ended.out + ended.err
        return ended.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@dataclass(slots=True)
class Asked:
    """What reached the search."""

    model: ModelDescriptor | None = None
    cluster: ClusterDescriptor | None = None
    job: Job | None = None
    top: int | None = None
    calls: int = 0


def replace_search(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Plan]) -> None:
    """Put `answer` where the search is, until the test ends."""
    import symconfig.existing.audit.steps  # noqa: F401  has a name of its own for it: first imported here, it kept `answer`

    monkeypatch.setattr("symconfig.solve.search.search", answer)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The search answers with a plan for the backend that was asked for, and remembers its arguments."""
    from tests.sample_plans import sample_plan

    seen = Asked()

    def search(
        model: ModelDescriptor,
        cluster: ClusterDescriptor,
        job: Job,
        *,
        top: int = 5,
        progress: object = None,
        effort: object = None,
    ) -> Plan:
        seen.model, seen.cluster, seen.job, seen.top = model, cluster, job, top
        seen.calls += 1
        return sample_plan("llama2-13b", backend=job.backend)

    replace_search(monkeypatch, search)
    return seen

"""`symconfig serve --mcp`: the planner as tools, called by a client of the official SDK."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from symconfig.serve.agents import TOOLS, answer
from tests.cli.support import Run

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")

JOB = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64}


def asked(what: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a client gets from a server that it has started."""

    async def session() -> Any:
        from mcp.client.stdio import StdioServerParameters

        started = StdioServerParameters(command=sys.executable, args=["-m", "symconfig", "serve", "--mcp"])
        async with mcp.Client(started) as client:
            return await what(client)

    return anyio.run(session)


def test_a_client_plans_and_writes_files(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "plan"

    async def conversation(client: Any) -> tuple[Any, Any, Any]:
        tools = await client.list_tools()
        planned = await client.call_tool("plan", {"job": JOB, "out": str(out)})
        again = await client.call_tool("replan", {"plan": str(out), "changes": {"gpus": 16}})
        return tools, planned, again

    tools, planned, again = asked(conversation)
    assert {tool.name for tool in tools.tools} == set(TOOLS)
    job = next(tool for tool in tools.tools if tool.name == "plan").input_schema
    jsonschema.validate({"job": JOB}, job)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in JOB.items()]
    expected = run("plan", *words, "--top", "5", "--json").json()
    assert not planned.is_error
    assert planned.structured_content["best"] == expected["best"]
    assert planned.content[0].text.startswith("llama2-7b on 8 x NVIDIA H100")
    assert json.loads((out / "plan.json").read_text())["best"] == expected["best"]
    assert not again.is_error
    assert again.structured_content["plan"]["best"]["parallel"] != expected["best"]["parallel"]


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("plan", {"job": {"model": "llama2-7b"}}, "job.cluster: this field is missing"),
        ("plan", {"job": {**JOB, "gpu": 8}}, "gpu: "),
        ("plan", {"job": {**JOB, "gpus": 1, "model": "llama3.1-405b"}}, "error: "),
        ("plan", {"job": JOB, "folder": "x"}, "folder: unknown field"),
        ("plan", {}, "job: this field is missing"),
        ("plan", {"job": JOB, "top": True}, "top: wrong type (got True, need a JSON integer)"),
        ("audit", {"source": "no/such.sh"}, "no/such.sh"),
        ("train", {}, "there is no such tool"),
    ],
)
def test_what_is_wrong_is_a_sentence(tool: str, arguments: dict[str, Any], sentence: str) -> None:
    text, data = answer(tool, arguments)
    assert data is None
    assert sentence in text


def test_estimates_audits_and_lists(tmp_path: Path) -> None:
    text, data = answer("estimate", {"job": {**JOB, "pins": {"tp": 2}}})
    assert "llama2-7b" in text
    text, data = answer("audit", {"source": "--num-layers 2 --hidden-size 64", "cluster": "h100"})
    assert "Verdict:" in text
    text, data = answer("list", {"kind": "clusters"})
    assert "h100" in data["clusters"]

"""The server: the commands' own answers, and nothing for those who should get none."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from symconfig import plan
from symconfig.serve import app
from symconfig.serve.app import Server, description
from tests.report.browser import browser, opened

JOB = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64, "seq_length": 4096}
LONG = {"model": "deepseek-v3", "cluster": "h800", "gpus": 2048, "global_batch_size": 15360, "seq_length": 4096}
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 64 --bf16 --lr 1e-4 --train-iters 10 --vocab-size 32000 --mock-data
"""
JSON = {"Content-Type": "application/json"}


class Client:
    """A client of a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """Send one request; data other than bytes as JSON. Return its status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {**(JSON if data is not None else {}), **(headers or {})})
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    def solved(self, kind: str, data: Any) -> dict[str, Any]:
        """Return the answer of a plan or audit."""
        status, body = self.ask("POST", f"/api/{kind}", data)
        assert status == 200, body
        *progress, last = [json.loads(line) for line in body.splitlines() if line]
        assert all("progress" in one for one in progress)
        return dict(last["answer"])

    def head(self, *more: str) -> socket.socket:
        """Send the head of a POST with further lines and no body."""
        one = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        lines = ("POST /api/plan HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *more, "", "")
        one.sendall("\r\n".join(lines).encode())
        return one


@contextmanager
def running(**limits: Any) -> Iterator[Client]:
    with Server(0, **limits) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Client(server.server_port)
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with running() as found:
        yield found


def test_a_plan_is_that_of_the_command(client: Client) -> None:
    found, expected = client.solved("plan", JOB), json.loads(plan(**JOB).to_json())
    for data in (found["plan"], expected):
        del data["search"]["seconds"]
    assert found["plan"] == expected
    assert found["files"]["megatron_args.txt"].split() == plan(**JOB).megatron_args()
    assert found["html"] == plan(**JOB).html()
    assert found["exit_code"] == 0


def test_a_job_that_does_not_fit_says_so(client: Client) -> None:
    found = client.solved("plan", {**JOB, "model": "llama3.1-405b"})
    assert found["exit_code"] == 1
    assert "nothing fits" in found["problems"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "/etc/passwd"},
        {"cluster": {"base": "/etc/passwd"}},
        {"gpus": "x" * 5000},
        {"training": {"data_path": "/etc"}},
        {"surprise": 1},
        {"model_config": [1]},
        {"model_config": {"model_type": "none-such", "auto_map": {"AutoModel": "os.system"}}},
    ],
)
def test_bad_jobs_are_answers_of_exit_code_2(client: Client, change: dict[str, object]) -> None:
    found = client.solved("plan", {**JOB, **change})
    assert found["exit_code"] == 2, found
    assert found["problems"]


def test_a_model_can_be_uploaded(client: Client) -> None:
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "_name_or_path": "</script>",
    }  # fmt: skip
    job = {name: value for name, value in JOB.items() if name != "model"}
    found = client.solved("plan", {**job, "model_config": config})
    assert found["exit_code"] == 0, found["problems"]
    assert "</script>" not in found["html"]


def test_a_script_is_audited_and_nothing_else_is_read(client: Client, tmp_path: Path) -> None:
    found = client.solved("audit", {"script": SCRIPT, "cluster": "h100"})
    assert found["exit_code"] == 0, found["problems"]
    assert found["audit"]["schema"].startswith("symconfig.audit/")
    secret = tmp_path / "secret.sh"
    secret.write_text("TOKEN=hunter2\nexport TP=4\n", encoding="utf-8")
    script = SCRIPT.replace("torchrun", f'source "{secret}"\necho $TOKEN\ntorchrun')
    assert "hunter2" not in json.dumps(client.solved("audit", {"script": script, "cluster": "h100"}))


@pytest.mark.parametrize("script", ["#!/bin/bash\n", "#!/bin/bash\necho hello\n", "a\0b", "{", SCRIPT])
def test_answers_do_not_name_the_folder_of_the_server(client: Client, script: str) -> None:
    assert "/tmp" not in json.dumps(client.solved("audit", {"script": script, "cluster": "h100"}))


def test_other_hosts_and_origins_get_nothing(client: Client) -> None:
    assert client.ask("GET", "/api/zoo")[0] == 200
    for method, path in [("GET", "/"), *(("POST", path) for path in ("/api/plan", "/none"))]:
        given = JOB if method == "POST" else None
        for host in ("planner.evil.example", f"evil.example:{client.port}"):
            assert client.ask(method, path, given, {"Host": host})[0] == 421
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{client.port + 1}"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert client.ask(method, path, given, headers)[0] == 403, headers
    assert client.ask("POST", "/api/plan", JOB, {"Content-Type": "text/plain"})[0] == 415
    assert client.ask("GET", "/%2e%2e/etc/passwd")[0] == 404


@pytest.mark.parametrize("body", [b'{"model": "\\ud800"}', b'{"\\udcff": 1}', b"[" * 100_000, b"[1]", b"\xff", b""])
def test_what_is_no_object_is_refused(client: Client, body: bytes) -> None:
    assert client.ask("POST", "/api/audit", body)[0] == 400


@pytest.mark.parametrize("length", [f"Content-Length: {200 << 20}", "Content-Length: x", "Transfer-Encoding: chunked"])
def test_large_bodies_are_refused_before_they_have_come(client: Client, length: str) -> None:
    with client.head(length) as one:
        assert b" 413 " in one.recv(1000)


def test_slow_clients_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app._Handler, "timeout", 0.5)
    with running() as quick:
        slow = [socket.create_connection(("127.0.0.1", quick.port), timeout=20) for _ in range(20)]
        slow += [quick.head("Content-Length: 50") for _ in range(20)]
        assert quick.ask("GET", "/api/zoo")[0] == 200
        for one in slow:
            while one.recv(1 << 16):
                pass
            one.close()


def test_too_many_searches_are_refused_and_closed_connections_end_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_WAITING", 1)
    body = json.dumps(LONG).encode()
    with running(workers=1) as small:
        taken = []
        for _ in range(2):  # one search, and one that waits
            taken.append(small.head(f"Content-Length: {len(body)}"))
            taken[-1].sendall(body)
            assert b" 200 " in taken[-1].recv(1000)
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: small.ask("POST", "/api/plan", LONG)[0], range(20)))
        assert set(answers) == {503}
        for one in taken:
            one.close()
        ends = time.monotonic() + 20
        while (status := small.ask("POST", "/api/plan", {})[0]) == 503:
            assert time.monotonic() < ends
            time.sleep(0.2)
        assert status == 200


def test_a_search_that_takes_too_long_or_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(solve_s=0.1) as small:
        assert "too long" in small.solved("plan", LONG)["problems"][0]
    monkeypatch.setattr(app, "MEMORY_BYTES", 150 << 20)
    with running() as small:
        (problem,) = small.solved("plan", LONG)["problems"]
        assert "memory" in problem


def test_every_address_is_described() -> None:
    assert set(description()["paths"]) == {"/api/zoo", "/api/plan", "/api/audit"}


def test_the_command_prints_its_address_on_this_machine() -> None:
    command = [sys.executable, "-u", "-m", "symconfig", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        port = int(address.removeprefix("http://127.0.0.1:").rstrip("/"))
        assert Client(port).ask("GET", "/")[0] == 200
        process.terminate()


def test_the_form_solves_cancels_and_audits(client: Client) -> None:
    """In a browser: the address keeps the fields, and what is wrong is said."""
    with browser() as started, opened(started, f"http://127.0.0.1:{client.port}") as seen:
        page = seen.page
        page.wait_for_selector("html[data-ready=yes]")
        page.fill("[name=gpus]", "8")
        page.fill("[name=global_batch_size]", "64")
        page.select_option("[name=model]", "llama2-7b")
        page.select_option("[name=cluster]", "h100")
        page.fill("[name=set]", "gpu_memory=96GB")
        page.select_option("[name=task]", "sft")
        page.get_by_role("button", name="Solve").click()
        page.wait_for_selector("#answer", timeout=120_000)
        assert "llama2-7b on 8 x" in page.locator("#result h1").inner_text()
        assert "--task sft" in page.inner_text("#files")
        assert "gpus=8" in page.url
        assert seen.serious() == []
        page.fill("[name=gpus]", "-3")
        page.get_by_role("button", name="Solve").click()
        page.locator("#status", has_text="gpus").wait_for(timeout=60_000)
        page.fill("[name=gpus]", "2048")
        page.fill("[name=global_batch_size]", "15360")
        page.select_option("[name=model]", "deepseek-v3")
        page.get_by_role("button", name="Solve").click()
        page.get_by_role("button", name="Cancel").click()
        page.locator("#status", has_text="Cancelled.").wait_for(timeout=60_000)
        page.get_by_text("Audit a launch script").click()
        page.fill("#script", SCRIPT)
        page.get_by_role("button", name="Audit it").click()
        page.wait_for_selector("#findings", timeout=120_000)
        assert page.locator("#result h1").inner_text().startswith("launch.sh: runs, ")
        assert seen.said == []

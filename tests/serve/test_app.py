"""The server: the commands' own answers, and nothing for those who should get none."""

from __future__ import annotations

import http.client
import io
import json
import multiprocessing
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from symconfig import plan
from tests.serve.running import Running, running

from symconfig.serve import work, workers  # isort: skip
from symconfig.serve.app import app  # isort: skip
from symconfig.serve.description import description
from symconfig.serve.guard import Guard
from symconfig.serve.workers import Bounds

JOB = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64, "seq_length": 4096}
LONG = {"model": "deepseek-v3", "cluster": "h800", "gpus": 2048, "global_batch_size": 15360, "seq_length": 4096}
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 64 --bf16 --lr 1e-4 --train-iters 10 --vocab-size 32000 --mock-data
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


def test_a_plan_is_that_of_the_command(server: Running) -> None:
    found = server.solved("plan", JOB)
    assert found["state"] == "done"
    expected = json.loads(plan(**JOB).to_json())
    for data in (found["plan"], expected):
        del data["search"]["seconds"]
    assert found["plan"] == expected
    page = server.ask("GET", f"/api/requests/{found['id']}/page").data
    assert page["lattice"]
    archive = zipfile.ZipFile(io.BytesIO(server.ask("GET", f"/api/requests/{found['id']}/files.zip").body))
    assert "launch.sh" in archive.namelist()
    assert archive.read("megatron_args.txt").decode().split() == plan(**JOB).megatron_args()


def test_a_job_that_does_not_fit_says_so(server: Running) -> None:
    found = server.solved("plan", {**JOB, "model": "llama3.1-405b"})
    assert (found["exit_code"], found["plan"]) == (1, None)
    assert "nothing fits" in found["problems"][0]
    assert server.ask("GET", f"/api/requests/{found['id']}/page").data["lattice"]
    assert server.ask("GET", f"/api/requests/{found['id']}/files.zip").status == 404


@pytest.mark.parametrize(
    "change",
    [
        {"model": "/etc/passwd"},
        {"model": "../../model_zoo/models/llama2-7b.yaml"},
        {"cluster": "/dev/zero"},
        {"cluster": {"base": "/etc/passwd"}},
        {"gpus": -1},
        {"gpus": "x" * 5000},
        {"pins": {"tp": "nonsense"}},
        {"training": {"data_path": "/etc"}},
        {"surprise": 1},
        {"model_config": [1]},
        {"model_config": {"model_type": "none-such", "auto_map": {"AutoModel": "os.system"}}},
    ],
)
def test_bad_jobs_are_answers_of_exit_code_2(server: Running, change: dict[str, object]) -> None:
    found = server.solved("plan", {**JOB, **change})
    assert found["exit_code"] == 2, found
    assert found["problems"]


def test_a_model_can_be_uploaded(server: Running) -> None:
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "_name_or_path": "</script>",
    }  # fmt: skip
    found = server.solved(
        "plan", {**{name: value for name, value in JOB.items() if name != "model"}, "model_config": config}
    )
    assert found["exit_code"] == 0, found["problems"]


def test_a_script_is_audited_and_nothing_else_is_read(server: Running, tmp_path: Path) -> None:
    found = server.solved("audit", {"script": SCRIPT, "cluster": "h100"})
    assert found["exit_code"] == 0, found["problems"]
    assert found["audit"]["schema"].startswith("symconfig.audit/")
    assert "/tmp" not in json.dumps(found)
    secret = tmp_path / "secret.sh"
    secret.write_text("TOKEN=hunter2\nexport TP=4\n", encoding="utf-8")
    for way in (str(secret), f"../..{secret}", f"../../../../../..{secret}"):
        script = SCRIPT.replace("torchrun", f'source "{way}"\necho $TOKEN\ntorchrun')
        stolen = server.solved("audit", {"script": script, "cluster": "h100"})
        page = server.ask("GET", f"/api/requests/{stolen['id']}/page").body
        assert b"hunter2" not in json.dumps(stolen).encode() + page


def test_other_hosts_and_origins_get_nothing(server: Running) -> None:
    assert server.ask("GET", "/api/zoo").status == 200
    assert server.ask("GET", "/api/zoo", headers={"Host": "planner.evil.example"}).status == 421
    assert server.ask("GET", "/", headers={"Host": f"evil.example:{server.port}"}).status == 421
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": f"http://127.0.0.1:{server.port + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert server.ask("POST", "/api/plan", JOB, headers).status == 403, headers
    assert server.ask("POST", "/api/plan", JOB, {"Content-Type": "text/plain"}).status == 415
    answer = server.ask("GET", "/")
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_server_for_others_wants_its_token() -> None:
    with running(token="s3cret") as guarded:
        assert guarded.ask("GET", "/").status == 401
        assert guarded.ask("GET", "/?token=wrong").status == 401
        assert guarded.ask("GET", "/?token=%ff%00").status == 401
        assert guarded.ask("GET", "/api/zoo", headers={"Cookie": "symconfig-token=wrong"}).status == 401
        for kind in ("Bearer wrong", "Bearer", "Basic s3cret"):
            assert guarded.ask("GET", "/api/zoo", headers={"Authorization": kind}).status == 401
        assert guarded.ask("GET", "/api/zoo", headers={"Authorization": "Bearer s3cret"}).status == 200
        first = guarded.ask("GET", "/?token=s3cret")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert guarded.ask("GET", "/api/zoo", headers={"Cookie": cookie.split(";")[0]}).status == 200
        foreign = {"Authorization": "Bearer s3cret", "Host": "planner.evil.example"}
        assert guarded.ask("GET", "/api/zoo", headers=foreign).status == 421


def test_every_address_wants_the_token_and_the_host() -> None:
    with running(token="s3cret") as guarded:
        for path, known in description()["paths"].items():
            for method in {"get", "post", "delete"} & set(known):
                given = JOB if method == "post" else None
                address = path.replace("{id}", "none")
                assert guarded.ask(method.upper(), address, given).status == 401, path
                bearer = {"Authorization": "Bearer s3cret"}
                assert guarded.ask(method.upper(), address, given, {**bearer, "Host": "evil.example"}).status == 421
                assert guarded.ask(method.upper(), address, given, {**bearer, "Origin": "null"}).status == 403
        for path in ("/none", "/api", "/%2e%2e/etc/passwd"):
            assert guarded.ask("GET", path).status == 401


PART = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


def test_large_bodies_are_refused_before_they_have_come(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", "/api/audit")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(200 << 20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/audit"), ("POST", "/api/plan"), ("GET", "/")])
def test_two_hundred_megabytes_in_pieces_are_not_taken(method: str, path: str) -> None:
    with running(idle_s=1) as small:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", small.port), timeout=30) as one:
            one.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            assert not _sends(one, 3200)  # 200 MB
        assert small.ask("GET", "/api/zoo").status == 200


def _sends(one: socket.socket, parts: int) -> bool:
    """Send so many parts, and return whether the other side let that happen."""
    try:
        for _ in range(parts):
            one.sendall(PART)
            time.sleep(0.001)
    except OSError:
        return False
    return True


def _closed_s(one: socket.socket, limit_s: float) -> float:
    """Wait until the other side has closed a connection, and return how long that took."""
    began = time.monotonic()
    one.settimeout(limit_s)
    while one.recv(1 << 16):
        pass
    return time.monotonic() - began


def test_slow_clients_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, heads and bodies that never end: each connection is closed."""
    monkeypatch.setattr("symconfig.serve.guard.BODY_S", 1.0)
    head = b"POST /api/plan HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = head + b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    with running(idle_s=1) as patient:
        slow = []
        for number in range(60):
            one = socket.create_connection(("127.0.0.1", patient.port))
            one.sendall((b"", head, body)[number % 3])
            slow.append(one)
        assert patient.ask("GET", "/api/zoo").status == 200
        for one in slow:
            assert _closed_s(one, 20.0) < 15
            one.close()
        again = http.client.HTTPConnection("127.0.0.1", patient.port, timeout=30)  # a head that stops, the second time
        again.request("GET", "/api/zoo")
        again.getresponse().read()
        assert again.sock is not None
        again.sock.sendall(head)
        assert _closed_s(again.sock, 20.0) < 15
        again.close()


def test_a_body_that_does_not_come_is_told_so(monkeypatch: pytest.MonkeyPatch, server: Running) -> None:
    monkeypatch.setattr("symconfig.serve.guard.BODY_S", 0.3)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", "/api/plan")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "50")
    connection.endheaders()
    connection.send(b"{")
    assert connection.getresponse().status == 408
    connection.close()


def test_fifty_clients_at_once(server: Running) -> None:
    found = server.solved("plan", JOB)
    paths = ["/", "/api/zoo", *(f"/api/requests/{found['id']}{end}" for end in ("", "/answer", "/page", "/files.zip"))]

    def client(_: int) -> list[bytes]:
        answers = [server.ask("GET", path) for path in paths]
        assert {one.status for one in answers} == {200}
        return [one.body for one in answers]

    with ThreadPoolExecutor(50) as pool:
        bodies = list(pool.map(client, range(50)))
    assert all(one == bodies[0] for one in bodies)


def test_too_many_searches_are_turned_away() -> None:
    with running(bounds=Bounds(workers=1, waiting=2)) as small:
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda _: small.ask("POST", "/api/plan", LONG), range(50)))
        taken = [one for one in answers if one.status == 202]
        assert len(taken) == 3
        assert {one.status for one in answers} == {202, 503}
        for one in taken:
            small.ask("DELETE", f"/api/requests/{one.data['id']}")
        assert small.solved("plan", JOB)["exit_code"] == 0


def test_a_search_can_be_cancelled() -> None:
    with running(bounds=Bounds(workers=1)) as small:
        taken = small.ask("POST", "/api/plan", LONG).data["id"]
        time.sleep(1.0)
        began = time.monotonic()
        assert small.ask("DELETE", f"/api/requests/{taken}").data["state"] == "cancelled"
        assert time.monotonic() - began < 5
        assert small.ask("GET", f"/api/requests/{taken}/answer").status == 409
        assert small.solved("plan", JOB)["exit_code"] == 0


def test_a_search_that_waits_can_be_cancelled() -> None:
    with running(bounds=Bounds(workers=1, waiting=1)) as small:
        first, second = (small.ask("POST", "/api/plan", LONG).data["id"] for _ in range(2))
        began = time.monotonic()
        assert small.ask("DELETE", f"/api/requests/{second}").data["state"] == "cancelled"
        assert time.monotonic() - began < 5
        assert small.ask("GET", f"/api/requests/{first}").data["state"] != "cancelled"
        assert small.ask("POST", "/api/plan", JOB).status == 202  # there is room again
        small.ask("DELETE", f"/api/requests/{first}")


def test_a_search_that_takes_too_long_is_ended() -> None:
    with running(bounds=Bounds(workers=1, solve_s=0.2)) as small:
        found = small.solved("plan", LONG)
        assert found["state"] == "failed"
        assert "too long" in found["problems"][0]


def test_a_worker_has_a_memory_limit_and_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "answer", lambda kind, data, say: {"made": len(bytearray(data["bytes"]))})
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=workers.serve, args=(theirs, 6 << 30), daemon=True)
    process.start()
    said = []
    for count in (8 << 30, 1 << 10):
        mine.send(("plan", {"bytes": count}))
        said.append(mine.recv()[1])
    process.kill()
    assert said[0]["problems"] == ["it needs more than 6,144 MiB of memory"]
    assert said[1] == {"made": 1 << 10}


@pytest.mark.parametrize("text", ['{"model": "\\ud800"}', '{"\\udcff": 1}', '{"script": "\\ud800x"}', "[" * 100_000])
def test_what_is_no_text_is_refused(server: Running, text: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/api/audit", text.encode(), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 400
    connection.close()


def test_errors_do_not_name_the_folder_of_the_server(server: Running) -> None:
    for script in ("#!/bin/bash\n", "#!/bin/bash\necho hello\n", "a\0b", "{"):
        found = server.solved("audit", {"script": script, "cluster": "h100"})
        assert "/tmp" not in json.dumps(found), found


def test_every_address_is_described() -> None:
    routes = {(route.path) for route in app(Guard(frozenset())).routes}
    assert routes - {"/", "/api/openapi.json"} == set(description()["paths"])


def test_ids_cannot_be_guessed(server: Running) -> None:
    assert server.ask("GET", "/api/requests/1").status == 404
    assert len(server.ask("POST", "/api/plan", JOB).data["id"]) >= 20


def test_threads_end_with_the_server() -> None:
    before = threading.active_count()
    with running() as one:
        one.ask("GET", "/api/zoo")
    assert threading.active_count() <= before + 1

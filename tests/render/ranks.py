"""A process that has imported torch, DeepSpeed, Transformers and PEFT once, and forks the ranks of a training script.

It stands in for torchrun: the file `torchrun` that it writes into its folder hands it the words of launch.sh. Importing
takes a rank ten times longer than training a tiny model. Usage: python ranks.py FOLDER; `ready` appears there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SHIM = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = {{"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}
server.sendall(json.dumps(request).encode() + b"\\n")
answer = json.loads(server.makefile().readline())
sys.stdout.write(answer["said"])
sys.exit(answer["status"])
"""
TIMEOUT_S = 120.0
# DeepSpeed's Muon alone takes a second to import, and the engine always imports it; so does an optimizer torch._dynamo.
IMPORTS = (
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.runtime.zero.stage3", "deepspeed.ops.adam",
    "deepspeed.runtime.sequence_parallel.ulysses_sp", "deepspeed.module_inject.auto_ep", "peft",
    "transformers.models.llama.modeling_llama", "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.qwen2.modeling_qwen2", "transformers.integrations.deepspeed")  # fmt: skip


def main(folder: Path) -> None:
    """Serve requests for ever: whoever started this ends it."""
    for name in IMPORTS:
        importlib.import_module(name)
    builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
    builders.ShareMemCommBuilder().load(verbose=False)  # compiled here the first time, and inherited by every rank
    adam = builders.CPUAdamBuilder()
    text = "".join(f'#include "{adam.deepspeed_src_path(source)}"\n' for source in adam.sources())
    joined = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "cpu_adam_joined.cpp"  # PyTorch's headers are read once
    if not joined.exists() or joined.read_text() != text:
        joined.write_text(text)
    adam.sources = lambda: [str(joined)]
    adam.load(verbose=False)
    gc.collect()
    gc.freeze()  # DeepSpeed collects garbage often, which would look through all that was imported
    address, shim = str(folder / "socket"), folder / "torchrun"
    shim.write_text(SHIM.format(python=sys.executable, address=address))
    shim.chmod(0o755)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    (folder / "ready").touch()
    while True:
        peer, _ = server.accept()
        with peer, contextlib.suppress(BrokenPipeError):
            request = json.loads(peer.makefile().readline())
            peer.sendall(json.dumps(_run(request, folder / "said")).encode() + b"\n")


def _run(request: dict[str, Any], said: Path) -> dict[str, Any]:
    """Fork the ranks that torchrun's words ask for, and wait for them; one that fails, or the time, ends the others."""
    words = request["words"]
    script = next(index for index, word in enumerate(words) if word.endswith(".py"))
    options = dict(zip(words[:script:2], words[1:script:2], strict=True))
    count = options["--nproc-per-node"]
    with said.open("wb") as out:
        left = {
            _fork(out.fileno(), request["folder"], words[script:], {
                **request["environment"], "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count,
                "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": options["--master-port"]})
            for rank in range(int(count))
        }  # fmt: skip
    failed, ends = False, time.monotonic() + TIMEOUT_S
    while left and not failed:
        time.sleep(0.01)
        ended = [os.waitpid(pid, os.WNOHANG) for pid in left]
        left -= {pid for pid, _ in ended}
        failed = time.monotonic() > ends or any(pid and status for pid, status in ended)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"status": int(failed), "said": said.read_text(errors="replace")}


def _fork(out: int, folder: str, words: list[str], environment: dict[str, str]) -> int:
    """One rank's process: the script as `python SCRIPT WORDS` would run it."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

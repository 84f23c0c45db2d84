"""Does every case with the real frameworks and keeps what came of them: `python -m tools verify checkpoints [NAME…]`.

Megatron-LM's code is found as `symconfig verify` finds it; for other releases $MEGATRON_SOURCES is a folder with a
checkout for each, under the release's name. What is kept, in seen.json, is what docs/evidence/checkpoints.md shows.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from symconfig.verify import megatron_source
from tests.render.deepspeed_support import start_ranks, stop
from tests.runs.checkpoint import cases, cases_deepspeed
from tests.runs.checkpoint.cases import Case
from tools.generate.evidence import SEEN
from tools.verify.checkpoints import deepspeed, megatron
from tools.verify.checkpoints.megatron import Done

RELEASE = "core_v0.19.0"


def main() -> int:
    """Do the cases that are named, or all, and keep what came of them; return 1 if one is not as said."""
    names = sys.argv[1:]
    every = {**cases.CASES, **cases_deepspeed.CASES}
    asked = {name: case for name, case in every.items() if not names or name in names}
    kept = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    count, failed, start = 0, 0, time.monotonic()
    for done in _done(asked):
        said = done.said
        count, failed = count + 1, failed + bool(done.wrong)
        kept[done.name] = {
            "kind": said.kind,
            "verdict": said.verdict,
            "refused": plain(done.plain),
            "wrong": list(done.wrong),
        }
        print(f"{time.monotonic() - start:4.0f} s  {done.name}: {said.verdict}", *done.wrong, sep="\n    ", flush=True)
        ordered = {name: kept[name] for name in every if name in kept}
        SEEN.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{count - failed} of {count} cases as said.")
    return int(failed > 0)


def plain(text: str) -> str:
    """The last error that it tells of, without this machine's folders."""
    last = [match.start() for match in re.finditer(r"\b\w+(?:Error|Exception): ", text)][-1:]
    return re.sub(r"/\S*/saved/", "CHECKPOINT/", text[last[0] if last else 0 :])[:400]


def _done(asked: Mapping[str, Case]) -> Iterator[Done]:
    one = {name: case for name, case in asked.items() if name in cases.CASES and case.writes == case.reads == RELEASE}
    found = megatron_source.find()
    if one and found is not None:
        yield from megatron.do(one, {RELEASE: found.root})
    folder = os.environ.get("MEGATRON_SOURCES")
    others = {name: case for name, case in asked.items() if name in cases.CASES and name not in one}
    if others and found is not None and folder:
        sources = {path.name: path for path in Path(folder).iterdir()}
        for name, case in others.items():
            yield from megatron.do({name: case}, {**sources, RELEASE: found.root})
    last = {name: case for name, case in asked.items() if name in cases_deepspeed.CASES}
    if last:
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "ranks").mkdir()
            extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR", f"{scratch}/extensions"))
            launcher, server = start_ranks(extensions, Path(scratch) / "ranks")
            try:
                yield from deepspeed.do(last, launcher, Path(scratch))
            finally:
                stop(server)

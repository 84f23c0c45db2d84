"""The process that plans for the local engine: a task a line comes in, its row goes out. Ends when its input does.

It takes no part in the interrupts of a terminal; whoever started it decides.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from symconfig.runs.sweep.task import Task, done


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    for line in sys.stdin:
        row = done(Task(**json.loads(line)))
        answers.write(json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""What a search has spent is its own seconds of the processor and those of its solvers."""

from __future__ import annotations

import subprocess
import sys
import time

from symconfig.solve.stages.clock import spent_s

WORK = "import time\nwhile time.process_time() < 0.3: open('/dev/null').close()"


def test_what_a_process_that_was_waited_for_has_worked_counts_and_sleep_does_not() -> None:
    before, mine = spent_s(), time.process_time()
    subprocess.run([sys.executable, "-c", WORK], check=True)
    time.sleep(0.05)
    between = spent_s() - before - (time.process_time() - mine)
    assert 0.28 < between < 1.0

"""Draws the views of a plan's page, and writes docs/page.md: `python docs/pages.py`, with Chromium and playwright."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.sweep import columns
from symconfig import partition, plan
from symconfig.api.page import report_page
from symconfig.report.page.partitioned import of_partition
from symconfig.report.partition import blocks
from symconfig.runs.candidates import COLUMNS, SCHEMA
from tests.report.page.browser import browser, opened

HERE = Path(__file__).parent
JOB = {"model": "mixtral-8x7b", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096}
WIDTH = 1000
VIEWS = {
    "plans": "The chosen plan, the best of each other way to split, and why the first is the first.",
    "time": "Seconds of a step by part, of each plan.",
    "memory": "What fills the fullest GPU of each plan, against what a plan may use; each pipeline stage's peak.",
    "sensitivity": "By how much the step changes where one constant of the GPU or of a link is off by its own "
    "uncertainty.",
    "weighed": "All of the lattice: a dot for each choice of degrees, micro-batch and ZeRO stage. Sliders are pins; a "
    "brush on an axis keeps what lies there. A click asks why not.",
    "why": "Any layout: what it costs, whether it fits, or which constraint forbids it.",
    "ranks": "Which ranks form a group, over which level of the network, and how much a GPU exchanges.",
    "schedule": "Every event of the step and every stage's memory below it; Ctrl with the wheel, the slider "
    "and buttons zoom.",
    "roofline": "Products and attentions against what the GPU could do at most.",
    "files": "What `plan --out` writes, to copy.",
}
HEAD = """# A plan as a page

```bash
symconfig plan --model mixtral-8x7b --cluster h100 --gpus 64 --global-batch-size 256 --html plan.html
```

writes one file (SIZE MB, drawn in SECONDS s here). It asks nothing of any network (its policy forbids it), so it can be
sent, opened offline and printed; it follows the system's light or dark. `--html` of `audit`, `replan`, `sweep`, `size`,
`validate`, `adaptability` and `partition` writes their answers the same way, with pictures of their own: of a partition
which GPUs hold the same part of any tensor, and what each operator takes and holds. Where nothing fits, the page says
what each layout would need. `--candidates FILE.csv` (or `.parquet`) writes [all that was weighed](#all-as-a-table) for
other programs. In a notebook, a `PlanResult` shows itself ([examples/plan.ipynb](../examples/plan.ipynb)).

`symconfig serve` (`pip install 'symconfig[serve]'`) is the same page with a form: a zoo model or a dropped
`config.json`, a cluster, a batch; a search runs in a worker, with progress and Cancel; sliders narrow what was weighed
at once and become pins of the next search; each state is a link; a dropped launch script is audited. It listens on this
machine alone; with `--host` others can ask it, with the token that it prints. What is uploaded is never executed and
not kept. Its addresses are described at `/api/openapi.json`; their answers are those of `plan --json` and
`audit --json`.

The charts are Apache ECharts, of which the page holds what it uses (`make echarts` builds it;
`symconfig/report/page/assets/echarts.LICENSE.txt`).

The views, of the plan above, drawn by `make pages`:
"""
PARTITION = """## A partition's page

The same GPUs coloured by the part of a tensor that each holds, the step and the memory by operator.

![A partition](pages/partition.png)
"""
TABLE = f"""## All as a table

The file of `plan --candidates` (contract `{SCHEMA}`, which Parquet names in its schema, beside what each column is) has
a row for each choice of degrees, micro-batch and ZeRO stage, the fastest first, then those that do not fit, then the
degrees that a constraint refuses. What a row has not is empty.

{columns(COLUMNS)}
"""


def main() -> None:
    """Write the pictures and the page."""
    folder = HERE / "pages"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, browser() as started:
        file = Path(work) / "plan.html"
        file.write_text(plan(**JOB).html(), encoding="utf-8")
        size = file.stat().st_size
        with opened(started, file, viewport={"width": WIDTH, "height": 900}) as seen:
            seen.page.wait_for_timeout(500)
            seconds = seen.run("performance.getEntriesByName('drawn')[0].startTime") / 1e3
            titles = {name: seen.text(f"#{name} h2") for name in VIEWS}
            for name in VIEWS:
                seen.page.locator(f"#{name}").screenshot(path=folder / f"{name}.png")
        said = partition(**{**JOB, "gpus": 16, "global_batch_size": 32}).said()
        file.write_text(report_page("a partition", blocks(said), of_partition(said)), encoding="utf-8")
        with opened(started, file, viewport={"width": WIDTH, "height": 900}) as seen:
            seen.page.locator("#pictures").screenshot(path=folder / "partition.png")
    parts = [f"## {titles[name]}\n\n{says}\n\n![{titles[name]}](pages/{name}.png)\n" for name, says in VIEWS.items()]
    head = HEAD.replace("SIZE", f"{size / 1e6:.2f}").replace("SECONDS", f"{seconds:.1f}")
    (HERE / "page.md").write_text("\n".join([head, *parts, PARTITION, TABLE]), encoding="utf-8")
    print(f"wrote page.md and {len(VIEWS)} pictures")


if __name__ == "__main__":
    main()

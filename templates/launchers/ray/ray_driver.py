"""Runs launch.sh once on every node of a Ray cluster, with the variables that it wants, and waits for all of them.

A placement group holds one bundle of GPUs on each of as many nodes, so nothing starts before all are free. When one
launch.sh fails, the others are stopped, and this program ends with its exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

WORDS = "LAUNCH_WORDS"  # a variable of the job: launch.sh's arguments as a JSON list
STOP_S = 30  # how long launch.sh may take to end after it was asked to


@ray.remote(max_retries=0)
def address() -> tuple[str, int]:
    """Where the first node can be reached, and a port that is free there."""
    with socket.socket() as free:
        free.bind(("", 0))
        return ray.util.get_node_ip_address(), free.getsockname()[1]


@ray.remote(max_retries=0)
def node(words: list[str], variables: dict[str, str]) -> int:
    """launch.sh on one node: its exit status. Cancelled, it stops launch.sh first."""
    process = subprocess.Popen(["bash", "launch.sh", *words], env={**os.environ, **variables})
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):  # Ray's interrupt is seen between two waits, not in one
                return process.wait(1)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def run(options: argparse.Namespace) -> int:
    """Place the nodes, start them, and wait: 0, or the status of the first that failed."""
    resource = {options.resource: options.gpus}
    group = placement_group([{**resource, "CPU": 1}] * options.nodes, strategy="STRICT_SPREAD")
    if not group.wait(options.timeout):
        print(
            f"ray_driver.py: no {options.nodes} nodes with {options.gpus} free {options.resource} and a CPU each in "
            f"{options.timeout} s; the cluster has {ray.cluster_resources()}",
            file=sys.stderr,
        )
        return 2

    def placed(index: int) -> dict[str, object]:
        # Ray refuses resources={"GPU": …}
        gpus = {"num_gpus": options.gpus} if options.resource == "GPU" else {"resources": resource}
        return {"num_cpus": 1, **gpus, "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}

    master, port = ray.get(address.options(**placed(0)).remote())
    words = json.loads(os.environ.get(WORDS, "[]"))
    common = {
        "NNODES": str(options.nodes),
        "GPUS_PER_NODE": str(options.gpus),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
    }
    waiting = [
        node.options(**placed(index)).remote(words, {**common, "NODE_RANK": str(index)})
        for index in range(options.nodes)
    ]
    while waiting:
        done, waiting = ray.wait(waiting)
        status: int = ray.get(done[0])
        if status:
            for other in waiting:
                ray.cancel(other)
            ray.wait(waiting, num_returns=len(waiting), timeout=2 * STOP_S)
            print(f"ray_driver.py: launch.sh ended with {status} on a node; the others were stopped", file=sys.stderr)
            return status
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run launch.sh once on every node of a Ray cluster.")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True, help="on each node")
    parser.add_argument("--resource", default="GPU", help="what Ray calls them")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds to wait for free nodes")
    options = parser.parse_args()
    ray.init(address="auto")
    return run(options)


if __name__ == "__main__":
    sys.exit(main())

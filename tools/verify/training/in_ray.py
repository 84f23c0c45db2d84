"""Submits a folder's ray.sh to a real Ray cluster on this machine, whose log it prints.

Usage: python in_ray.py NODES GPUS, in the folder, with the Python that has Ray. Each node claims so many GPUs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main() -> int:
    nodes, gpus = map(int, sys.argv[1:])
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1", RAY_USAGE_STATS_ENABLED="0")
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # of GPUs that there are none of, a node would have none
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": gpus, "include_dashboard": True, "dashboard_port": port},
    )
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=2, num_gpus=gpus)
        address = {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}"}
        return subprocess.run(["bash", "ray.sh"], env={**os.environ, **address}).returncode
    finally:
        made.shutdown()


if __name__ == "__main__":
    sys.exit(main())

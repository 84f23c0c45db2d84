"""What NCCL's LL128 protocol does against its Simple one (NVIDIA/nccl, src/graph/tuning.cc); without SymPy."""

from __future__ import annotations

LL128_BANDWIDTH = 0.92  # 120 of 128 bytes are data
LL128_LATENCY = 0.5  # a step waits less: 1.9 of 3.4 us on NVLink, 4.0 of 9.6 us on the network

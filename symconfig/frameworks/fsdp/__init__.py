"""PyTorch's fully sharded data parallelism."""

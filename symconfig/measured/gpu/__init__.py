"""One GPU at hand: a rank of a plan run for real without a network, and the rates of its kernels."""

"""Files that somebody starts a training with, read and never executed: options, with the bytes at which each stands."""

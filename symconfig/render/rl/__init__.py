"""Plan -> files of programs of reinforcement learning; `render.learning` is what they have alike."""

"""Scripts of reinforcement learning: the actor's run as its workers take it, and the step around it."""

"""A step of reinforcement learning: what each phase takes and holds, and the layout that makes the step short."""

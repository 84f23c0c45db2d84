"""An existing configuration, judged: what it costs, what is wrong with it, and how to get to the best plan from it."""

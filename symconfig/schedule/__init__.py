"""Pipeline schedules: the order in which each stage works, simulated task by task."""

"""A pipeline's schedule as people see it: in a terminal, as a trace for Perfetto, and in numbers."""

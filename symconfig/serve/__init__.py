"""The planner behind a page with a form, on this machine: `symconfig serve`."""

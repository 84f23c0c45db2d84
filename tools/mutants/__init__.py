"""Change the code in one place at a time and see whether a test fails: `make mutants`."""

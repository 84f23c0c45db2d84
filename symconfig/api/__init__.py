"""The commands as Python functions, one file for each."""

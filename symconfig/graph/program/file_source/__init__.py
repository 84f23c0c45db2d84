"""The language of program files: its text, its fields, its repeats and what its functions build."""

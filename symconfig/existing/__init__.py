"""People's own files: launch/ reads them, recover/ makes a run of them, rules/ and audit/ judge, adapt/ edits."""

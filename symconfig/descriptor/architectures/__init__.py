"""Each architecture's `config.json` as tables of families that are kin; `registry` has all of them by model_type."""

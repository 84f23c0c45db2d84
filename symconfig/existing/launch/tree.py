"""Data files of every syntax, as one `Tree`."""

from symconfig.existing.launch.json_tree import parse_json
from symconfig.existing.launch.yaml_tree import parse_yaml

__all__ = ["parse_json", "parse_yaml"]

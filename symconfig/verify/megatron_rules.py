"""What symconfig refuses although Megatron's parser lets it pass: the rules that are errors, asked of a rendered list.

Found by running core_v0.12 to core_v0.19: each of these parses in at least one of them, and then fails in the
first step, loses layers in silence, or trains another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from symconfig.errors import Problem
from symconfig.existing.recover.arguments import settings
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules import megatron
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.frameworks.megatron.flags import FlagTable
from symconfig.verify.megatron_arguments import FILE

# A launch that somebody wrote may repeat an option or leave the batch to the GPUs; a rendered one says all of it, once.
STRICT = ("repeated-option", "batch-not-said")
# Of options themselves: what the parser refuses is in the flag table's own check. Of the environment: the launcher's.
_APART = (*megatron.BY_FILE["megatron_options"], *megatron.BY_FILE["environment"])
RULES = tuple(
    rule for rule in megatron.RULES if rule.name in STRICT or (rule.severity == "error" and rule not in _APART)
)


def refuse(words: Sequence[str], table: FlagTable, world_size: int, file: str = FILE) -> list[Problem]:
    """Return every rule that a list of words breaks on `world_size` GPUs."""
    facts = MegatronFacts(Namespace(settings(words, file), table), world_size=world_size)
    return [replace(finding.problem, file=file) for finding in megatron.findings(facts, RULES)]

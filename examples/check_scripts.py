"""A check before training: audits the launch scripts that are named, and ends with 1 where one of them cannot run."""

import sys

import symconfig

wrong = 0
for script in sys.argv[1:]:
    findings = symconfig.audit(script, cluster="a100-80gb", plan=False).findings
    errors = [finding for finding in findings if finding.severity == "error"]
    print(f"{script}: {len(errors)} errors, {len(findings) - len(errors)} others")
    for finding in errors:
        print(f"  {finding.problem} [{finding.rule}]")
    wrong += bool(errors)
sys.exit(wrong > 0)

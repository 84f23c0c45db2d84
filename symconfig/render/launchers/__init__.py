"""What starts a target's launch.sh once on every node. A launcher is one module here and one folder in
templates/launchers/.

A module has `NAME`, `DOES`, `START` (how a person starts it, a line for REPORT.md), `SETTINGS` (what people may change:
`render.settings`) and `variables(plan, files, chosen)`; `files` are the target's.
"""

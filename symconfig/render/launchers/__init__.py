"""What starts a target's launch.sh once on every node. A launcher is one module here and one folder in
templates/launchers/."""

"""``python -m fedmls``: the command line."""

from fedmls.cli import main

main()

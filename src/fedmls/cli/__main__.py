"""``python -m fedmls.cli``."""

from fedmls.cli import main

main()

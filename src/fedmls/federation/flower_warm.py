"""``python -m fedmls.federation.flower_warm``; see :mod:`fedmls.federation.deploy.flower_warm`."""

import sys

from fedmls.federation.deploy.flower_warm import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

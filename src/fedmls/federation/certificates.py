"""``python -m fedmls.federation.certificates``; see :mod:`fedmls.federation.deploy.certificates`."""

from fedmls.federation.deploy.certificates import main

if __name__ == "__main__":
    main()

"""``python -m fedmls.federation.flower``; see :mod:`fedmls.federation.deploy.flower`."""

from fedmls.federation.deploy.flower import main

if __name__ == "__main__":
    main()

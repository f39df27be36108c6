"""``python -m fedmls.federation.nvflare``; see :mod:`fedmls.federation.deploy.nvflare`."""

from fedmls.federation.deploy.nvflare import main

if __name__ == "__main__":
    main()

"""Kits and jobs name these classes by this path; see :mod:`fedmls.federation.transports.nvflare`."""

from fedmls.federation.transports.nvflare import NodeApp as NodeApp
from fedmls.federation.transports.nvflare import ServerApp as ServerApp

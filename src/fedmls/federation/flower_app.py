"""Flower's apps name these functions by this path; see :mod:`fedmls.federation.transports.flower`."""

from fedmls.federation.transports.flower import client_app as client_app
from fedmls.federation.transports.flower import server_app as server_app

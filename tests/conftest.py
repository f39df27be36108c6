"""Settings for all tests."""

import signal

from hypothesis import settings

settings.register_profile("fedmls", deadline=None)  # the first call compiles
settings.load_profile("fedmls")

# Some shells start background jobs with Ctrl-C ignored, which the processes started by the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

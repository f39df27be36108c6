"""Settings for all tests."""

from hypothesis import settings

settings.register_profile("fedmls", deadline=None)  # the first call compiles
settings.load_profile("fedmls")

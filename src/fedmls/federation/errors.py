"""What ends an answer, and what ends a run. Both are sentences for people."""


class Refused(ValueError):
    """Why a node does not answer, in words that may leave it: they hold no value from a row."""


class Stopped(ValueError):
    """The run cannot go on, and why. Its checkpoint is that of the last exchange."""

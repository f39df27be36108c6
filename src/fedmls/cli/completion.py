"""What the Tab key offers. Nothing that takes long is imported before it is asked for."""

from collections.abc import Callable

Completion = Callable[[str], list[str]]


def one_of_names(*names: str) -> Completion:
    """What the Tab key offers: those that begin with what is there."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def algorithms(incomplete: str) -> list[str]:
    from fedmls.algorithms import names

    return one_of_names(*names())(incomplete)


def losses(incomplete: str) -> list[str]:
    from fedmls import LOSSES

    return one_of_names(*LOSSES)(incomplete)


def problems(incomplete: str) -> list[str]:
    from fedmls.benchmark.suite import SUITE

    return one_of_names(*SUITE)(incomplete)


def methods(incomplete: str) -> list[str]:
    """Complete the last of several names with commas between."""
    from fedmls.benchmark.methods import METHODS

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in one_of_names(*METHODS)(last)]


cuts = one_of_names("kmeans", "iid", "dirichlet")
decimals = one_of_names(".", ",")

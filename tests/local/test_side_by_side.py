"""Plays that wait for a GPU, side by side in one thread. The events here need no GPU."""

import threading

import pytest

from fedmls.local.side_by_side import side_by_side, wait, who

pytest.importorskip("greenlet")


class Event:
    """Is done when it has been looked at so many times."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def done(self):
        self.looks -= 1
        return self.looks < 0

    def synchronize(self):
        self.looks = 0


def play(name, waits, told):
    def do():
        for step, looks in enumerate(waits):
            told.append((name, step, threading.get_ident()))
            wait(Event(looks))
        return name

    return do


def test_others_go_on_while_one_waits():
    told = []
    found = list(side_by_side([play("slow", [50, 50], told), play("quick", [0] * 5, told)], most=2))
    assert found == ["quick", "slow"]
    order = [name for name, _, _ in told]
    assert order.index("quick") < len(order) - 1 - order[::-1].index("slow")
    assert {ident for _, _, ident in told} == {threading.get_ident()}


def test_so_many_at_most_have_begun():
    told = []
    names = iter(side_by_side([play(i, [1, 1], told) for i in range(5)], most=2))
    next(names)
    assert {name for name, _, _ in told} <= {0, 1, 2}
    assert sorted([*names]) == [1, 2, 3, 4]


def test_one_alone_waits_as_ever():
    event = Event(1000)
    wait(event)
    assert event.looks == 0


def test_where_one_is_stopped_the_others_stop_by_themselves():
    stop, ended = threading.Event(), []

    def stops():
        wait(Event(1))
        stop.set()
        raise KeyboardInterrupt

    def sees_it():
        while not stop.is_set():
            wait(Event(1))
        ended.append(True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(side_by_side([sees_it, stops, sees_it], most=3))
    assert ended == [True, True]


def test_an_error_is_raised():
    def fails():
        wait(Event(1))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(side_by_side([play("other", [1] * 9, []), fails], most=2))


def test_none_begins_after_one_was_stopped():
    begun = []

    def stops():
        begun.append(True)
        wait(Event(1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(side_by_side([stops] * 5, most=1))
    assert len(begun) == 1


def test_plays_in_one_thread_are_told_apart():
    def tells():
        found = who()
        wait(Event(3))
        return found

    found = list(side_by_side([tells, tells], most=2))
    assert len({*found, who()}) == 3

"""A transport within one process that breaks off."""

from fedmls.federation import InProcess


class Crash(Exception):
    """The server's machine is switched off."""


class Crashing(InProcess):
    """Ends the driver in a call, before or after the nodes got their messages."""

    def __init__(self, configs, *, call=0, delivered=False, **faults):
        super().__init__(configs, **faults)
        self.call, self.delivered = call, delivered

    def exchange(self, messages, timeout):
        crash = self.calls + 1 == self.call
        if crash and not self.delivered:
            raise Crash
        answer = super().exchange(messages, timeout)
        if crash:
            raise Crash
        return answer

"""Small federations for the tests: a problem's rows in files, nodes, transports that remember what they carried."""

import os
import signal
import subprocess
import sys
import time

import numpy as np

from fedmls.federation import InProcess, Job, Node, NodeConfig, drive
from fedmls.federation.codec import unseal
from fedmls.federation.messages import unpack_envelope


def wait_until(condition, seconds=120):
    """A machine that has much else to do is slow, so there is time; nobody waits longer than needed."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.05)


def parts(problem, folder, **options):
    """A node for each client of the problem, with its rows in an NPZ file; labels as the problem has them."""
    X = problem.matrix().toarray()[:, : problem.penalised]
    configs = []
    for i in range(problem.n):
        rows, name = slice(problem.offsets[i], problem.offsets[i + 1]), f"site-{i + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"{name}.npz", X=X[rows], y=problem.y[rows])
        configs.append(NodeConfig(name=name, data=folder / f"{name}.npz", state=folder / "state" / name, **options))
    return configs


class Recording(InProcess):
    """Remembers (node, message, reply) of all that came back."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.carried = []

    def exchange(self, messages, timeout):
        replies, failures = super().exchange(messages, timeout)
        self.carried += [(name, messages[name], reply) for name, reply in replies.items()]
        return replies, failures


def federate(problem, folder, transport=InProcess, faults=None, **job):
    """The job on the problem's rows, in-process."""
    configs = parts(problem, folder / "parts")
    Job(**job).write(folder / "job")
    return drive(folder / "job", transport(configs, **(faults or {})))


def kept_state(config, run, answered):
    """A node's state after the last exchange that the server knows of."""
    kept = unpack_envelope(unseal((config.state / f"{run}.state").read_bytes()))
    return kept.body["after"] if kept.body["after_exchange"] == answered else kept.body["before"]


def serve(config, kill):
    """A node in a process of its own: messages on stdin, replies on stdout, each after its length in 8 bytes.

    kill: "EXCHANGE WHERE" ends the process, as by a power cut, before, during or after it keeps that exchange's state.
    """
    node, (exchange, where) = Node(config), kill.split() if kill else (0, "")
    save = node.state.save

    def saved(state):
        if state.exchange != int(exchange):
            save(state)
            return
        if where == "after":
            save(state)
        elif where == "during":
            (node.config.state / f"{state.run}.state.part").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    node.state.save = saved
    while size := sys.stdin.buffer.read(8):
        reply = node.answer(sys.stdin.buffer.read(int.from_bytes(size, "big")))
        sys.stdout.buffer.write(len(reply).to_bytes(8, "big") + reply)
        sys.stdout.buffer.flush()


class Processes:
    """A transport to nodes in processes of their own, which are started again when they are found dead."""

    def __init__(self, files, kill=None):
        self.files, self.kill = {file.stem: file for file in files}, dict(kill or {})
        self.nodes, self.running, self.deaths = list(self.files), {}, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running.values():
            process.kill()
            process.communicate()

    def exchange(self, messages, timeout):
        replies, failures = {}, {}
        for name, message in messages.items():
            if name not in self.running:
                command = [
                    sys.executable,
                    "-m",
                    "tests.support.federations",
                    str(self.files[name]),
                    self.kill.pop(name, ""),
                ]
                self.running[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            process = self.running[name]
            process.stdin.write(len(message).to_bytes(8, "big") + message)
            process.stdin.flush()
            size = process.stdout.read(8)
            if size:
                replies[name] = process.stdout.read(int.from_bytes(size, "big"))
            else:
                failures[name] = "it has died"
                self.deaths += 1
                self.running.pop(name).communicate()
        return replies, failures


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])

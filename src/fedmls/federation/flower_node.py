"""A SuperNode whose client processes start at once: ``python -m fedmls.federation.flower_node``, in the place of
``flower-supernode`` and with its arguments.

Flower starts the command flwr-clientapp for every message, which takes seconds of computing until all is imported and
compiled code is loaded. Here that is done once: a command of the same name, first on the SuperNode's PATH, hands its
arguments to this process, which forks. What runs then is Flower's own client process. Linux.
"""

import ctypes
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

CLIENT = "flwr-clientapp"
PR_SET_PDEATHSIG = 1
STUB = """\
#!/bin/sh
# One write, so that two messages at a time do not mix; tabs are in none of the arguments.
printf '%s\\n' "$(printf '%s\\t' "$@")" > '{pipe}'
"""


def main(arguments: list[str]) -> int:
    """Run flower-supernode with the arguments until it ends; its exit status."""
    home = os.environ.get("FLWR_HOME")
    with tempfile.TemporaryDirectory(dir=home if home and Path(home).is_dir() else None) as folder:
        pipe, stub = Path(folder) / "pipe", Path(folder) / CLIENT
        os.mkfifo(pipe, 0o600)
        stub.write_text(STUB.format(pipe=pipe))
        stub.chmod(0o700)
        path = os.pathsep.join([folder, os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
        lines = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # what comes before we are ready waits in the pipe
        node = os.fork()
        if node == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # without us it could answer no message
            os.execvpe("flower-supernode", ["flower-supernode", *arguments], {**os.environ, "PATH": path})
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, lambda number, _: os.kill(node, number))
        return serve(node, lines, load())


def load() -> Callable[[], object]:
    """All that a client process needs, and the function behind its command."""
    import pandas as pd  # noqa: F401

    import fedmls.federation.flower  # noqa: F401
    from fedmls import FedMLS, Problem, simulate

    simulate(FedMLS(), Problem([[0.0], [1.0]], [-1, 1], clients=[0, 1]), rounds=1, optimum=None, progress=False)
    [client] = entry_points(group="console_scripts", name=CLIENT)
    command: Callable[[], object] = client.load()
    return command


def serve(node: int, pipe: int, run_client: Callable[[], object]) -> int:
    """Fork a client for each line of the pipe until the node ends."""
    with os.fdopen(pipe, "rb", buffering=0) as lines:
        rest = b""
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == node:
                return os.waitstatus_to_exitcode(status)
            if ended or not select.select([lines], [], [], 0.1)[0]:
                continue
            *calls, rest = (rest + os.read(pipe, 65536)).split(b"\n")
            for call in calls:
                if os.fork() == 0:
                    lines.close()
                    become(run_client, call.decode().split("\t")[:-1])


def become(run_client: Callable[[], object], arguments: list[str]) -> None:
    """This process is the command flwr-clientapp now."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_DFL)
    sys.argv = [CLIENT, *arguments]
    try:
        run_client()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

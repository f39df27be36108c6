"""A proxy on loopback whose connections can be cut for a while."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
PIECE = 65536  # bytes


class Proxy:
    """Hands bytes on between whoever connects to ``port`` and a port behind it, until it is cut or closed."""

    def __init__(self, behind: int) -> None:
        self.behind, self.whole, self.lock = behind, True, threading.Lock()
        self.connections: set[socket.socket] = set()
        self.listening = socket.create_server((HOST, 0))
        self.port: int = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Meanwhile all connections are dropped, and new ones are as soon as they are made."""
        self.whole = False
        self._drop()
        try:
            yield
        finally:
            self.whole = True

    def close(self) -> None:
        self.whole = False
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for connections
        self.listening.close()
        self._drop()

    def _drop(self) -> None:
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((HOST, self.behind))
            except OSError:  # nobody is there at the moment
                near.close()
                continue
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Both ways, until one side ends or the connection is cut."""
        with near, far:
            with self.lock:
                if not self.whole:
                    return
                self.connections |= {near, far}
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()
            with self.lock:
                self.connections -= {near, far}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(PIECE):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

"""Serves the live page: on this machine, to this machine only, and nothing but the page and what it shows."""

import hashlib
import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from fedmls.report import page as report
from fedmls.watch.look import Watcher

HERE = Path(__file__).parent
HOST = "127.0.0.1"
LEAST_SECONDS = 1.0  # between two looks at the folder
LAST_SECONDS = 3.0  # for a page to ask once more
LOOKING_SHARE = 0.1  # of the time at most is spent on looking
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
)
HTML, SCRIPT, STYLE, JSON = "text/html", "text/javascript", "text/css", "application/json"


class Server:
    """The page of one results folder, at ``url`` until it is closed. port: any that is free unless given."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.watcher, self.lock = Watcher(folder), threading.Lock()
        self.data, self.due, self.asked = b"", 0.0, 0.0
        self.told = threading.Event()
        self.files = _files()
        try:
            self.http = ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            hint = "leave out --port, or give another"
            raise ValueError(f"port {port} cannot be had ({error.strerror}); {hint}") from None
        self.http.daemon_threads = True
        self.port = int(self.http.server_address[1])
        self.url = f"http://{HOST}:{self.port}/"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def say_the_end(self) -> None:
        """Wait until a page that is open has seen how it ended; a few seconds at most."""
        if time.monotonic() - self.asked < LAST_SECONDS:
            self.due = 0.0
            self.told.clear()
            self.told.wait(LAST_SECONDS)

    def look(self) -> bytes:
        """Return what there is to see, as JSON: a new look, if the last one is old enough."""
        with self.lock:
            self.asked = time.monotonic()
            if time.monotonic() >= self.due:
                began = time.monotonic()
                self.data = _encoded(self.watcher)
                took = time.monotonic() - began
                self.due = began + max(LEAST_SECONDS, took / LOOKING_SHARE)
            return self.data


def _encoded(watcher: Watcher) -> bytes:
    """Return what the watcher sees; where the folder cannot be read, the reason."""
    try:
        seen = watcher.look()
    except (ValueError, OSError, KeyError) as error:  # a file that is being replaced, or is none of ours
        seen = {"error": str(error) or type(error).__name__}
    return json.dumps(seen, allow_nan=False, separators=(",", ":")).encode()


def _files() -> dict[str, tuple[str, bytes]]:
    """Return what is served beside the data: kind and content, by path."""
    from plotly.offline import get_plotlyjs

    return {
        "/": (HTML, (HERE / "page.html").read_bytes()),
        "/watch.css": (STYLE, (HERE / "watch.css").read_bytes()),
        "/watch.js": (SCRIPT, (HERE / "watch.js").read_bytes()),
        "/report.css": (STYLE, (report.HERE / "report.css").read_bytes()),
        "/chart.js": (SCRIPT, (report.HERE / "chart.js").read_bytes()),
        "/plotly.js": (SCRIPT, get_plotlyjs().encode()),
    }


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedmls", ""

        def do_GET(self) -> None:
            if self.headers.get("Host") not in (f"{HOST}:{server.port}", f"localhost:{server.port}"):
                self._send(HTTPStatus.FORBIDDEN, HTML, b"")  # another site's name that leads here
            elif self.path == "/data.json":
                self._send(HTTPStatus.OK, JSON, server.look())
                server.told.set()
            elif self.path in server.files:
                self._send(HTTPStatus.OK, *server.files[self.path])
            else:
                self._send(HTTPStatus.NOT_FOUND, HTML, b"")

        def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            if status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag:
                status, content = HTTPStatus.NOT_MODIFIED, b""
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-cache")
            self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing: the terminal belongs to the run."""

    return Handler

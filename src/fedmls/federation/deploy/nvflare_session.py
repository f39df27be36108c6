"""An administrator's session with NVFlare's server, in a process of its own: ``python -m`` this module with the kit's
folder, commands on its input, answers on its output.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmls.federation.transports.shared_timer import share_timers

NODE_SECONDS = 2.0  # for a node to tell the console of its jobs


class Session:
    """An administrator's session: what the console can be asked for."""

    def __init__(self, kit: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        share_timers()
        about = json.loads((kit / "startup" / "fed_admin.json").read_text())
        self.flare = new_secure_session(about["admin"]["username"], str(kit), timeout=5.0)

    def connected(self) -> dict[str, float]:
        """Return the nodes that the server knows, and when it last heard of each."""
        return {client.name: client.last_connect_time or 0.0 for client in self.flare.get_connected_client_list()}

    def jobs(self) -> dict[str, list[str]]:
        """Return the nodes that answer now, and the jobs that each runs.

        One after the other: the server waits for a node that has stopped as long as we do for the server, and whoever
        asked for all of them would get no answer of any.
        """
        found: dict[str, list[str]] = {}
        for name in self.connected():  # which raises if it is the server that does not answer
            for entry in self._job_status(name):
                if entry.get("status") != "no_reply":
                    found.setdefault(entry["client_name"], []).extend([entry["job_id"]] if "job_id" in entry else [])
        return found

    def _job_status(self, name: str) -> list[dict[str, Any]]:
        from nvflare.fuel.flare_api.api_spec import NoConnection

        self.flare.set_timeout(NODE_SECONDS)
        try:
            return self.flare.get_client_job_status([name]) or []
        except NoConnection:
            return []
        finally:
            self.flare.unset_timeout()

    def submit(self, folder: str) -> str:
        """Submit a job, in the place of those of its name that have not ended."""
        name = json.loads((Path(folder) / "meta.json").read_text())["name"]
        for job in self.flare.list_jobs(name_prefix=name):
            if not str(job.get("status")).startswith("FINISHED"):
                with suppress(Exception):  # it has ended meanwhile
                    self.flare.abort_job(job["job_id"])
        return str(self.flare.submit_job(folder))

    def status(self, job: str) -> str:
        return str(self.flare.get_job_status(job))


def console(kit: Path) -> None:
    """Answer commands, one line of JSON each, until there are no more.

    It is a process of its own because NVFlare's session leaves threads behind and prints as it likes.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            session = session or Session(kit)
            answer = {"answer": getattr(session, command)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)


if __name__ == "__main__":
    console(Path(sys.argv[1]))

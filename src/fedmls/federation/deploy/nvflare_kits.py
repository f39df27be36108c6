"""NVFlare's start-up kits, what a site lets others do, and a job as NVFlare takes it."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

PROJECT = "fedmls"
ADMIN = "admin@fedmls.org"

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_APP = "fedmls.federation.nvflare_app.ServerApp"
NODE_APP = "fedmls.federation.nvflare_app.NodeApp"

# The administrator may run jobs made of these four classes and ask how they are; nobody may send code or read files.
AUTHORIZATION = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {
            **dict.fromkeys(("submit_job", "manage_job", "view", "operate"), "any"),
            **dict.fromkeys(("clone_job", "download_job", "shell_commands", "byoc"), "none"),
        }
    },
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}},
    "loggers": {
        "root": {"level": "WARNING", "handlers": ["out"]},
        **{
            f"nvflare.{name}": {"level": "INFO"}
            for name in (
                "fuel.f3.sfm.conn_manager",  # who connects and who cannot
                "private.fed.authenticator",
                "private.fed.client.client_executor",
                "private.fed.server.client_manager",
                "private.fed.server.job_runner",
            )
        },
    },
}


def provision(
    folder: Path, server: str, nodes: Iterable[str], port: int, storage: Path, days: int = 360, admin: str = ADMIN
) -> dict[str, Path]:
    """Make start-up kits for the server, the nodes and the administrator (mutual TLS, one CA); return them by name.

    server: the name under which nodes reach it, which its certificate proves.  storage: a folder of the server's
    machine for NVFlare's own files.  days: for which the CA is valid. A folder that holds a CA keeps it, so nodes can
    be added later; whoever reads the CA's key, in the folder's ``state``, can make certificates.
    """
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    nodes = list(nodes)
    if "server" in nodes:
        raise ValueError("'server' is no name for a node: it is NVFlare's for the server, whom nodes answer")
    project = Project(PROJECT, "fedmls over NVFlare")
    project.set_server(server, PROJECT, {"fed_learn_port": port, "admin_port": port})
    for name in nodes:
        project.add_client(name, PROJECT, {})
    project.add_admin(admin, PROJECT, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder("config"),
        CertBuilder(days),
        SignatureBuilder(),
    ]
    private = Path(folder) / PROJECT / "state"  # NVFlare would let everybody read it
    private.mkdir(parents=True, exist_ok=True)
    private.chmod(0o700)
    made = Provisioner(str(folder), builders).provision(project, logger=_Silence())
    if "current_prod_dir" not in made:
        raise RuntimeError(f"NVFlare could not make the kits: {made}")
    kits = {kit.name: kit for kit in Path(made["current_prod_dir"]).iterdir() if (kit / "startup").is_dir()}
    for name, kit in kits.items():
        (kit / "transfer").mkdir(exist_ok=True)
        if name != admin:
            _configure(kit / "local", storage if name == server else None)
    return kits


class _Silence:
    debug = info = warning = error = staticmethod(lambda *_: None)


def _configure(local: Path, storage: Path | None) -> None:
    """Write a site's own policy: only our classes, no code in jobs, no logs to the server, storage where it belongs."""
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = [CONTROLLER, EXECUTOR, SERVER_APP, NODE_APP]
    resources["allow_log_streaming"] = False
    parts = [part for part in resources["components"] if part["id"] not in ("site_log_streamer", "log_receiver")]
    resources["components"] = parts
    if storage is not None:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
        for part in parts:
            if part["id"] == "job_manager":
                part["args"]["uri_root"] = str(storage / "jobs")
    for name, values in (
        ("resources.json", resources),
        ("authorization.json", AUTHORIZATION),
        ("log_config.json", LOGGING),
    ):
        (local / name).write_text(json.dumps(values, indent=2))


def write_job(folder: Path, job_folder: Path, nodes: Iterable[str]) -> None:
    """Write the job as NVFlare takes it: configuration that names our classes and the server's folder, and no code.

    Its name stands for the folder: submitting it aborts what is left of an earlier attempt.
    """
    names = sorted(nodes)
    server = {
        "format_version": 2,
        "server": {"task_request_interval": 0.1},
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "server"}}],
        "components": [{"id": "server", "path": SERVER_APP, "args": {"job_folder": str(job_folder)}}],
    }
    node = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "node"}}}],
        "components": [{"id": "node", "path": NODE_APP, "args": {}}],
    }
    about = {
        "name": f"{PROJECT}-{hashlib.sha256(bytes(job_folder)).hexdigest()[:16]}",
        "resource_spec": {},
        "min_clients": len(names),
        "mandatory_clients": names,
        "deploy_map": {"app": ["server", *names]},
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    for file, values in (
        (folder / "meta.json", about),
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", node),
    ):
        file.write_text(json.dumps(values, indent=2))

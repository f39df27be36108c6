"""A real federation: the algorithms of the registry between machines, unchanged.

job           what to run, one configuration for every transport;  node_config: the configuration of a node
messages      what travels, and what both sides keep on disk;  codec: MessagePack with arrays
server/       the server: exchange by exchange, over a transport
node/         the client: answers messages from its own rows
transports/   what carries messages: within one process, NVFlare, Flower
deploy/       processes, kits, keys: deployments on this machine and between machines
trial/        ``fedmls federate``: a whole federation on this machine, beside the simulation
privacy       clipping and noise, with an accountant;  secure_sums: sums that hide what they are made of
uploads       what uploads look like, and the check of one;  columns: means and scales from sums
scores        what a model is worth on held-out rows, from sums
site_files    one file cut into the files of nodes;  locks: one at a time;  errors: Refused, Stopped

The modules certificates, flower, flower_app, flower_warm, nvflare and nvflare_app are old paths that live in kits, apps
and units.

Job(algorithm=fedmls.FedMLS(paired=True), rounds=100, batch=0.1).write("trial")
result = drive("trial", InProcess(sorted(Path("parts").glob("*.toml"))))
"""

from typing import TYPE_CHECKING

from fedmls.lazy import loader

if TYPE_CHECKING:
    from fedmls.federation.codec import MessageError
    from fedmls.federation.errors import Refused, Stopped
    from fedmls.federation.job import Job
    from fedmls.federation.messages import Message, decode, encode
    from fedmls.federation.node.node import Node
    from fedmls.federation.node_config import NodeConfig
    from fedmls.federation.server.driver import Driver, drive
    from fedmls.federation.server.snapshot import Result
    from fedmls.federation.site_files import split
    from fedmls.federation.transports.base import Transport
    from fedmls.federation.transports.inprocess import InProcess

__all__ = [
    "Driver",
    "InProcess",
    "Job",
    "Message",
    "MessageError",
    "Node",
    "NodeConfig",
    "Refused",
    "Result",
    "Stopped",
    "Transport",
    "decode",
    "drive",
    "encode",
    "split",
]

_MODULES = {
    "Driver": "server.driver",
    "InProcess": "transports.inprocess",
    "Job": "job",
    "Message": "messages",
    "MessageError": "codec",
    "Node": "node.node",
    "NodeConfig": "node_config",
    "Refused": "errors",
    "Result": "server.snapshot",
    "Stopped": "errors",
    "Transport": "transports.base",
    "decode": "messages",
    "drive": "server.driver",
    "encode": "messages",
    "split": "site_files",
}

if not TYPE_CHECKING:  # a node's process needs little of it, and Flower starts one for each message
    __getattr__ = loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

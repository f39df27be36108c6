"""A real federation: the algorithms of the registry between machines, unchanged.

job.py        what to run, one configuration for every transport
driver.py     the server: exchange by exchange, over a transport;  survey.py: what it learns before round 1
post.py       the transport's interface, and what is done when a node does not answer
replies.py    checks of every reply before it is used;  folder.py: the files of a run
node.py       the client: answers messages, keeps its state on disk;  data.py: its rows;  split.py: parts for a trial
messages.py   what travels
inprocess.py  a transport within one process
nvflare.py    over NVFlare;  nvflare_app.py: what runs inside its processes
flower.py     over Flower;  flower_node.py: a node that starts faster
processes.py  the processes of a trial on this machine;  trial.py and federate.py: the whole of it, for the command line
privacy.py    clipping and noise, with an accountant

Job(algorithm=fedmls.FedMLS(paired=True), rounds=100, batch=0.1).write("trial")
result = drive("trial", InProcess(sorted(Path("parts").glob("*.toml"))))
"""

from fedmls.federation.data import NodeConfig, Refused
from fedmls.federation.driver import Driver, Result, drive
from fedmls.federation.inprocess import InProcess
from fedmls.federation.job import Job
from fedmls.federation.messages import Message, MessageError, decode, encode
from fedmls.federation.node import Node
from fedmls.federation.post import Stopped, Transport
from fedmls.federation.split import split

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

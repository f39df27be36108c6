"""A real federation: the algorithms of the registry between machines, unchanged.

job.py        what to run, one configuration for every transport
driver.py     the server: exchange by exchange, over a transport;  state.py: the run between two of them
opening.py    the exchanges before round 1;  survey.py: what the server learns from them
clients.py    an exchange with the clients of a round: who is asked, who stands in, what the server sees
post.py       the transport's interface, and what is done when a node does not answer
replies.py    checks of every reply before it is used;  folder.py: the files of a run
node.py       the client: answers messages;  node_state.py: what it keeps of a run, and which questions it therefore
              answers;  work.py: what it does in a round
data.py       its rows;  split.py: parts for a trial;  locks.py: one at a time
messages.py   what travels
inprocess.py  a transport within one process
nvflare.py    over NVFlare;  nvflare_app.py: what runs inside its processes, with timers of shared_timer.py;
              nvflare_kits.py: its kits
flower.py     over Flower;  flower_app.py: what runs inside its processes, which flower_warm.py starts faster
certificates.py  a CA and keys for Flower;  attempts.py: when a job is lost, and when to give up
processes.py  the processes of a trial on this machine;  trial.py and federate.py: the whole of it, for the command line
privacy.py    clipping and noise, with an accountant;  secure.py: sums that hide what they are made of

Job(algorithm=fedmls.FedMLS(paired=True), rounds=100, batch=0.1).write("trial")
result = drive("trial", InProcess(sorted(Path("parts").glob("*.toml"))))
"""

from fedmls.federation.data import NodeConfig, Refused
from fedmls.federation.driver import Driver, drive
from fedmls.federation.inprocess import InProcess
from fedmls.federation.job import Job
from fedmls.federation.messages import Message, MessageError, decode, encode
from fedmls.federation.node import Node
from fedmls.federation.post import Stopped, Transport
from fedmls.federation.split import split
from fedmls.federation.state import Result

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

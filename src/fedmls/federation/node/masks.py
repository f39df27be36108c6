"""A node's uploads under masks: the reply of which the server can read nothing but sums over nodes."""

from typing import Any

import numpy as np

from fedmls.federation import secure_sums
from fedmls.federation.codec import MessageError
from fedmls.federation.errors import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import Begin, Masked, Message, Round, Sums, Task, Upload, Value, Work, as_map
from fedmls.federation.node.site import Site
from fedmls.federation.node_config import NodeConfig
from fedmls.federation.uploads import check_upload, upload_shapes
from fedmls.rounds import ServerRandom, drawn
from fedmls.types import Array


def masked_reply(
    site: Site, asked: Message[Round], begin: Begin, job: Job, done: list[Upload], values: list[Value]
) -> Masked:
    """Return the rounds and values under masks. What the server cannot check is checked here."""
    tasks, points = asked.body.rounds, asked.body.points
    uploads, told, everyone = None, None, list(range(begin.n))
    if tasks:
        _check_uploads(begin, job, done, tasks)
        clients, among = _clients_of_the_sum(asked, begin, job, everyone), asked.body.among
        uploads = hidden(site.config, asked, begin, begin.weight * _flat(done), clients, tasks, among)
    if points:
        own = begin.weight * np.array([value.value for value in values])
        told = hidden(site.config, asked, begin, own, everyone, points)
    return Masked([Work(one.k, one.steps, one.subgradients) for one in done], uploads, told)


def _clients_of_the_sum(asked: Message[Round], begin: Begin, job: Job, everyone: list[int]) -> list[int]:
    """Return the clients that are summed up, if they are all of the round's, and this node among them."""
    among = asked.body.among or []
    clients = [client for client, _ in among]
    some = drawn(job.algorithm, begin.n, ServerRandom(job.seed), asked.body.rounds[0].k)
    size = begin.n if some is None else len(some)
    if sorted({*clients} & {*everyone}) != sorted(clients) or len(clients) != size:
        raise Refused(f"it is asked for a sum over clients {clients}, not over {size} of {begin.n}")
    if (begin.client, asked.body.after) not in among:
        raise Refused("it is asked for a sum without itself, or after another exchange than it is told")
    return clients


def _check_uploads(begin: Begin, job: Job, done: list[Upload], tasks: list[Task]) -> None:
    shapes = upload_shapes(job.algorithm, len(begin.start), begin.n, job.sends_cuts, job.max_norm)
    try:
        for one, task in zip(done, tasks, strict=True):
            check_upload(one, task, shapes)
    except MessageError:  # its words say how long the upload is, and that is nobody's business
        raise Refused("its upload is not finite, or longer than max_norm; take smaller steps") from None


def _flat(done: list[Upload]) -> Array:
    """Return all numbers of these rounds, in the order of :meth:`fedmls.federation.uploads.Shapes.parts`."""
    parts: list[Any] = []
    for one in done:
        parts += [*one.up.values(), *([] if one.cut is None else [one.cut.p, one.cut.a])]
    return np.concatenate([np.ravel(part) for part in parts])


def hidden(
    config: NodeConfig, asked: Message[Any], told: Sums | Begin, values: Array, among: list[int], *parts: Any
) -> Any:
    """Return the numbers under the masks of these clients. The question: what all were told alike, and the parts."""
    key, keys = keys_of(config, told)
    common = {name: value for name, value in as_map(told).items() if name not in ("client", "weight")}
    question = secure_sums.question(asked, common, *parts)
    try:
        return secure_sums.masked(values, key, keys, told.client, among, question)
    except ValueError as error:
        raise Refused(str(error)) from None


def own_key(config: NodeConfig) -> Any:
    """Return the node's own key, which is made if there is none."""
    try:
        return secure_sums.private_key(config.key_file)
    except (ValueError, OSError) as error:
        raise Refused(f"it has no key for a secure run: {error}") from None


def keys_of(config: NodeConfig, told: Sums | Begin) -> tuple[Any, list[bytes]]:
    """Return the node's own key, and the public ones of all nodes, if the node takes part with them."""
    key = own_key(config)
    try:
        return key, secure_sums.check_keys(told.keys, told.client, key, config.peers)
    except ValueError as error:
        raise Refused(f"it does not take part: {error}") from None

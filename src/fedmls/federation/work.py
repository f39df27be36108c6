"""What a client does in a round: its state before and after, what it sends, and its objective at given points."""

from typing import Any

import numpy as np

from fedmls.engine import message_types
from fedmls.federation.data import Refused
from fedmls.federation.job import Job
from fedmls.federation.messages import fields
from fedmls.federation.privacy import noisy
from fedmls.local import RowsLocal
from fedmls.problem import Problem
from fedmls.types import Array


def values(points: Any, problem: Problem) -> list[dict[str, Any]]:
    """f_i at the points."""
    found = []
    for point in points:
        fields("a point", point, {"k", "candidate", "x"})
        found.append({"k": point["k"], "candidate": point["candidate"], "value": problem.value(point["x"])})
    return found


def flat(done: list[dict[str, Any]]) -> Array:
    """All numbers of these rounds, in the order of :meth:`fedmls.federation.replies.Shapes.parts`."""
    parts = []
    for one in done:
        parts += [*one["up"].values(), *([] if one["cut"] is None else [one["cut"]["p"], one["cut"]["a"]])]
    return np.concatenate([np.ravel(part) for part in parts])


def snapshot(client: Any, local: RowsLocal) -> dict[str, Any]:
    return {"client": client._asdict(), "slopes": local.slopes}


def keeps_nothing(job: Job, start: Array, n: int) -> bool:
    """Return whether a client could do its next round without what it has kept of the run.

    That is so if its state is empty and it adds up no slopes. If sums are secure, or noise is added, what it keeps also
    guards that no mask hides two values and that no more rounds are answered than ε was told for.
    """
    _, client = job.algorithm.init(start, n)
    guards = job.secure or job.privacy is not None
    return not guards and not job.sends_cuts and all(np.size(value) == 0 for value in client)


def work(
    job: Job, begin: dict[str, Any], before: dict[str, Any], local: RowsLocal, rounds: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The client's state after the rounds, and what it sends; steps and subgradients count from the first of them."""
    algorithm = job.algorithm
    down_type, _ = message_types(algorithm)
    _, fresh = algorithm.init(begin["start"], begin["n"])
    client, done = fresh._replace(**before["client"]), []
    for wanted in rounds:
        fields("a round", wanted, {"k", "down", "asked"})
        k, down = wanted["k"], fields("what is sent down", wanted["down"], down_type._fields)
        local.begin(k)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                client, up = algorithm.client_round(k, client, down_type(**down), local)
        except ValueError as error:  # of the algorithm and its parameters
            raise Refused(f"it cannot work on round {k}: {error}") from None
        sent = up._asdict()
        for name in () if wanted["asked"] else algorithm.traits.on_demand:
            del sent[name]
        if job.privacy is not None:
            sent = noisy(job.privacy, algorithm.name, sent, down)
        cut = None
        if wanted["asked"] and job.sends_cuts:
            a, p = local.problem.cut(local.cut_slopes)
            cut = {"a": a, "p": p}
        done.append({"k": k, "up": sent, "cut": cut, "steps": int(local.steps[0]), "subgradients": local.subgradients})
    return client, done

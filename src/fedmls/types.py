"""The words the package is written in. Read this file first.

An :class:`Algorithm` is written once, as its paper prints it, and two engines run it: the simulation
(:mod:`fedmls.simulate`) and a federation between machines. It keeps nothing of its own: states and
messages are NamedTuples that are passed in and returned anew.

One round k (rounds count from 1)::

    server, down = algorithm.broadcast(k, server, rng)            # down goes to every client
    client, up   = algorithm.client_round(k, client, down, local) # up comes back
    server       = algorithm.server_round(k, server, mean_up)     # mean_up = Σ_i w_i up_i
    x            = algorithm.model(server)                        # the answer after round k

The array fields of ``down`` and ``up`` are what travels: vectors and bytes are counted from them.
``client_round`` is free of shape: its arrays are (d,) for one client on its own machine and (n, d) for
all clients of a simulation, and nothing but arithmetic is done to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
State = Any  # a NamedTuple of arrays and plain numbers, private to its algorithm
Message = Any  # a NamedTuple; its array fields travel


class Local(Protocol):
    """All that a client may ask of its own data in one round."""

    @property
    def n(self) -> int:
        """How many clients the federation has."""

    @property
    def weight(self) -> Array:
        """The client's weight w_i, shaped to multiply its vectors."""

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: float = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: Any = None,
    ) -> tuple[Array, Array]:
        """Take ``len(steps)`` local subgradient steps; return the last point and the averaged one.

        For t = 1, 2, ...:  u <- P_radius(u - steps[t] (scale g(u) + pull (u - center) + shift)) and
        the average <- (1 - average[t]) average + average[t] u.  ``count`` stops clients earlier.
        """

    def subgradient(self, x: Array, where: Any = True) -> Array:
        """A subgradient of f_i at x over all rows; zero for clients that ``where`` leaves out."""

    def value(self, x: Array) -> Array:
        """f_i(x)."""

    def run_length(self, q: "float | Sequence[float]") -> Any:
        """Successes of a coin with probability q before its first failure, drawn by the client."""


class Algorithm(Protocol):
    """What an engine needs. Implementations are frozen dataclasses of hyper-parameters."""

    name: ClassVar[str]
    aggregate: ClassVar[str]  # "mean": the server sees only Σ w_i up_i; "stack": it sees every client's upload

    @property
    def rounds_per_exchange(self) -> int:
        """How many rounds the server can ask for at once (2 for paired FedMLS, otherwise 1).

        ``broadcast`` of that many rounds is called before the uploads of the first one come in.
        """

    def init(self, x0: Array, n: int) -> tuple[State, State]:
        """The server's state and the state every client starts from."""

    def broadcast(self, k: int, server: State, rng: np.random.Generator) -> tuple[State, Message]: ...
    def client_round(self, k: int, client: State, down: Message, local: Local) -> tuple[State, Message]: ...
    def server_round(self, k: int, server: State, up: Message) -> State: ...
    def model(self, server: State) -> Array: ...


class Optimum(NamedTuple):
    """A minimiser with its proof: no x with ‖x‖ <= radius has an objective below ``lower_bound``."""

    x: Array
    value: float
    lower_bound: float
    radius: float


@dataclass(frozen=True)
class Run:
    """What one run of one algorithm gave. ``history`` has one row per recorded round.

    ============  =====================================================================
    round         rounds so far
    exchanges     messages to and from every client so far (paired rounds share one)
    local_steps   local steps of the busiest client so far
    subgradients  (mini-batch) subgradients taken by all clients together
    vectors_*     d-vectors sent up or down, all clients together
    bytes_*       the same in bytes
    objective     f at the model
    gap           objective - f*;  relative_gap = gap / |f*|, the gap itself for f* = 0 (below 1e-9)
    seconds       wall-clock time so far
    ============  =====================================================================

    ``diverged`` says that the iterates overflowed; the history then ends with the last finite round.
    """

    algorithm: Algorithm
    seed: int
    batch: float
    x: Array
    history: "pd.DataFrame"
    optimum: float | None
    diverged: bool = False

"""The words the package is written in. Read this file first.

An :class:`Algorithm` is written once, as its paper prints it, and two engines run it: the simulation
(:func:`fedmls.simulate`) and a federation between machines. It keeps nothing of its own: states and
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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
DEVICES = ("cpu", "cuda", "cuda-float32")  # where clients may compute
References = Mapping[str, str | None]  # of each field of Up a field of Down, or None
# Of an algorithm: its states are NamedTuples of arrays (the server's also of plain numbers), its messages NamedTuples
# whose array fields travel. An engine knows none of them: ``Algorithm`` without brackets is any algorithm.
ServerT = TypeVar("ServerT", default=Any)
ClientT = TypeVar("ClientT", default=Any)
DownT = TypeVar("DownT", default=Any)
UpT = TypeVar("UpT", default=Any)


class Local(Protocol):
    """All that a client may ask of its own data in one round."""

    @property
    def n(self) -> int:
        """How many clients the federation has."""

    @property
    def weight(self) -> Array:
        """The client's weight w_i, shaped to multiply its vectors."""

    @property
    def ridge(self) -> Array:
        """The l2 term's weight on each coordinate, d numbers: 0 for the intercept, and where there is no such term."""

    def descend(
        self,
        u: Array,
        steps: Array,
        *,
        scale: float | Array = 1.0,
        pull: float = 0.0,
        center: Array | None = None,
        shift: Array | None = None,
        average: Array | None = None,
        radius: float | None = None,
        count: Counts | int | None = None,
    ) -> tuple[Array, Array]:
        """Take ``len(steps)`` local subgradient steps; return the last point and the averaged one.

        For t = 1, 2, ...:  u <- P_radius(u - steps[t] (scale g(u) + pull (u - center) + shift)) and
        the average <- (1 - average[t]) average + average[t] u.  ``scale`` may differ from
        client to client; ``count`` stops clients earlier.
        """

    def prox(self, v: Array, weight: float) -> Array:
        """argmin_x f_i(x) + ‖x - v‖²/(2 weight), exactly, over all rows whatever the batch.

        A pass over the rows costs as much as a subgradient: it counts as one, and as one local step.
        """

    def ascend(
        self, v: Array, weight: Array, p: Array, steps: int, passes: int = 1, start: int = -1, ridge: bool = True
    ) -> tuple[Array, Array]:
        """Towards the same proximal step, by dual coordinate ascent on ``steps`` mini-batches, or on as many as make so
        many passes over the client's rows if those are more.

        Every row keeps a slope s_j from call to call, at first 0; a step sets those of a mini-batch, one after the
        other, to where the dual of the proximal step is largest. p = Σ_j c_j s_j a_j is the subgradient that they make
        together, as the last call returned it (at first 0). Returns the point that the slopes make, and p.

        Several lanes may run side by side, each with slopes of its own and the same mini-batches: v and p then hold
        their vectors one after the other, ``weight`` one number for each. From lane ``start``, if that is not
        negative, all take over the slopes first. A certificate is made of the first lane's. Without ``ridge`` the
        proximal step is that of the losses alone, and leaves out the l2 term.
        """

    def subgradient(self, x: Array, where: bool | NDArray[np.bool_] = True) -> Array:
        """A subgradient of f_i at x over all rows; zero for clients that ``where`` leaves out."""

    def value(self, x: Array) -> Array:
        """f_i(x)."""

    def cuts(self, x: Array, parts: int) -> tuple[Array, Array]:
        """Values and subgradients, at points that x holds one after the other, of each of so many parts of the loss,
        over all rows and without the l2 and l1 terms. A part is the sum over every so many-th row of the client.
        """

    def curvature(self, x: Array, full: bool) -> Array:
        """The curvature of the loss at x, kinks blurred (:mod:`fedmls.local.curvature`): the upper triangle of a
        matrix, row by row, or its diagonal. Zeros where there are no rows.
        """

    def own_quadratic(self, x0: Array, full: bool) -> tuple[Array, Array, Array]:
        """The curvature H at about the client's own minimum x from x0, and H x - p with a subgradient p there; and what
        the absolute values that a subgradient is a sum of come to, at most."""

    def terms(self) -> Array:
        """What the server must know of f beyond the loss: l2, l1, how many coordinates have them (the first ones), a
        number that no part of the loss is below, and one to which its values are sums of differences.
        """

    def cut(self) -> tuple[Array, Array]:
        """p = Σ_j c_j s_j a_j and a = -Σ_j c_j ℓ*(s_j) of the slopes that the first lane of ``ascend`` keeps: the loss
        is nowhere below a + p·x."""

    def keep_cut(self, share: float) -> None:
        """For the certificate: the kept slopes <- (1 - share) kept + share times those of the last ``descend``."""

    def compress(self, v: Array, method: str, level: float) -> Array:
        """v made smaller to send (see :mod:`fedmls.compression`), with random numbers of the client's own."""

    def own(self, values: Sequence[float]) -> NDArray[Any]:
        """The client's own of the values, one for each client, shaped to multiply its vectors."""

    def run_length(self, q: float | Sequence[float]) -> Counts:
        """Successes of a coin with probability q before its first failure, drawn by the client."""

    def place(self, participants: int | None) -> Any:
        """The client's place among those drawn for this round, in the order in which they were drawn: from 0 on, and -1
        for a client that was not drawn. All clients compute it from the shared seed."""


class Traits(NamedTuple):
    """What an engine must know about an algorithm before it runs it.

    aggregate: "mean": the server sees only Σ w_i up_i, fit for secure aggregation; "stack": every client's upload.
    on_demand: fields of Up that are sent only when the model is asked for.
    certifies: its local averages make a certificate (see :mod:`fedmls.bounds.certificate`).
    numbers: fields of Up and Down that hold a few numbers, or none, and no vectors: they are never compressed.
    packed: bytes of one uploaded vector of d numbers, given d and how many clients upload one, in their mean, where it
    is not 8 d (see :mod:`fedmls.compression`).  packed_down: the same of one that is sent down.
    follow_up: with ``participants``, those of a round get the next one's Down too, to learn what came of theirs.
    proves: its server knows a lower bound on f* and f at its model (its ``lower_bound`` and ``objective``): nobody has
    to be asked for either.
    reads_all_rows: whatever the batch.
    varying: the sizes of its Up differ from round to round; they follow from Down.
    short: arrays of its Up and Down may be of float32 or of whole numbers, which take fewer bytes than eight each
    (:mod:`fedmls.wire`).
    reveals_objective: its uploads hold f_i at some point, or numbers from which f_i follows.
    needs_rows: it asks ``local`` for what only rows can answer, and functions of an OracleProblem cannot.
    needs_no_l1: it works on the slopes of rows: an l1 term must be given as rows, too.
    needs_l2: it works only on problems with an l2 term.
    stacks: several runs of it can be one simulation (``fedmls.local.stacked``): its methods do nothing but
    arithmetic to arrays of the shapes (R, n, d) and (R, 1, d), and to numbers of each run, (R, 1, 1). Such numbers are
    these hyper-parameters, where runs differ in them, and what it draws from ``rng``, a generator for each run.
    uneven: how many local steps a round has is drawn so, and differs from run to run.
    """

    aggregate: str = "mean"
    on_demand: tuple[str, ...] = ()
    certifies: bool = False
    numbers: tuple[str, ...] = ()
    packed: Callable[[int, int], float] | None = None
    packed_down: Callable[[int, int], float] | None = None
    follow_up: bool = False
    proves: bool = False
    reads_all_rows: bool = False
    varying: bool = False
    short: bool = False
    reveals_objective: bool = False
    needs_rows: bool = False
    needs_no_l1: bool = False
    needs_l2: bool = False
    stacks: tuple[str, ...] | None = None
    uneven: bool = False


class Scale(NamedTuple):
    """A problem's own units: its clients; D0/Ḡ, which step sizes and λ/n are counted in; how far a coordinate of the
    minimiser may be.

    many: local steps that make many passes over a client's rows.  smooth: whether its loss is.
    """

    n: int
    step: float
    reach: float
    many: int = 250
    smooth: bool = False


class Algorithm(ABC, Generic[ServerT, ClientT, DownT, UpT]):
    """What an engine needs. Implementations are frozen dataclasses of hyper-parameters, and final::

        @hyperparameters
        class FedAvg(Algorithm[Server, Client, Down, Up]):

    Of what stands before ``init`` most say nothing but their name.

    title: what it is called in tables and figures; the name of the class unless given.
    references: for privacy, what each field of Up is compared with: a field of Down, or None where it is a difference
    already. Clients clip what is left, and add noise to it. An algorithm without references does not go with privacy.
    participants: so many clients, drawn at random, take part in a round; None for all.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    references: ClassVar[References] = {}
    participants: int | None = None

    def __init_subclass__(cls) -> None:
        """Set the title, and Down and Up, which the class names in ``Algorithm[Server, Client, Down, Up]``."""
        super().__init_subclass__()
        if "title" not in cls.__dict__:
            cls.title = cls.__name__
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Algorithm:
                _, _, cls.Down, cls.Up = get_args(base)  # type: ignore[method-assign]

    @property
    def Down(self) -> type[DownT]:
        """The NamedTuple that goes down to the clients."""
        raise TypeError(f"{type(self).__name__} does not say what it sends; {DERIVE}")

    @property
    def Up(self) -> type[UpT]:
        """The NamedTuple that comes up from a client."""
        raise TypeError(f"{type(self).__name__} does not say what it sends; {DERIVE}")

    @property
    def traits(self) -> Traits:
        """What an engine must know about it."""
        return Traits()

    @property
    def rounds_per_exchange(self) -> int:
        """How many rounds the server can ask for at once (2 for paired FedMLS, otherwise 1).

        ``broadcast`` of that many rounds is called before the uploads of the first one come in.
        """
        return 1

    @classmethod
    def address(cls) -> str:
        """Return the name by which :func:`fedmls.algorithms.find` finds the class: "fedavg", or "module:Class"."""
        built_in = cls.__module__.partition(".")[0] == __package__
        return cls.name if built_in else f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def fair_start(cls, scale: Scale) -> Self:
        """Return the algorithm with parameters that are a fair start, not a tuned one, on a problem of this scale."""
        return cls()

    @abstractmethod
    def init(self, x0: Array, n: int) -> tuple[ServerT, ClientT]:
        """The server's state and the state every client starts from."""

    @abstractmethod
    def broadcast(self, k: int, server: ServerT, rng: np.random.Generator) -> tuple[ServerT, DownT]: ...

    @abstractmethod
    def client_round(self, k: int, client: ClientT, down: DownT, local: Local) -> tuple[ClientT, UpT]: ...

    @abstractmethod
    def server_round(self, k: int, server: ServerT, up: UpT) -> ServerT: ...

    @abstractmethod
    def model(self, server: ServerT) -> Array | tuple[Array, ...]:
        """The answer; or candidates, the one with the smallest objective being the answer."""

    def objective(self, server: ServerT) -> float:
        """f at the model, of an algorithm that proves; NaN where its server does not know it."""
        return np.nan

    def lower_bound(self, server: ServerT, radius: float, x0: Array) -> float:
        """What f is nowhere below in the ball ‖x - x0‖ <= radius, of an algorithm that proves."""
        return -np.inf

    def units(self, down: DownT) -> dict[str, Any]:
        """What the numbers of a field of the answer are multiples of, by its name, where they are whole ones."""
        return {}


DERIVE = "derive it from Algorithm[Server, Client, Down, Up], its four NamedTuples"


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
    passes        rows read by all clients together, over all rows (a simulation counts them)
    vectors_*     d-vectors sent up or down, all clients together
    bytes_*       the same in bytes
    objective     f at the model
    gap           objective - f*;  relative_gap = gap / |f*|, the gap itself for f* = 0 (below 1e-9)
    lower_bound   with ``certificate``: f* is not below it;  certified_gap = objective - lower_bound, where the server
                  knows the objective
    seconds       wall-clock time so far
    ============  =====================================================================

    A row counts what a run that ends there has spent, with the model (and the certificate) asked for once.

    ``diverged`` says that the iterates overflowed; the history then ends with the last finite round.
    ``error`` is what ended a run of a sweep with ``errors="keep"``; its history is then empty.
    """

    algorithm: Algorithm
    seed: int
    batch: float
    x: Array
    history: "pd.DataFrame"
    optimum: float | None
    diverged: bool = False
    error: str = ""

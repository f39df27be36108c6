"""The check of an algorithm: all that are registered pass it, and each way to break the contract is told."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import fedmls
from fedmls.contract import BrokenContract
from fedmls.hyperparameters import hyperparameters
from fedmls.types import Algorithm, Array, Traits
from tests.support.algorithms import SMALL_STEPS


@pytest.mark.parametrize("name", fedmls.ALGORITHMS)
def test_registered_algorithms_keep_the_contract(name):
    fedmls.check_algorithm(fedmls.make(name, **SMALL_STEPS[name]))


@pytest.mark.parametrize(
    "algorithm",
    [
        fedmls.FedMLS(lam0="auto", paired=True, output="best"),
        fedmls.FedAvg(participants=2),
        fedmls.FedSplit(exact=True),
        fedmls.Compressed(algorithm=fedmls.Scaffold(), method="quantise", level=8),
        fedmls.Compressed(algorithm=fedmls.FedMLSE(lam0="auto")),
    ],
    ids=repr,
)
def test_so_do_their_variants(algorithm):
    fedmls.check_algorithm(algorithm)


def test_parameters_of_each_client_take_as_many_clients():
    fedmls.check_algorithm(fedmls.GradSkip(q=(0.9, 0.8, 0.7, 0.9, 0.8)), clients=5)


class Server(NamedTuple):
    x: Array
    count: int = 0


class Client(NamedTuple):
    u: Array


class Down(NamedTuple):
    x: Array


class Up(NamedTuple):
    u: Array
    size: Array


class OtherUp(NamedTuple):
    u: Array
    size: Array


TOSSES = np.random.default_rng(0)
KEPT: dict[str, Any] = {}


@hyperparameters
class Sound(Algorithm[Server, Client, Down, Up]):
    """The subgradient method, with the length of each client's point beside it. It keeps the contract."""

    name: ClassVar[str] = "sound"
    traits: ClassVar[Traits] = Traits(numbers=("size",))
    eta: float = 0.01

    def init(self, x0, n):
        return Server(x0), Client(x0)

    def broadcast(self, k, server, rng):
        return server, Down(server.x)

    def client_round(self, k, client, down, local):
        u, _ = local.descend(down.x, np.array([self.eta]))
        return Client(u), Up(u, self.size(u))

    def size(self, u):
        return (u**2).sum(axis=-1, keepdims=True)

    def server_round(self, k, server, up):
        return Server(up.u, server.count + 1)

    def model(self, server):
        return server.x


def test_the_sound_one_passes():
    fedmls.check_algorithm(Sound())


class NumberWithoutColumn(Sound):
    def size(self, u):
        return (u**2).sum(axis=-1)


class LooksAtTheFirstAxis(Sound):
    def client_round(self, k, client, down, local):
        client, up = super().client_round(k, client, down, local)
        return client, up._replace(u=up.u - 0.1 * up.u.mean(axis=0))


class FewNumbersAsVector(Sound):
    traits: ClassVar[Traits] = Traits()

    def size(self, u):
        return u[..., :2]


class Grows(Sound):
    def client_round(self, k, client, down, local):
        client, up = super().client_round(k, client, down, local)
        return client, up._replace(size=np.repeat(up.size, k, axis=-1))


class WritesIntoItsState(Sound):
    def client_round(self, k, client, down, local):
        client.u[...] = 1.0
        return super().client_round(k, client, down, local)


class WritesIntoDown(Sound):
    def client_round(self, k, client, down, local):
        result = super().client_round(k, client, down, local)
        down.x[...] = 0.0
        return result


class ForgetsTheClientsState(Sound):
    def client_round(self, k, client, down, local):
        return super().client_round(k, client, down, local)[1].u


class TossesItsOwnCoins(Sound):
    def server_round(self, k, server, up):
        return server._replace(x=up.u + 1e-3 * TOSSES.random())


class KeepsOutsideOfItsState(Sound):
    def server_round(self, k, server, up):
        KEPT["calls"] = 1 if k == 1 else KEPT.get("calls", 0) + (server.count == k - 1)
        return Server(up.u / (1 + 0.01 * KEPT["calls"]), server.count + 1)


class SendsHalfNumbers(Sound):
    def client_round(self, k, client, down, local):
        client, up = super().client_round(k, client, down, local)
        return client, up._replace(size=up.size.astype(np.float16))


class SendsAnotherUp(Sound):
    def client_round(self, k, client, down, local):
        client, up = super().client_round(k, client, down, local)
        return client, OtherUp(*up)


class SendsAMatrix(Sound):
    def broadcast(self, k, server, rng):
        return server, Down(np.stack([server.x, server.x]))


class KeepsANumber(Sound):
    def init(self, x0, n):
        return Server(x0), Client(1.0)


class KeepsAList(Sound):
    def init(self, x0, n):
        return Server([*x0]), Client(x0)


class ModelOfAnotherShape(Sound):
    def model(self, server):
        return server.x[None, :]


class NeedsRows(Sound):
    def client_round(self, k, client, down, local):
        u = local.prox(down.x, 0.01)
        return Client(u), Up(u, self.size(u))


class ProvesTooMuch(Sound):
    traits: ClassVar[Traits] = Traits(numbers=("size",), proves=True)

    def lower_bound(self, server, radius, x0):
        return 1e9


class NamesNoField(Sound):
    traits: ClassVar[Traits] = Traits(numbers=("sizes",))


class ForgetsAReference(Sound):
    references: ClassVar = {"u": "x"}


class Diverges(Sound):
    def server_round(self, k, server, up):
        return Server(up.u * 1e200, 0)


BROKEN = {
    NumberWithoutColumn: "size of Up has shape (4,) for 4 clients, and must have (4, …): a number for each client is a "
    "column, (4, 1); write size[..., None]",
    LooksAtTheFirstAxis: "one client at a time, the model differs from the simulation's by",
    FewNumbersAsVector: "size of Up holds 2 numbers, which are no vectors of 6; if it holds a few numbers, say "
    "Traits(numbers=('size',))",
    Grows: "the shapes of Up change from",
    WritesIntoItsState: "client_round changes u of the Client that it is given; return a new one",
    WritesIntoDown: "client_round changes x of the Down that it is given; return a new one",
    ForgetsTheClientsState: "client_round returns ndarray; return the client's state and an Up",
    TossesItsOwnCoins: "the model differs from the simulation's by",
    KeepsOutsideOfItsState: "when a run is stopped and goes on, the model differs from the simulation's by",
    SendsHalfNumbers: "Up cannot be sent: arrays of float16 are not sent",
    SendsAnotherUp: "client_round returns a OtherUp, not the Up that the class declares",
    SendsAMatrix: "x of Down has shape (2, 6); send arrays of one dimension",
    KeepsANumber: "u of the client's state is 1.0; make it an array of one dimension, also for one number",
    KeepsAList: "states hold arrays and numbers",
    ModelOfAnotherShape: "model returns an array of shape (1, 6); it must have (6,)",
    NeedsRows: "if it needs rows, say Traits(needs_rows=True)",
    ProvesTooMuch: "lower_bound says 1000000000.0, and f at the model is below it",
    NamesNoField: "numbers has 'sizes', which is no field; there are u, size, x",
    ForgetsAReference: "references lacks 'size' of Up",
    Diverges: "diverges on a small problem; check it with smaller steps",
}


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_what_breaks_the_contract_is_told(cls):
    with pytest.raises(BrokenContract) as error:
        fedmls.check_algorithm(hyperparameters(cls)())
    assert BROKEN[cls] in str(error.value)


def test_what_is_not_declared_is_told():
    class Nameless(Sound):
        name: ClassVar[str] = ""

    class Mute(Algorithm):
        name = "mute"
        init = broadcast = client_round = server_round = model = None

    class Odd(Sound):
        weight: Any = None

    for algorithm, message in (
        (hyperparameters(Nameless)(), 'Nameless has no name; write name: ClassVar[str] = "nameless"'),
        (object.__new__(type("Plain", (Sound,), {})), "Plain is no frozen dataclass of its parameters"),
        (
            hyperparameters(Mute)(),
            "Mute does not say what it sends; derive it from Algorithm[Server",
        ),
        (hyperparameters(Odd)(weight={1, 2}), "cannot be written as JSON"),
    ):
        with pytest.raises(BrokenContract) as error:
            fedmls.check_algorithm(algorithm)
        assert message in str(error.value)


@pytest.mark.parametrize("what", [fedmls.FedAvg, "fedavg", None])
def test_what_is_no_algorithm_is_told(what):
    with pytest.raises(ValueError, match="is no algorithm; give an object such as"):
        fedmls.check_algorithm(what)


def test_compressed_twice_is_refused():
    once = fedmls.Compressed(algorithm=fedmls.FedAvg())
    with pytest.raises(ValueError, match="compresses what it sends by itself; leave out Compressed"):
        fedmls.Compressed(algorithm=once)

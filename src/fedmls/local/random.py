"""Random numbers without a state: a hash (SplitMix64: Steele, Lea, Flood 2014) of seed, round, client and call.

No generator has to be stored or sent, so resuming and the two engines agree to the last bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedmls.local.rows import Integers

Seeds = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Stream(NamedTuple):
    """Which random numbers some clients draw in one call, and how many rows each draws for a mini-batch.

    seeds: of the run, for each client.  k: the round.  call: how many calls came before it in the round.
    clients: their numbers in the federation.  batch_sizes: the rows in a mini-batch of each.
    """

    seeds: Seeds
    k: int
    call: int
    clients: Integers
    batch_sizes: Integers

    def of(self, some: slice) -> "Stream":
        """The random numbers of these of the clients."""
        seeds, clients, sizes = self.seeds[some], self.clients[some], self.batch_sizes[some]
        return self._replace(seeds=seeds, clients=clients, batch_sizes=sizes)


@njit(cache=True, nogil=True)
def mix(z: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64-bit numbers that looks random."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def stream(seed: np.uint64, k: int, client: int, call: int) -> np.uint64:
    """The counter at which the random numbers of one client in one call begin."""
    z = mix(np.uint64(seed) + GOLDEN)
    z = mix(z + np.uint64(k) * GOLDEN)
    z = mix(z + np.uint64(client + 1) * GOLDEN)
    return mix(z + np.uint64(call + 1) * GOLDEN)


@njit(cache=True, nogil=True)
def first_counter(of: Stream, i: int) -> np.uint64:
    """Return where the random numbers of client i of a stream begin."""
    return stream(of.seeds[i], of.k, of.clients[i], of.call)


@njit(cache=True, nogil=True)
def first_counters(of: Stream) -> Seeds:
    """Return the same for all clients of a stream."""
    counters = np.empty(len(of.clients), np.uint64)
    for i in range(len(of.clients)):
        counters[i] = first_counter(of, i)
    return counters


@njit(cache=True, nogil=True, forceinline=True)
def draw(batch: Integers | Seeds, size: int, m: int, counter: np.uint64) -> np.uint64:
    """Make batch[:size] a uniform sample without replacement of batch[:m]; return the next counter.

    This is a partial Fisher-Yates shuffle. One hash serves two draws, with its upper and its lower half.
    """
    bits = np.uint64(0)
    for r in range(size):
        if r % 2 == 0:
            counter += GOLDEN
            bits = mix(counter)
        k = np.uint64(r) + ((bits >> np.uint64(32)) * np.uint64(m - r) >> np.uint64(32))
        bits <<= np.uint64(32)
        batch[r], batch[k] = batch[k], batch[r]
    return counter

"""A plain loop in JAX: the local steps of a client are one compiled function."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from job import ETA, STEPS, clients, measure

jax.config.update("jax_enable_x64", True)
CLIENTS = [(jnp.asarray(c.X), jnp.asarray(c.y), c.batch) for c in clients()]


@partial(jax.jit, static_argnames="batch")
def local(x: Any, X: Any, y: Any, key: Any, batch: int) -> Any:
    def loss(u: Any, chosen: Any) -> Any:
        return len(y) / batch * jax.nn.relu(1 - y[chosen] * (X[chosen] @ u)).sum()

    def step(u: Any, key: Any) -> Any:
        return u - ETA * jax.grad(loss)(u, jax.random.permutation(key, len(y))[:batch]), None

    return jax.lax.scan(step, x, jax.random.split(key, STEPS))[0]


def train(rounds: int) -> Any:
    key, x = jax.random.key(0), jnp.zeros(CLIENTS[0][0].shape[1])
    for _ in range(rounds):
        key, *keys = jax.random.split(key, len(CLIENTS) + 1)
        x = jnp.mean(jnp.stack([local(x, X, y, k, batch) for (X, y, batch), k in zip(CLIENTS, keys, strict=True)]), 0)
    return x.block_until_ready()


measure(train, "jax", "jaxlib")

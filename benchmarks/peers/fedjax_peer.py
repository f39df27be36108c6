"""FedJAX: its for_each_client and its batches, which go through the rows in shuffled order."""

from itertools import count
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
from job import ETA, STEPS, clients, measure

jax.config.update("jax_enable_x64", True)
CLIENTS = [(fedjax.ClientDataset({"x": c.X, "y": c.y}), len(c.y), c.batch) for c in clients()]
DIMENSION = clients()[0].X.shape[1]


def batches(data: Any, size: int, seed: int) -> Any:
    return data.shuffle_repeat_batch(batch_size=size, num_epochs=None, num_steps=STEPS, drop_remainder=True, seed=seed)


def begin(shared: Any, own: Any) -> Any:
    return {"u": shared, "factor": own}


def step(state: Any, batch: Any) -> Any:
    def loss(u: Any) -> Any:
        return state["factor"] * jax.nn.relu(1 - batch["y"] * (batch["x"] @ u)).sum()

    return {"u": state["u"] - ETA * jax.grad(loss)(state["u"]), "factor": state["factor"]}


each = fedjax.for_each_client(begin, step, lambda shared, state: state["u"])


def train(rounds: int) -> Any:
    seeds, x = count(), jnp.zeros(DIMENSION)
    for _ in range(rounds):
        tasks = [
            (i, batches(data, batch, next(seeds)), jnp.asarray(m / batch)) for i, (data, m, batch) in enumerate(CLIENTS)
        ]
        x = jnp.mean(jnp.stack([u for _, u in each(x, tasks)]), axis=0)
    return x.block_until_ready()


measure(train, "fedjax", "jax")

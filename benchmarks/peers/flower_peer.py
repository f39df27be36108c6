"""Flower's simulation: its FedAvg strategy over Ray; the local steps are in NumPy."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parent))  # Ray's processes import this file, too
from job import ETA, STEPS, clients, measure

CLIENTS = clients()
client, models = ClientApp(), list[Any]()


@client.train()
def local(message: Message, context: Context) -> Message:
    X, y, batch = CLIENTS[int(context.node_config["partition-id"])]
    rng = np.random.default_rng()
    [u] = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(STEPS):
        chosen = rng.choice(len(y), batch, replace=False)
        a, b = X[chosen], y[chosen]
        u = u + ETA * len(y) / batch * (b * (b * (a @ u) < 1)) @ a
    content = RecordDict({"arrays": ArrayRecord([u]), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def train(rounds: int) -> Any:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        n = len(CLIENTS)
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        first = ArrayRecord([np.zeros(CLIENTS[0].X.shape[1])])
        models.append(strategy.start(grid, first, num_rounds=rounds).arrays.to_numpy_ndarrays()[0])

    run_simulation(server, client, len(CLIENTS), backend_config={"client_resources": {"num_cpus": 1}})
    return models[-1]


if __name__ == "__main__":
    measure(train, "flwr", "ray", clock=time.perf_counter)

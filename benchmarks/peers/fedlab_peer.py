"""FedLab: its serial trainer and its aggregator; autograd and torch.optim.SGD of PyTorch."""

from typing import Any

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.utils.aggregator import Aggregators
from job import ETA, STEPS, clients, measure

torch.set_num_threads(1)
CLIENTS = [(torch.tensor(c.X), torch.tensor(c.y), c.batch) for c in clients()]


class Trainer(SGDSerialClientTrainer):  # type: ignore[misc]
    """The local steps of FedAvg on the hinge loss."""

    def train(self, model_parameters: Any, client: int) -> list[Any]:
        self.set_model(model_parameters)
        X, y, batch = CLIENTS[client]
        optimizer = torch.optim.SGD(self._model.parameters(), lr=ETA)
        for _ in range(STEPS):
            chosen = torch.randperm(len(y))[:batch]
            optimizer.zero_grad()
            loss = len(y) / batch * torch.relu(1 - y[chosen] * self._model(X[chosen])[:, 0]).sum()
            loss.backward()
            optimizer.step()
        return [self.model_parameters]

    def local_process(self, payload: list[Any], id_list: list[int]) -> None:
        self.cache = [self.train(payload[0], i) for i in id_list]


def train(rounds: int) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(CLIENTS[0][0].shape[1], 1, bias=False, dtype=torch.float64)
    trainer = Trainer(model, len(CLIENTS))
    x = torch.zeros(CLIENTS[0][0].shape[1], dtype=torch.float64)
    for _ in range(rounds):
        trainer.local_process([x], list(range(len(CLIENTS))))
        x = Aggregators.fedavg_aggregate([upload[0] for upload in trainer.uplink_package])
    return x


measure(train, "fedlab", "torch")

"""pfl-research: its federated averaging on PyTorch, every client in each round, weighted alike."""

from collections.abc import Iterator
from typing import Any

import torch
from job import ETA, STEPS, clients, measure
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)
CLIENTS = [(torch.tensor(c.X), torch.tensor(c.y), c.batch) for c in clients()]


class Batches(Dataset):
    """The rows of a client, from which each step draws a batch of its own."""

    def iter(self, batch_size: int | None) -> Iterator[Any]:
        X, y, batch = self.raw_data
        for _ in range(STEPS):
            chosen = torch.randperm(len(y))[:batch]
            yield X[chosen], y[chosen], len(y) / batch

    def __len__(self) -> int:
        return STEPS


class Model(torch.nn.Module):
    """A support vector machine."""

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(CLIENTS[0][0].shape[1], dtype=torch.float64))

    def loss(self, X: Any, y: Any, factor: float, eval: bool = False) -> Any:
        return factor * torch.relu(1 - y * (X @ self.x)).sum()

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


def train(rounds: int) -> Any:
    torch.manual_seed(0)
    module = Model()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = list(range(len(CLIENTS)))
    data = FederatedDataset(lambda i: Batches(CLIENTS[i], user_id=str(i)), get_user_sampler("minimize_reuse", users))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=ETA, local_batch_size=1),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[],
    )
    return module.x.detach()


measure(train, "pfl", "torch")

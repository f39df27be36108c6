"""A plain loop in PyTorch: autograd and torch.optim.SGD."""

from typing import Any

import torch
from job import ETA, STEPS, clients, measure

torch.set_num_threads(1)
CLIENTS = [(torch.tensor(c.X), torch.tensor(c.y), c.batch) for c in clients()]


def train(rounds: int) -> Any:
    torch.manual_seed(0)
    x = torch.zeros(CLIENTS[0][0].shape[1], dtype=torch.float64)
    for _ in range(rounds):
        uploads = []
        for X, y, batch in CLIENTS:
            u = x.clone().requires_grad_()
            optimizer = torch.optim.SGD([u], lr=ETA)
            for _ in range(STEPS):
                chosen = torch.randperm(len(y))[:batch]
                optimizer.zero_grad()
                loss = len(y) / batch * torch.relu(1 - y[chosen] * (X[chosen] @ u)).sum()
                loss.backward()
                optimizer.step()
            uploads.append(u.detach())
        x = torch.stack(uploads).mean(dim=0)
    return x


measure(train, "torch")

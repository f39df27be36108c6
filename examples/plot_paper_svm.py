"""
The paper's experiment, in the small
====================================

A support vector machine on the Wisconsin breast cancer data. K-means cuts the 699 rows into ten
clients that are as unlike as can be: some have hardly a malignant row, some hardly a benign
one. ``fedmls reproduce`` runs this experiment as in the FedMLS paper, with three parameters for
each method, 20 seeds and 1000 rounds; here it is one good parameter, three seeds and 200
rounds.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedmls

X, y = fedmls.datasets.breast_cancer_wisconsin()


def problem(seed):
    """Every seed has its own cut into clients."""
    clients = fedmls.partition.kmeans(X, n_clients=10, seed=seed)
    return fedmls.Problem(X, y, clients=clients, loss="hinge")


# %%
# How unlike are they? Each bar is a client.

first = problem(0)
malignant = np.add.reduceat(first.y > 0, first.offsets[:-1], dtype=int)
benign = first.rows_per_client - malignant

figure, axes = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
axes.bar(range(10), benign, color="#56B4E9", label="benign")
axes.bar(range(10), malignant, bottom=benign, color="#D55E00", label="malignant", hatch="//")
axes.set(xlabel="client", ylabel="rows", xticks=range(10))
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# The methods, each with the best of the paper's three parameters, and FedMLS-D, which has none
# to choose.

methods = {
    "FedAvg, η₀ = 0.01": fedmls.FedAvg(eta0=0.01),
    "Scaffold, η₀ = 0.01": fedmls.Scaffold(eta0=0.01),
    "Scaffnew, η₀ = 0.01": fedmls.Scaffnew(eta0=0.01),
    "FedMLS, λ₀ = 1": fedmls.FedMLS(lam0=1.0),
    "FedMLS-D": fedmls.FedMLSD(),
}
algorithms = list(methods.values())
runs = fedmls.sweep(algorithms, problem, rounds=200, batch=0.1, seeds=range(3), jobs=1)

# %%
# All clients meet once in a round, so rounds are what the network sees. The band is the range
# over the seeds.

figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
colours = ["#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#0072B2"]
marks = ["v", "^", "D", "s", "o"]
for i, name in enumerate(methods):
    gaps = [run.history.set_index("round")["relative_gap"] for run in runs[3 * i : 3 * i + 3]]
    rounds, mean = gaps[0].index, sum(gaps) / 3
    at = [0, 1, 3, 9, 29, 99, 199]
    axes.loglog(rounds, mean, color=colours[i], marker=marks[i], markevery=at, label=name)
    low, high = np.min(gaps, axis=0), np.max(gaps, axis=0)
    axes.fill_between(rounds, low, high, color=colours[i], alpha=0.15, linewidth=0)
axes.set(xlabel="rounds", ylabel="relative gap  (f − f*)/f*")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
axes.grid(color="0.92")
plt.show()

for i, name in enumerate(methods):
    ends = [run.history["relative_gap"].iloc[-1] for run in runs[3 * i : 3 * i + 3]]
    print(f"{name:20} relative gap after 200 rounds: {min(ends):.3g} to {max(ends):.3g}")

# %%
# FedAvg averages models that have run off in ten directions. FedMLS with the paper's schedule
# needs more rounds than these 200 to show what it can do, and has a guarantee. FedMLS-D is its
# successor: the same problem with multipliers, and local steps in the dual. This is one
# problem; what the methods do on others is in the benchmarks.

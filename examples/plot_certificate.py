"""
A run that proves how good its answer is
========================================

In a federation nobody knows the optimum f*, so nobody can see the gap. FedMLS, FedMLS-E and
FedMLS-D can prove a lower bound on f* from numbers that they have anyway: every client keeps
one slope for each of its rows, and from these the clients' means make a plane that lies below
f. The gap between the objective and that bound is *certified*: the true one is not larger.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedmls

X, y = fedmls.datasets.breast_cancer_wisconsin()
X = (X - X.mean(axis=0)) / X.std(axis=0)
clients = fedmls.partition.kmeans(X, n_clients=10)
problem = fedmls.Problem(X, y, clients=clients, loss="hinge", l2=0.1, reduction="mean")

# %%
# The bound holds in a ball around the start that must hold the minimiser: 10 is a guess on the
# safe side, more than ten times the length that x* really has. ``until`` ends the run when a
# gap of 0.001 is proved. No reference solver is asked: it is called afterwards, to check.

run = fedmls.simulate(
    fedmls.FedMLSD(), problem, rounds=500, batch=0.1, certificate=10.0, until=1e-3, optimum=None
)
history = run.history
best = fedmls.optimum(problem)
last = history.iloc[-1]
print(f"stopped after {len(history)} rounds")
print(f"objective {last['objective']:.5f}, lower bound {last['lower_bound']:.5f}")
print(f"proved: the gap is at most {last['certified_gap']:.2g}")
print(f"in truth it is {last['objective'] - best.value:.2g}")
print(f"‖x*‖ = {np.linalg.norm(best.x):.2f}")

# %%
# On the left the objective comes down and the bound comes up, with f* in between. On the right
# the same as gaps.

figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
rounds, known = history["round"], {"color": "#0072B2"}
proved = {"color": "#D55E00", "linestyle": "--"}
left.plot(rounds, history["objective"], **known, label="objective f(x)")
left.plot(rounds, history["lower_bound"], **proved, label="lower bound")
left.axhline(best.value, color="black", lw=0.8, ls=":", label="f*, which the run does not know")
left.set(xlabel="rounds", ylim=(0, 1), title="objective and bound")
right.semilogy(rounds, history["certified_gap"], **proved, label="certified gap")
right.semilogy(rounds, history["objective"] - best.value, **known, label="true gap")
right.axhline(1e-3, color="0.6", lw=0.8)
right.text(1, 0.9e-3, "until = 0.001", color="0.4", fontsize=9, va="top")
right.set(xlabel="rounds", title="gaps")
for axes in (left, right):
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The proof costs a number and a vector in every recorded round, which are counted in
# ``bytes_up``. If the ball is too small for the minimiser, the objective falls below the
# "bound" at some round: the run notices, says so, and claims nothing more.

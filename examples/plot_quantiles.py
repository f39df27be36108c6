"""
Quantiles over several clinics
==============================

How long will a patient wait? The mean is no good answer: a few wait very long. Quantile
regression answers "nine out of ten wait less than this". Its loss, the pinball loss, has a
kink, which is what the methods here are made for. The clinics keep their rows: each sends one
vector in a round.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedmls

# %%
# Six clinics, made up. Each is open at other hours, so that no clinic sees the whole day, and
# waiting times scatter more towards the evening.

rng = np.random.default_rng(0)
clinic = np.repeat(np.arange(6), 100)
hour = 8 + 2 * clinic + 4 * rng.random(600)
minutes = 10 + 2.5 * (hour - 8) + (1 + 0.6 * (hour - 8)) * rng.exponential(4, size=600)
X = hour[:, None]

# %%
# One model for each quantile. ``groups`` says who holds which row; ``tol`` is how close to the
# best model the answer is *proved* to be, relative to the objective.

models = {}
for q in (0.1, 0.5, 0.9):
    model = fedmls.FederatedQuantileRegressor(quantile=q, alpha=0.0, tol=1e-3, random_state=0)
    models[q] = model.fit(X, minutes, groups=clinic)
    below = np.mean(minutes <= model.predict(X))
    print(
        f"quantile {q}: {model.n_iter_} rounds, objective {model.objective_:.3f}, "
        f"at most {model.certified_gap_:.1e} above the best; {100 * below:.0f}% of rows below"
    )

# %%
# The band holds four of five patients. A clinic by itself (the dashed line: the 90% quantile of
# the first clinic's own rows) knows nothing about the hours it does not see, and is off by the
# evening.

hours = np.linspace(8, 22, 50)[:, None]
alone = fedmls.FederatedQuantileRegressor(quantile=0.9, alpha=0.0, random_state=0, n_clients=1)
alone.fit(X[clinic == 0], minutes[clinic == 0])

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
colours, marks = ["#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#999999"], "ov^sDP"
for i in range(6):
    rows = clinic == i
    look = {"s": 10, "c": colours[i], "marker": marks[i], "alpha": 0.7}
    axes.scatter(hour[rows], minutes[rows], **look, label=f"clinic {i + 1}")
low, high = models[0.1].predict(hours), models[0.9].predict(hours)
axes.fill_between(hours[:, 0], low, high, color="#0072B2", alpha=0.15, lw=0, label="10% to 90%")
axes.plot(hours, models[0.5].predict(hours), color="#0072B2", label="median")
axes.plot(hours, alone.predict(hours), "--", color="black", lw=1, label="90%, clinic 1 alone")
axes.set(xlabel="hour of the day", ylabel="minutes of waiting", ylim=(0, 130))
axes.legend(frameon=False, ncols=2, loc="upper left")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

"""Each algorithm once more, in plain NumPy with loops over clients, straight from its paper.

Nothing of the package is used here. ``g[i](x)`` is client i's subgradient, ``w`` the client weights; each returns the
list of models after rounds 1, 2, ..., K.
"""

import math

import numpy as np


def fedmls(g, w, x0, K, lam, T, R=np.inf):
    """lam(k) and T(k) are functions. Lines as in shared notation: rounds k and local steps t from 1."""
    n = len(g)

    def project(v):
        norm = np.linalg.norm(v)
        return v if norm <= R else v * (R / norm)

    def gamma(k):
        return 2.0 / (k + 1)

    x = z = y = x0
    xs, zs, ys = [x0] * n, [x0] * n, [x0] * n
    models = []
    for k in range(1, K + 1):
        for i in range(n):
            v = zs[i] - k / 4 * (ys[i] - y)
            u = u_avg = zs[i]
            for t in range(1, T(k) + 1):
                u = project(u - (g[i](u) * lam(k) * k / (4 * n) + u - v) / (1 + t / 2))
                theta = 2 * (t + 1) / (t * (t + 3))
                u_avg = (1 - theta) * u_avg + theta * u
            zs[i] = u
            xs[i] = (1 - gamma(k)) * xs[i] + gamma(k) * u_avg
        for i in range(n):
            ys[i] = (1 - gamma(k + 1)) * xs[i] + gamma(k + 1) * zs[i]
        x = (1 - gamma(k)) * x + gamma(k) * z
        y = (1 - gamma(k + 1)) * x + gamma(k + 1) * z
        z = project(z - (k + 1) / 4 * (y - sum(w[i] * ys[i] for i in range(n))))
        models.append(x)
    return models


def fedavg(g, w, x0, K, eta, T):
    x, models = x0, []
    for k in range(1, K + 1):
        ends = []
        for i in range(len(g)):
            u = x
            for _ in range(T(k)):
                u = u - eta(k) * g[i](u)
            ends.append(u)
        x = sum(w[i] * ends[i] for i in range(len(g)))
        models.append(x)
    return models


def scaffold(g, w, x0, K, eta0, T, option, decay):
    n = len(g)
    x, c, cs, t, models = x0, 0 * x0, [0 * x0] * n, 0, []
    for k in range(1, K + 1):
        dy, dc = [], []
        for i in range(n):
            y, total = x, 0.0
            for s in range(1, T(k) + 1):
                eta = eta0 / (math.sqrt(n) * (k if decay == "round" else t + s))
                y = y - eta * (g[i](y) - cs[i] + c)
                total += eta
            new = g[i](x) if option == "I" else cs[i] - c + (x - y) / total
            dy.append(y - x)
            dc.append(new - cs[i])
            cs[i] = new
        t += T(k)
        x = x + math.sqrt(n) * sum(w[i] * dy[i] for i in range(n))
        c = c + sum(w[i] * dc[i] for i in range(n))
        models.append(x)
    return models


def scaffnew(g, w, x0, meetings, eta, p):
    """One step at a time; ``meetings`` are the steps t at which the shared coin said to meet."""
    n = len(g)
    xs, hs, models = [x0] * n, [0 * x0] * n, []
    for t in range(1, meetings[-1] + 1):
        hats = [xs[i] - eta(t) * (g[i](xs[i]) - hs[i]) for i in range(n)]
        if t in meetings:
            mean = sum(w[i] * hats[i] for i in range(n))
            hs = [hs[i] + p(t) / eta(t) * (mean - hats[i]) for i in range(n)]
            xs = [mean] * n
            models.append(mean)
        else:
            xs = hats
    return models


def gradskip(g, w, x0, meetings, eta, p, awake):
    """``awake[r][i]``: how many coins of client i succeed in round r before its first failure."""
    n = len(g)
    xs, hs, models, last = [x0] * n, [0 * x0] * n, [], 0
    for t in range(1, meetings[-1] + 1):
        hats, h_hats = [], []
        for i in range(n):
            heads = t - last <= awake[len(models)][i]
            h_hat = hs[i] if heads else g[i](xs[i])
            hats.append(xs[i] - eta(t) * (g[i](xs[i]) - h_hat))
            h_hats.append(h_hat)
        if t in meetings:
            mean = sum(w[i] * (hats[i] - eta(t) / p(t) * h_hats[i]) for i in range(n))
            xs = [mean] * n
            models.append(mean)
            last = t
        else:
            xs = hats
        hs = [h_hats[i] + p(t) / eta(t) * (xs[i] - hats[i]) for i in range(n)] if t == last else h_hats
    return models


def splitmix(z):
    """Steele, Lea, Flood (2014), in Python's whole numbers."""
    mask = (1 << 64) - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def batches(seed, k, client, m, size, call=0):
    """The mini-batches of one client in round k, one after another, by the hash that the package documents."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    z = splitmix((seed + golden) & mask)
    for number in (k, client + 1, call + 1):
        z = splitmix((z + number * golden) & mask)
    rows = list(range(m))
    while True:
        for r in range(size):
            if r % 2 == 0:  # one hash gives two random numbers: its upper and its lower half
                z = (z + golden) & mask
                halves = divmod(splitmix(z), 1 << 32)
            j = r + ((halves[r % 2] * (m - r)) >> 32)
            rows[r], rows[j] = rows[j], rows[r]
        yield list(rows[:size])

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
            for t in range(1, (T(k) if np.isscalar(T(k)) else T(k)[i]) + 1):
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


def fedmlse(g, w, x0, K, lam, T):
    """FedMLS-E; returns the means of the x^i and of the z^i after each round."""
    n = len(g)
    xs, zs, averages, lasts = [x0] * n, [x0] * n, [], []
    for k in range(1, K + 1):
        a = 2 / (k + 1)
        ys = [(1 - a) * xs[i] + a * zs[i] for i in range(n)]
        y = sum(w[i] * ys[i] for i in range(n))
        for i in range(n):
            v = zs[i] - k / 2 * (ys[i] - y)
            u = u_avg = zs[i]
            for t in range(1, T(k) + 1):
                u = u - (g[i](u) * lam(k) / n * k / 2 + u - v) / (1 + t / 2)
                u_avg = u_avg + 2 * (t + 1) / (t * (t + 3)) * (u - u_avg)
            zs[i], xs[i] = u, (1 - a) * xs[i] + a * u_avg
        averages.append(sum(w[i] * xs[i] for i in range(n)))
        lasts.append(sum(w[i] * zs[i] for i in range(n)))
    return averages, lasts


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


def subgradient(g, w, x0, K, eta):
    """The points x_1, ..., x_K, and the averages of the points before them, weighted by their step."""
    x, points, steps, lasts, averages = x0, [], [], [], []
    for k in range(1, K + 1):
        points.append(x)
        steps.append(eta(k))
        x = x - eta(k) * sum(w[i] * g[i](x) for i in range(len(g)))
        lasts.append(x)
        averages.append(np.average(points, axis=0, weights=steps))
    return lasts, averages


def fedprox(g, w, x0, K, eta, T, mu):
    x, models = x0, []
    for k in range(1, K + 1):
        ends = []
        for i in range(len(g)):
            u = x
            for _ in range(T(k)):
                u = u - eta(k) * (g[i](u) + mu * (u - x))
            ends.append(u)
        x = sum(w[i] * ends[i] for i in range(len(g)))
        models.append(x)
    return models


def dcs(g, w, x0, K, eta, tau, T):
    """Lan, Lee, Zhou, Algorithms 3 (DCS) and CS, α = 1, with the whole matrix P = I - 1 w' in place of the Laplacian.

    Steps solve their own optimality condition: w + h + η (u - x) + η β (u - u_before) = 0. Returns the mean of the
    ergodic averages and the mean of the extrapolated points after each round.
    """
    n = len(g)
    P = np.eye(n) - np.outer(np.ones(n), w)
    x = x_before = x_hat = np.tile(x0, (n, 1))
    y, hats, averages, lasts = 0 * x, [], [], []
    for k in range(1, K + 1):
        x_tilde = x_hat - x_before + x
        y = y + P @ x_tilde / tau
        dual = P @ y
        x_before, x, x_hat = x, x.copy(), 0 * x
        for i in range(n):
            u, total = x_before[i], 0.0
            for t in range(1, T(k) + 1):
                beta, lam = t / 2, t + 1
                u = (eta * x_before[i] + eta * beta * u - dual[i] - g[i](u)) / (eta * (1 + beta))
                x_hat[i] += lam * u
                total += lam
            x[i] = u
            x_hat[i] /= total
        hats.append(x_hat)
        averages.append(w @ np.mean(hats, axis=0))
        lasts.append(w @ (x_hat - x_before + x))
    return averages, lasts


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


def tamuna(g, w, x0, meetings, eta, p, s, orders):
    """``orders[r]``: the clients that take part in round r, in the order in which they were drawn.

    The pattern has a row for each coordinate, with s ones, and a column for each client that takes part. With unequal
    weights the functions are n w_i f_i.
    """
    n, d = len(g), len(x0)
    x, hs, models, t = x0, [0 * x0] * n, [], 0
    for r, order in enumerate(orders):
        tau = len(order)
        pattern = np.zeros((d, tau))
        for c in range(d):
            for e in range(s):
                pattern[c, (c * s + e) % tau] = 1
        ends = {}
        for i in order:
            ends[i] = x
            for step in range(t + 1, meetings[r] + 1):
                ends[i] = ends[i] - eta(step) * n * w[i] * g[i](ends[i]) + eta(step) * hs[i]
        t = meetings[r]
        x = sum(pattern[:, j] * ends[i] for j, i in enumerate(order)) / s
        for j, i in enumerate(order):
            hs[i] = hs[i] + p(t) * n * (s - 1) / (s * (n - 1)) / eta(t) * pattern[:, j] * (x - ends[i])
        models.append(x)
    return models


def locodl(g, w, x0, meetings, eta, p, c, omega, compress):
    """``compress(r, i, v)``: what client i makes of v in round r, right in the mean. One step at a time."""
    n = len(g)
    rho, chi = 1 / (1 + omega / n), 1 / (2 * (1 + omega / n))
    xs, y, us, v, models = [x0] * n, x0, [0 * x0] * n, 0 * x0, []
    for t in range(1, meetings[-1] + 1):
        hats = [xs[i] - eta(t) * (g[i](xs[i]) - c * xs[i]) + eta(t) * us[i] for i in range(n)]
        y_hat = y - eta(t) * c * y + eta(t) * v
        if t in meetings:
            ds = [compress(len(models) + 1, i, hats[i] - y_hat) for i in range(n)]
            mean = sum(w[i] * ds[i] for i in range(n)) / 2
            xs = [(1 - rho) * hats[i] + rho * (y_hat + mean) for i in range(n)]
            y = y_hat + rho * mean
            rate = p(t) * chi / (eta(t) * (1 + 2 * omega))
            us = [us[i] + rate * (mean - ds[i]) for i in range(n)]
            v = v + rate * mean
            models.append(y)
        else:
            xs, y = hats, y_hat
    return models


def top_k(v, k):
    kept = np.argsort(-np.abs(v))[:k]
    out = np.zeros_like(v)
    out[kept] = v[kept]
    return out


def fedcomloc(g, w, x0, meetings, eta, p, compress, where):
    """One step at a time, as Scaffnew, with ``compress(v)`` at one of three places."""
    n = len(g)
    xs, hs, models = [x0] * n, [0 * x0] * n, []
    for t in range(1, meetings[-1] + 1):
        points = [compress(x) if where == "gradient" else x for x in xs]
        hats = [xs[i] - eta(t) * (g[i](points[i]) - hs[i]) for i in range(n)]
        if t in meetings:
            mean = sum(w[i] * (compress(hats[i]) if where == "upload" else hats[i]) for i in range(n))
            mean = compress(mean) if where == "download" else mean
            hs = [hs[i] + p(t) / eta(t) * (mean - hats[i]) for i in range(n)]
            xs = [mean] * n
            models.append(mean)
        else:
            xs = hats
    return models


def approximate_prox(g, start, v, weight, T):
    """The averaged end of T steps towards argmin_u f(u) + ‖u - v‖²/(2 weight)."""
    u = average = start
    for t in range(1, T + 1):
        u = u - (weight * g(u) + u - v) / (1 + t / 2)
        theta = 2 * (t + 1) / (t * (t + 3))
        average = (1 - theta) * average + theta * u
    return average


def feddyn(g, w, x0, K, alpha, T, drawn):
    """Acar et al., Algorithm 1; ``drawn(k)``: the clients of round k. The argmin's linear term moves its centre."""
    n = len(g)
    x, h, gradients, models = x0, 0 * x0, [0 * x0] * n, []
    for k in range(1, K + 1):
        some, ends = drawn(k), {}
        for i in some:
            ends[i] = approximate_prox(g[i], x, x + gradients[i] / alpha, 1 / alpha, T(k))
            gradients[i] = gradients[i] - alpha * (ends[i] - x)
        share = {i: w[i] / sum(w[j] for j in some) for i in some}
        h = h - alpha * sum(len(some) / n * share[i] * (ends[i] - x) for i in some)
        x = sum(share[i] * ends[i] for i in some) - h / alpha
        models.append(x)
    return models


def fedpd(g, w, x0, K, eta, T):
    """Zhang et al. 2021, Algorithm 1, where the clients meet in every round: λ_i, and each client's own x0_i."""
    n = len(g)
    own, duals, models = [x0] * n, [0 * x0] * n, []
    for k in range(1, K + 1):
        for i in range(n):
            end = approximate_prox(g[i], own[i], own[i] - eta * duals[i], eta, T(k))
            duals[i] = duals[i] + (end - own[i]) / eta
            own[i] = end + eta * duals[i]
        x = sum(w[i] * own[i] for i in range(n))
        own = [x] * n
        models.append(x)
    return models


def fedsplit(g, w, x0, K, s, T, alpha=2.0):
    n = len(g)
    x, zs, models = x0, [x0] * n, []
    for k in range(1, K + 1):
        halves = [approximate_prox(g[i], x, 2 * x - zs[i], s, T(k)) for i in range(n)]
        zs = [zs[i] + alpha * (halves[i] - x) for i in range(n)]
        x = sum(w[i] * zs[i] for i in range(n))
        models.append(x)
    return models


def cocoa(rows, w, lam, K, passes, sigma, orders, loss, intercept):
    """Ma et al. 2015, Algorithm 1 with γ = 1. ``rows[i]`` = (A, b, c) of client i; ``orders(k, i)`` yields the rows of
    each pass. Changes are added up, as in the paper: u is the client's own copy of x, which its changes move σ' times.

    The intercept, the last coordinate, is the multiplier of Σ_i w_i Σ_j c_j s_j = 0.
    """
    n, d = len(rows), rows[0][0].shape[1]
    slopes = [np.zeros(len(b)) for _, b, _ in rows]
    x, theta, models = np.zeros(d), 0.0, []
    for k in range(1, K + 1):
        total = sum(w[i] * (rows[i][2] @ slopes[i]) for i in range(n))
        change = np.zeros(d)
        for i, (A, b, c) in enumerate(rows):
            u, order = x.copy(), orders(k, i)
            if intercept:
                u[-1] = theta - total / lam
            for _ in range(passes):
                for j in next(order):
                    curvature = sigma * w[i] * c[j] * (A[j] @ A[j]) / lam
                    if loss == "hinge":  # in the papers' α = -b s, from 0 to 1
                        alpha = -b[j] * slopes[i][j]
                        best = -b[j] * min(max(alpha + (1 - b[j] * (A[j] @ u)) / curvature, 0.0), 1.0)
                    else:
                        best = min(max(slopes[i][j] + (A[j] @ u - b[j]) / curvature, -1.0), 1.0)
                    step = -w[i] * c[j] * (best - slopes[i][j]) * A[j] / lam
                    slopes[i][j] = best
                    u += sigma * step
                    change += step
        x = x + change
        if intercept:
            theta -= sum(w[i] * (rows[i][2] @ slopes[i]) for i in range(n)) / lam
            x[-1] = theta
        models.append(x.copy())
    return models


def admm(prox, w, x0, K, rho, alpha):
    """prox[i](v, weight) is argmin_x f_i(x) + ‖x - v‖²/(2 weight). Boyd et al. (7.6)-(7.8), relaxed by (3.19)."""
    n = len(prox)
    z, us, models = x0, [0 * x0] * n, []
    for _ in range(K):
        xs = [prox[i](z - us[i], 1 / rho) for i in range(n)]
        hats = [alpha * xs[i] + (1 - alpha) * z for i in range(n)]
        z = sum(w[i] * (hats[i] + us[i]) for i in range(n))
        us = [us[i] + hats[i] - z for i in range(n)]
        models.append(z)
    return models


def bundle(f, g, w, x0, K, radius, level):
    """The level method with all cuts; both programs by cvxpy. Returns the points evaluated and the lower bounds."""
    import cvxpy as cp

    n, x, best, points, bounds = len(f), x0, np.inf, [], []
    cuts = [[] for _ in range(n)]
    v = cp.Variable(len(x0))
    tight = {"solver": "CLARABEL", "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    for _ in range(K):
        points.append(x)
        best = min(best, sum(w[i] * f[i](x) for i in range(n)))
        for i in range(n):
            cuts[i].append((f[i](x), g[i](x), x))
        model = sum(w[i] * cp.max(cp.hstack([a + s @ (v - p) for a, s, p in cuts[i]])) for i in range(n))
        box = [cp.abs(v - x0) <= radius]
        low = cp.Problem(cp.Minimize(model), box).solve(**tight)
        bounds.append(low)
        nearest = cp.Problem(cp.Minimize(cp.sum_squares(v - x)), [*box, model <= (1 - level) * low + level * best])
        nearest.solve(**tight)
        x = v.value
    return points, bounds


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

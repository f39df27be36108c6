"""The optimum as a linear or conic program, solved by HiGHS or Clarabel; used by :mod:`fedmls.optima.solve`."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from fedmls.losses import HUBER, LOGISTIC, SQUARED_HINGE
from fedmls.types import Array

if TYPE_CHECKING:
    from fedmls.problem import Problem


class Program(NamedTuple):
    """min ½ Σ quadratic v² + linear·v  with A v <= b, but for the last rows: triples of b - A v in exponential cones.

    v = (x, numbers of each row, |x| with an l1 term). ``piece`` and ``piece_row`` say which slope of which row of
    the data the first rows of A stand for (polyhedral losses only).
    """

    quadratic: Array
    linear: Array
    A: sparse.csr_array
    b: Array
    exponential: int = 0
    piece: Array = np.empty(0)
    piece_row: Any = ()


def column_scales(A: sparse.csr_array) -> Array:
    """Columns of very different size trouble the solvers: x = scales · x', with all columns of A scales at most 1."""
    largest = np.asarray(abs(A).max(axis=0).todense()).ravel()
    return np.asarray(np.divide(1.0, largest, out=np.ones(len(largest)), where=largest > 0))


def make_program(problem: "Problem", scales: Array) -> Program:
    build = {SQUARED_HINGE: _squared_hinge, HUBER: _huber, LOGISTIC: _logistic}.get(problem.loss.code, _polyhedral)
    program = build(problem, problem.matrix() @ sparse.diags_array(scales))
    p = problem.penalised
    quadratic = program.quadratic.copy()
    quadratic[:p] += problem.l2 * scales[:p] ** 2
    program = program._replace(quadratic=quadratic)
    if problem.l1 == 0:
        return program
    columns = len(program.linear)
    x, eye = sparse.eye_array(p, columns, format="csr"), sparse.eye_array(p)
    split = program.A.shape[0] - 3 * program.exponential  # |x| >= ±x goes before the cones
    first, last = program.A[:split], program.A[split:]
    blocks: Any = [[first, None], [x, -eye], [-x, -eye]]
    blocks += [[last, sparse.csr_array((last.shape[0], p))]] if program.exponential else []
    return program._replace(
        quadratic=np.concatenate([program.quadratic, np.zeros(p)]),
        linear=np.concatenate([program.linear, problem.l1 * scales[:p]]),
        A=sparse.block_array(blocks, format="csr"),
        b=np.concatenate([program.b[:split], np.zeros(2 * p), program.b[split:]]),
    )


def _polyhedral(problem: "Problem", A: sparse.csr_array) -> Program:
    """ξ >= 0 and ξ >= s a·x - ℓ*(s) at both ends s of the box; cost ω ξ."""
    y, omega = problem.y, problem.total_row_weights
    m, d = A.shape
    piece = np.concatenate(problem.loss.box(y))
    kept = np.flatnonzero(piece)
    piece, row = piece[kept], kept % m
    xi = sparse.eye_array(m, format="csr")
    return Program(
        np.zeros(d + m),
        np.concatenate([np.zeros(d), omega]),
        sparse.block_array([[sparse.diags_array(piece) @ A[row], -xi[row]], [None, -xi]], format="csr"),
        np.concatenate([problem.loss.conjugate(piece, y[row]), np.zeros(m)]),
        piece=piece,
        piece_row=row,
    )


def _squared_hinge(problem: "Problem", A: sparse.csr_array) -> Program:
    """ξ >= 1 - b a·x and ξ >= 0; cost ω ξ²."""
    omega = problem.total_row_weights
    m, d = A.shape
    xi = sparse.eye_array(m)
    return Program(
        np.concatenate([np.zeros(d), 2 * omega]),
        np.zeros(d + m),
        sparse.block_array([[-sparse.diags_array(problem.y) @ A, -xi], [None, -xi]], format="csr"),
        np.concatenate([-np.ones(m), np.zeros(m)]),
    )


def _huber(problem: "Problem", A: sparse.csr_array) -> Program:
    """|a·x - b - r| <= t; cost ω (r²/2 + δ t)."""
    y, omega = problem.y, problem.total_row_weights
    m, d = A.shape
    eye = sparse.eye_array(m)
    return Program(
        np.concatenate([np.zeros(d), omega, np.zeros(m)]),
        np.concatenate([np.zeros(d + m), problem.loss.parameter * omega]),
        sparse.block_array([[A, -eye, -eye], [-A, eye, -eye]], format="csr"),
        np.concatenate([y, -y]),
    )


def _logistic(problem: "Problem", A: sparse.csr_array) -> Program:
    """e^{-ξ} <= t, e^{-b a·x - ξ} <= t', t + t' <= 1; cost ω ξ. A cone is (r, s, t) with s e^{r/s} <= t."""
    omega = problem.total_row_weights
    m, d = A.shape
    eye, none = sparse.eye_array(m, format="csr"), sparse.csr_array((m, d))
    zero = sparse.csr_array((m, m))
    limit = sparse.block_array([[none, zero, eye, eye]])
    one = sparse.csr_array((m, d + 3 * m))
    first = [sparse.block_array([[none, eye, zero, zero]]), one, sparse.block_array([[none, zero, -eye, zero]])]
    margin = sparse.diags_array(problem.y) @ A
    second = [sparse.block_array([[margin, eye, zero, zero]]), one, sparse.block_array([[none, zero, zero, -eye]])]
    triples = np.arange(6 * m).reshape(2, 3, m).transpose(0, 2, 1).ravel()
    cones = sparse.csr_array(sparse.vstack(first + second))[triples]
    return Program(
        np.zeros(d + 3 * m),
        np.concatenate([np.zeros(d), omega, np.zeros(2 * m)]),
        sparse.csr_array(sparse.vstack([limit, cones])),
        np.concatenate([np.ones(m), np.tile([0.0, 1.0, 0.0], 2 * m)]),
        exponential=2 * m,
    )


def solve(program: Program) -> tuple[Array, Array]:
    """The solution and the dual weights of the rows of A: by HiGHS where it is linear, else by Clarabel."""
    if not program.quadratic.any() and not program.exponential:
        from scipy.optimize import linprog

        answer = linprog(program.linear, A_ub=program.A, b_ub=program.b, bounds=(None, None), method="highs")
        if answer.status != 0:
            raise ValueError(f"no certified optimum: HiGHS says: {answer.message}")
        return answer.x, -answer.ineqlin.marginals
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    rows = program.A.shape[0] - 3 * program.exponential
    cones = [clarabel.NonnegativeConeT(rows)] + [clarabel.ExponentialConeT()] * program.exponential
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(sparse.diags_array(program.quadratic)),
        program.linear,
        sparse.csc_matrix(program.A),
        program.b,
        cones,
        settings,
    )
    found = solver.solve()
    return np.array(found.x), np.array(found.z)


def polished(problem: "Problem", scales: Array, x: Array) -> Array:
    """A few Newton steps, which turn the solver's eight digits into all of them; for smooth losses of modest size."""
    if problem.loss.is_polyhedral or problem.l1 > 0 or problem.dimension > 500:
        return x
    A, omega = problem.matrix() @ sparse.diags_array(scales), problem.total_row_weights
    ridge = np.zeros(problem.dimension)
    ridge[: problem.penalised] = problem.l2 * scales[: problem.penalised] ** 2

    def slopes_and_gradient(x: Array) -> tuple[Array, Array]:
        s = problem.loss.slope(A @ x, problem.y)
        return s, A.T @ (omega * s) + ridge * x

    s, gradient = slopes_and_gradient(x)
    for _ in range(20):
        size = np.abs(s)
        curvature = {SQUARED_HINGE: 2.0 * (size > 0), HUBER: 1.0 * (size < problem.loss.parameter)}.get(
            problem.loss.code, size * (1 - size)
        )
        hessian = (A.T @ sparse.diags_array(omega * curvature) @ A).toarray() + np.diag(ridge)
        trial = x - np.linalg.lstsq(hessian, gradient)[0]
        s, smaller = slopes_and_gradient(trial)
        if not np.linalg.norm(smaller) < np.linalg.norm(gradient):
            break
        x, gradient = trial, smaller
    return x


def dual_slopes(problem: "Problem", program: Program, x: Array, dual: Array) -> Array:
    """Dual slopes of the rows of the data: of a smooth loss at x, otherwise from the solver's dual weights."""
    if not problem.loss.is_polyhedral:
        return problem.loss.slope(problem.matrix() @ x, problem.y)
    omega = problem.total_row_weights
    carried = np.bincount(program.piece_row, dual[: len(program.piece)] * program.piece, len(omega))
    return np.divide(carried, omega, out=np.zeros(len(omega)), where=omega > 0)

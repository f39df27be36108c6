"""The scikit-learn estimators: its own checks, its own models on the same objective, and what is proved."""

import warnings

import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, QuantileRegressor
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedmls
from fedmls.federation import InProcess, Job, drive, split

ESTIMATORS = [
    fedmls.FederatedLinearSVC(),
    fedmls.FederatedLogisticRegression(),
    fedmls.FederatedLADRegressor(max_rounds=100),  # a proof every five rounds, without a penalty: each a linear program
    fedmls.FederatedQuantileRegressor(max_rounds=100),
]
# A fit ends when it has proved tol, somewhere in the set of models that are so good: twice the weight and twice the row
# give different mini-batches and another such model, where scikit-learn asks for the same to 1e-7.
TO_A_TOLERANCE = {
    f"check_sample_weight_equivalence_on_{kind}_data": "the fit is within tol of the best objective, not one point"
    for kind in ("dense", "sparse")
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # on noise, with few rounds
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: TO_A_TOLERANCE)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def classes(m=300, d=6, seed=0, **more):
    X, y = make_classification(m, d, n_informative=d - 1, n_redundant=0, flip_y=0.2, random_state=seed, **more)
    return X, y


def numbers(m=300, d=6, seed=0):
    X, y = make_regression(m, d, noise=20.0, random_state=seed)
    return X, y / 10 + 3.0


def svm_objective(w, b, X, y, C, weights=1.0):
    margins = np.where(y == np.unique(y)[1], 1.0, -1.0) * (X @ w + b)
    return w @ w / 2 + C * float((weights * np.maximum(0.0, 1 - margins)).sum())


def logistic_objective(w, b, X, y, C, weights=1.0):
    margins = np.where(y == np.unique(y)[1], 1.0, -1.0) * (X @ w + b)
    return w @ w / 2 + C * float((weights * np.logaddexp(0.0, -margins)).sum())


def quantile_objective(w, b, X, y, q, alpha):
    r = y - X @ w - b
    return float(np.maximum(q * r, (q - 1) * r).mean()) + alpha * np.abs(w).sum()


def agrees(model, best, own):
    """The reference's objective lies between what is proved and what was found, which is within tol of it."""
    assert model.objective_ == pytest.approx(own, rel=1e-9)
    assert model.objective_ - model.certified_gap_ <= best * (1 + 1e-6)
    assert best <= model.objective_ * (1 + 1e-6)
    assert model.certified_gap_ <= model.tol * model.objective_
    assert model.objective_ <= best * (1 + 1.01 * model.tol)


@pytest.mark.parametrize("tol", [1e-2, 1e-4])
@pytest.mark.parametrize("C", [0.1, 1.0])
def test_svm_is_that_of_svc(C, tol):
    X, y = classes()
    model = fedmls.FederatedLinearSVC(C=C, tol=tol, random_state=0).fit(X, y)
    reference = SVC(kernel="linear", C=C, tol=1e-8).fit(X, y)
    w, b = reference.coef_[0], reference.intercept_[0]
    agrees(model, svm_objective(w, b, X, y, C), svm_objective(model.coef_[0], model.intercept_[0], X, y, C))


def test_svm_without_intercept_is_that_of_linear_svc():
    X, y = classes(seed=1)
    model = fedmls.FederatedLinearSVC(C=0.5, fit_intercept=False, tol=1e-4, random_state=0).fit(X, y)
    reference = LinearSVC(loss="hinge", C=0.5, fit_intercept=False, tol=1e-8, max_iter=10**6).fit(X, y)
    best = svm_objective(reference.coef_[0], 0.0, X, y, 0.5)
    agrees(model, best, svm_objective(model.coef_[0], 0.0, X, y, 0.5))
    assert model.intercept_ == 0


@pytest.mark.parametrize(("name", "weight"), [("none", None), ("balanced", "balanced"), ("given", {0: 1.0, 1: 3.0})])
def test_logistic_regression_is_that_of_scikit_learn(name, weight):
    X, y = classes(seed=2, weights=[0.8])
    weights = np.random.default_rng(0).uniform(0.2, 2.0, len(y))
    model = fedmls.FederatedLogisticRegression(C=0.3, class_weight=weight, tol=1e-5, random_state=0)
    model.fit(X, y, sample_weight=weights)
    reference = LogisticRegression(C=0.3, tol=1e-10, max_iter=10_000)
    totals = np.bincount(y, weights)
    each = {"none": np.ones(2), "balanced": totals.sum() / (2 * totals), "given": np.array([1.0, 3.0])}[name]
    c = weights * each[y]
    reference.fit(X, y, sample_weight=c)
    w, b = reference.coef_[0], reference.intercept_[0]
    own = logistic_objective(model.coef_[0], model.intercept_[0], X, y, 0.3, c)
    agrees(model, logistic_objective(w, b, X, y, 0.3, c), own)
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(X), atol=0.02)


@pytest.mark.parametrize(("q", "alpha"), [(0.5, 0.0), (0.9, 0.0), (0.3, 0.05)])
def test_quantiles_are_those_of_scikit_learn(q, alpha):
    X, y = numbers()
    model = fedmls.FederatedQuantileRegressor(quantile=q, alpha=alpha, tol=1e-3, random_state=0).fit(X, y)
    reference = QuantileRegressor(quantile=q, alpha=alpha).fit(X, y)
    best = quantile_objective(reference.coef_, reference.intercept_, X, y, q, alpha)
    agrees(model, best, quantile_objective(model.coef_, model.intercept_, X, y, q, alpha))


def test_lad_is_the_median():
    X, y = numbers(seed=3)
    model = fedmls.FederatedLADRegressor(tol=1e-3, random_state=0).fit(X, y)
    reference = QuantileRegressor(quantile=0.5, alpha=0).fit(X, y)
    best = float(np.abs(y - reference.predict(X)).mean())
    agrees(model, best, float(np.abs(y - model.predict(X)).mean()))


@given(seed=st.integers(0, 10**6), clients=st.integers(1, 8), kind=st.sampled_from(["svm", "logistic", "lad"]))
@settings(max_examples=25, deadline=None)
def test_what_is_proved_is_true(seed, clients, kind):
    """However the rows are dealt out, and however early the fit ends: never above the minimum."""
    X, y = (numbers if kind == "lad" else classes)(m=60, d=4, seed=seed)
    groups = np.random.default_rng(seed).integers(0, clients, len(y))
    make = {
        "svm": fedmls.FederatedLinearSVC,
        "logistic": fedmls.FederatedLogisticRegression,
        "lad": fedmls.FederatedLADRegressor,
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make(max_rounds=30, random_state=seed).fit(X, y, groups=groups)
    l2 = 0.0 if kind == "lad" else 1.0
    loss = {"svm": "hinge", "logistic": "logistic", "lad": "absolute"}[kind]
    best = fedmls.optimum(fedmls.Problem(X, y, loss=loss, l2=l2)).value / (len(y) if kind == "lad" else 1)
    assert model.objective_ - model.certified_gap_ <= best + 1e-7 * abs(best)
    assert model.objective_ >= best - 1e-7 * abs(best)
    bounds = model.history_["lower_bound"]
    assert (bounds <= best + 1e-7 * abs(best)).all()


def test_the_clients_do_not_change_the_answer():
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    order = np.argsort(X[:, 0])
    cuts = [None, np.argsort(order) // 100, y, np.full(len(y), "one"), np.array([f"h{i % 7}" for i in range(len(y))])]
    found = [fedmls.FederatedLinearSVC(tol=1e-3, random_state=1).fit(X, y, groups=groups).objective_ for groups in cuts]
    assert max(found) <= min(found) * 1.0011


def test_sparse_rows_and_a_client_for_every_row():
    X, y = classes(m=40)
    dense = fedmls.FederatedLinearSVC(tol=1e-4, random_state=0).fit(X, y, groups=np.arange(40) * 10 + 7)
    thin = fedmls.FederatedLinearSVC(tol=1e-4, random_state=0).fit(sparse.csr_matrix(X), y)
    assert dense.objective_ == pytest.approx(thin.objective_, rel=2e-4)
    np.testing.assert_allclose(thin.decision_function(sparse.csr_matrix(X)), thin.decision_function(X), rtol=1e-12)


def test_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = fedmls.FederatedLogisticRegression(tol=1e-4, random_state=0).fit(X, names)
    assert model.coef_.shape == (3, 4)
    assert model.score(X, names) > 0.93
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert list(model.history_["class"].unique()) == list(model.classes_)
    alone = fedmls.FederatedLogisticRegression(tol=1e-4, random_state=0).fit(X, names == "virginica")
    best = logistic_objective(model.coef_[2], model.intercept_[2], X, names == "virginica", 1.0)
    assert best == pytest.approx(alone.objective_, rel=2e-4)


def test_warm_start_goes_on():
    """From where it was; a proof takes FedMLS-B as many exchanges as before, whose cuts have to be made anew."""
    X, y = load_diabetes(return_X_y=True)
    model = fedmls.FederatedLinearSVC(tol=1e-3, warm_start=True, random_state=0).fit(X, y > 140)
    cold = model.objective_
    assert model.fit(X, y > 140).objective_ <= cold * (1 + 1e-14)  # f at one point, found by two sums
    slow = fedmls.FederatedLinearSVC(tol=1e-3, warm_start=True, random_state=0, solver="fedmlsd").fit(X, y > 140)
    rounds = slow.n_iter_
    assert slow.fit(X, y > 140).n_iter_ < rounds
    with pytest.raises(ValueError, match="warm_start goes on from coefficients of shape"):
        model.fit(X[:, :3], y > 140)


def test_in_a_pipeline_and_a_grid_search_with_groups():
    X, y = classes(m=200)
    hospital = np.random.default_rng(0).integers(0, 5, len(y))
    with sklearn.config_context(enable_metadata_routing=True):
        svc = fedmls.FederatedLinearSVC(tol=1e-2, random_state=0).set_fit_request(groups=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), svc), {"federatedlinearsvc__C": [0.01, 1.0]}, cv=GroupKFold(3)
        )
        search.fit(X, y, groups=hospital)
    assert search.best_score_ > 0.6
    assert search.best_estimator_[-1].certified_gap_ < np.inf


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", sorted(fedmls.ALGORITHMS))
def test_every_algorithm_is_a_solver(solver):
    X, y = classes(m=120, d=4)
    start = float(len(y))
    model = fedmls.FederatedLinearSVC(solver=solver, max_rounds=60, n_clients=4, random_state=0).fit(X, y)
    assert model.objective_ < 0.9 * start
    assert model.history_["objective"].min() == pytest.approx(model.objective_)


def test_the_same_seed_gives_the_same_model_and_bytes_are_counted():
    X, y = classes()
    one, two = (fedmls.FederatedLinearSVC(random_state=3).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.exchanges_ > one.n_iter_
    assert one.history_["bytes_up"].is_monotonic_increasing
    assert one.history_["bytes_up"].iloc[-1] > 0


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (fedmls.FederatedLinearSVC(solver="fedmlz"), "did you mean 'fedmls'?"),
        (fedmls.FederatedLinearSVC(C=0), "C is 0; it must be a positive number"),
        (fedmls.FederatedLinearSVC(tol=-1.0), "tol is -1.0"),
        (fedmls.FederatedLinearSVC(partition="round"), "partition"),
        (fedmls.FederatedLogisticRegression(batch=2.0), "batch is 2.0"),
        (fedmls.FederatedQuantileRegressor(quantile=1.5), "1.5"),
        (fedmls.FederatedLADRegressor(alpha=-1.0), "alpha is -1.0"),
        (fedmls.FederatedLADRegressor(partition="dirichlet"), "a regressor has none"),
    ],
)
def test_bad_input(estimator, message):
    X, y = classes(m=30)
    with pytest.raises(ValueError) as error:
        estimator.fit(X, y)
    assert message in str(error.value)


def test_what_stops_too_early_says_so():
    X, y = classes()
    with pytest.warns(ConvergenceWarning, match="max_rounds = 5 reached: a gap of"):
        fedmls.FederatedLinearSVC(tol=1e-9, max_rounds=5).fit(X, y)


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
def test_auto_takes_few_exchanges_and_proves_them(C):
    X, y = load_breast_cancer(return_X_y=True)
    model = fedmls.FederatedLinearSVC(C=C, tol=1e-3).fit((X - X.mean(axis=0)) / X.std(axis=0), y)
    assert model.certified_gap_ <= 1e-3 * model.objective_
    assert model.exchanges_ == model.n_iter_ + 1 <= 60  # and the survey
    assert len(model.history_) == model.n_iter_


def test_auto_in_more_coordinates_than_it_can_prove_stops_when_it_no_longer_gains():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 220))
    y = X[:, 0] + rng.normal(size=1000)
    model = fedmls.FederatedLADRegressor(alpha=0.0, tol=0.01, max_rounds=100).fit(X, y)
    assert model.n_iter_ < 100
    assert model.objective_ < 0.7 * np.abs(y - np.median(y)).mean()


@pytest.mark.parametrize("check_every", [1, 2, 3])
def test_the_objective_is_that_of_the_model_also_of_paired_rounds(check_every):
    """Rounds 39 and 40 are one exchange: a look at round 39 keeps its model, not the later one."""
    X, y = classes()
    model = fedmls.FederatedLinearSVC(solver="fedmls", check_every=check_every, tol=0.3, random_state=0).fit(X, y)
    assert model.objective_ == pytest.approx(svm_objective(model.coef_[0], model.intercept_[0], X, y, 1.0), rel=1e-9)


MEANS = {"reduction": "mean", "weights": "rows"}
JOBS = {  # an estimator; of n sites and m rows, its job, and its objective over the job's (docs/estimators.md)
    "SVC": (fedmls.FederatedLinearSVC(C=0.2), lambda n, m: ({"l2": 1 / (0.2 * n)}, 0.2 * n)),
    "SVC, means": (fedmls.FederatedLinearSVC(C=0.2), lambda n, m: ({"l2": 1 / (0.2 * m)} | MEANS, 0.2 * m)),
    "logistic": (
        fedmls.FederatedLogisticRegression(C=0.2),
        lambda n, m: ({"loss": "logistic", "l2": 1 / (0.2 * n)}, 0.2 * n),
    ),
    "LAD": (fedmls.FederatedLADRegressor(alpha=0.3), lambda n, m: ({"loss": "absolute", "l2": 0.3} | MEANS, 1)),
    "quantile": (
        fedmls.FederatedQuantileRegressor(quantile=0.8, alpha=0.1),
        lambda n, m: ({"loss": "pinball", "loss_parameter": 0.8, "l1": 0.1} | MEANS, 1),
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_minimises_what_an_estimator_does(name, tmp_path):
    """C and tol become l2 and until as the documentation says."""
    estimator, job_of = JOBS[name]
    X, y = (classes if hasattr(estimator, "C") else numbers)(120, 3)
    sites, tol = np.array(["a", "b", "b", "c", "c", "c"])[np.arange(120) % 6], 1e-6
    fitted = estimator.set_params(tol=tol).fit(X, y, groups=sites)
    np.savez(tmp_path / "rows.npz", X=X, y=y, site=sites)
    job, unit = job_of(3, 120)
    until = tol * fitted.objective_ / unit
    Job(algorithm=fedmls.FedMLSB(), rounds=200, until=until, **job).write(tmp_path / "job")
    last = drive(tmp_path / "job", InProcess(list(split(tmp_path / "rows.npz", tmp_path / "parts", by="site")))).history
    assert unit * last["objective"].iloc[-1] == pytest.approx(fitted.objective_, rel=2 * tol)
    assert (last["objective"] - last["lower_bound"]).iloc[-1] <= until
    assert last["round"].iloc[-1] < 200


def test_verbose_may_be_a_number_as_in_scikit_learn(capsys):
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    fedmls.FederatedLinearSVC(verbose=1).fit(X, y)
    with pytest.raises(ValueError, match="verbose is 'yes'"):
        fedmls.FederatedLinearSVC(verbose="yes").fit(X, y)

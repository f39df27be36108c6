"""An experiment's file: what it says is what is run, and a mistake is told with its key and value."""

import re
import tomllib
from pathlib import Path

import pytest

import fedmls
from fedmls.experiments import paper
from fedmls.experiments.spec import make, read, shipped

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"```toml\n(.*?)```", (DOCS / "experiments.md").read_text(encoding="utf-8"), re.S)
SMALL = """
rounds = 5
seeds = 2

[data]
file = "rows.csv"

[[algorithms]]
name = "fedmls"
lam0 = [0.1, 1]

[[algorithms]]
name = "fedavg"
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def labels(*entries):
    return [curve[:3] for curve in make({"rounds": 1, "data": {"name": "svm"}, "algorithms": list(entries)}).curves]


def test_what_a_file_says(small):
    spec = read(small)
    assert spec.config.rounds == 5
    assert spec.seeds == (0, 1)
    assert spec.config.batch == 1.0
    assert spec.config.optimum == "auto"
    assert spec.loss == fedmls.LOSSES["hinge"]
    assert spec.data.file == small.parent / "rows.csv"  # relative to the file
    assert spec.partition.by == "kmeans"
    assert spec.partition.clients == 10
    assert [curve.algorithm for curve in spec.curves] == [
        fedmls.FedMLS(lam0=0.1),
        fedmls.FedMLS(lam0=1),
        fedmls.FedAvg(),
    ]
    assert spec.values == tomllib.loads(SMALL)


def test_the_paper_is_an_experiment_like_any_other():
    spec = paper.spec(1000, 20)
    assert spec.values == tomllib.loads(shipped()["paper_svm"])
    assert len(spec.curves) == 18
    assert {curve[:2] for curve in spec.curves} == {
        ("FedMLS", ""),
        ("FedAvg", ""),
        ("Scaffold", "text"),
        ("Scaffold", "code"),
        ("Scaffnew", "text"),
        ("Scaffnew", "code"),
    }
    assert spec.curves[1] == ("FedMLS", "", "λ₀ = 1", fedmls.FedMLS(lam0=1.0))
    assert spec.curves[8] == ("Scaffold", "text", "η₀ = 0.01", fedmls.Scaffold(eta0=0.01, decay="step"))
    assert spec.curves[17].algorithm == fedmls.Scaffnew(eta0=0.01, as_released=True)
    tested = paper.spec(10, 1, holdout=0.2)
    assert tested.metrics == ("test_accuracy",)
    assert tested.data.holdout == 0.2


@pytest.mark.parametrize("block", BLOCKS)
def test_the_files_in_the_documentation_are_right(block):
    make(tomllib.loads(block))


def test_the_documentation_has_every_key():
    from fedmls.experiments import grid, spec

    text = (DOCS / "experiments.md").read_text(encoding="utf-8")
    for key in {*grid.TOP, *spec.DATA, *spec.PARTITION, *spec.METRICS, *grid.NAMES}:
        assert re.search(rf"`[^`a-z]*{key}[^`a-z]*`", text), key


def test_grids_and_their_names():
    assert labels("fedmlsd") == [("FedMLS-D", "", "")]
    assert labels({"name": "fedmls", "lam0": 2}) == [("FedMLS", "", "λ₀ = 2")]
    assert labels({"name": "fedmls", "lam0": [2], "paired": True}) == [("FedMLS", "", "λ₀ = 2")]
    both = labels({"name": "fedmls", "lam0": [1, 2], "T0": [3, 4]})
    assert [parameter for _, _, parameter in both] == [
        "λ₀ = 1, T₀ = 3",
        "λ₀ = 1, T₀ = 4",
        "λ₀ = 2, T₀ = 3",
        "λ₀ = 2, T₀ = 4",
    ]
    apart = labels({"name": "fedmls", "lam0": 1}, {"name": "fedmls", "lam0": 1, "paired": True})
    assert [parameter for _, _, parameter in apart] == ["paired = False", "paired = True"]
    named = labels({"name": "fedmls", "lam0": 1}, {"name": "fedmls", "lam0": 1, "title": "Mine", "variant": "a"})
    assert named == [("FedMLS", "", "λ₀ = 1"), ("Mine", "a", "λ₀ = 1")]
    close = labels({"name": "fedmls", "lam0": [1.0000001, 1.0000002]})
    assert [parameter for _, _, parameter in close] == ["λ₀ = 1.0000001", "λ₀ = 1.0000002"]


def test_schedules_lists_for_clients_and_compression():
    entries = [
        {"name": "fedavg", "eta": [0.1, {"power": [0.5, -0.5]}]},
        {"name": "fedmls", "T": [[1, 2, 3], 7]},
        {"name": "compressed", "algorithm": {"name": "fedmls", "lam0": [1, 2]}, "level": [0.1, 0.5]},
    ]
    made = [curve.algorithm for curve in make({"rounds": 1, "data": {"name": "svm"}, "algorithms": entries}).curves]
    assert made[:2] == [fedmls.FedAvg(eta=0.1), fedmls.FedAvg(eta=fedmls.Power(0.5, -0.5))]
    assert made[2:4] == [fedmls.FedMLS(T=(1, 2, 3)), fedmls.FedMLS(T=7)]
    assert len(made) == 8
    assert made[7] == fedmls.Compressed(algorithm=fedmls.FedMLS(lam0=2.0), level=0.5)
    assert labels(entries[2])[3] == ("FedMLS top_k", "", "algorithm = fedmls(lam0=2), level = 0.5")


def test_settings_win_over_the_file(small):
    settings = [
        "rounds=50",
        "seeds=[3, 4, 5]",
        "data.file=other.csv",
        "data.label=ill",
        'data.ignore=["a", "b"]',
        "partition.by=dirichlet",
        "algorithms.fedmls.lam0=7",
        "algorithms.1.eta0=[0.5, 0.25]",
        "intercept=False",
    ]
    spec = read(small, settings)
    assert spec.config.rounds == 50
    assert spec.seeds == (3, 4, 5)
    assert spec.data.file == Path("other.csv")  # relative to where the command is given
    assert spec.data.options == {"label": "ill", "ignore": ("a", "b")}
    assert spec.partition.by == "dirichlet"
    assert [curve.algorithm for curve in spec.curves] == [
        fedmls.FedMLS(lam0=7.0),
        fedmls.FedAvg(eta0=0.5),
        fedmls.FedAvg(eta0=0.25),
    ]
    assert spec.problem["intercept"] is False
    assert spec.values["data"]["file"] == "other.csv"
    assert read(small, ['algorithms=["fedavg"]', "algorithms.fedavg.eta0=2"]).curves[0].algorithm == fedmls.FedAvg(
        eta0=2.0
    )


def test_a_name_sets_all_entries_of_it():
    spec = read("paper_svm", ["algorithms.scaffold.eta0=[0.5]"])
    assert [curve.algorithm.eta0 for curve in spec.curves if curve.method == "Scaffold"] == [0.5, 0.5]


def test_rounds_or_target():
    values = {"data": {"name": "svm"}, "algorithms": ["fedmls"]}
    assert make(values | {"target": 0.1}).config.rounds == 10_000
    assert make(values | {"until": 0.1, "certificate": 2}).config.certificate == 2.0
    with pytest.raises(
        ValueError, match=re.escape("neither 'rounds' nor 'target'; say when a run ends, e.g. rounds = 200")
    ):
        make(values)


def test_made_data_take_their_makers_parameters():
    values = {"rounds": 1, "algorithms": ["fedmls"]}
    spec = make(values | {"data": {"name": "lad", "heterogeneity": 1.0, "planted": True}})
    assert spec.data.options == {"heterogeneity": 1.0, "planted": True}
    assert spec.loss is None
    for change, message in (
        (
            {"data": {"name": "svm", "heterogenity": 1}},
            "unknown key of data 'heterogenity': did you mean 'heterogeneity'",
        ),
        (
            {"data": {"name": "svm", "holdout": 0.2}},
            "data.holdout is for rows that are read, and 'svm' is made; it takes",
        ),
        ({"data": {"name": "svm"}, "loss": "hinge"}, "loss is 'hinge', but 'svm' is made with its own; leave it out"),
        ({"data": {"name": "chain"}, "l2": 1.0}, "l2 is 1.0, but 'chain' is made with its own; leave it out"),
        ({"data": {"name": "svm"}, "partition": {}}, "'svm' is made with its clients; leave out [partition]"),
        (
            {"data": {"name": "svm"}, "metrics": ["test_loss"]},
            "metrics has 'test_loss', which needs rows kept for testing",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make(values | change)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("round=3", "unknown key 'round': did you mean 'rounds'? choose from title, out, data, "),
        ("data.fil=3", "unknown key of data 'fil': did you mean 'file'? choose from name, file, label, "),
        ("data.rounds=3", "unknown key 'rounds' of data: it stands by itself; put it above the first [table]"),
        ("algorithms.fedavg.seeds=3", "unknown key 'seeds' of algorithms.1 (fedavg): it stands by itself"),
        ("data.name=svm", "data has both name and file; take name = one of breast_cancer_wisconsin, "),
        ("data={}", "data has neither name nor file; take name = one of breast_cancer_wisconsin, "),
        ("data.columns=0", "data.columns is 0; it must be a whole number of at least 1"),
        ("data.ignore=[1]", "data.ignore is [1]; it must be a list of texts"),
        ("data.missing=median", "unknown data.missing 'median': did you mean 'mean'? choose from refuse, mean, drop"),
        ("data.positive=[1]", "data.positive is [1]; name one class"),
        ("data.standardise=1", "data.standardise is 1; it must be True or False"),
        (
            "data.holdout=1",
            "data.holdout is 1; it is the share of rows kept for testing: 0 for none, or from 0.01 to 0.9",
        ),
        ("partition=3", "partition is 3; it must be a table: write [partition]"),
        ("partition.clients=0", "partition.clients is 0; it must be a whole number of at least 1"),
        ("partition.alpha=1", "partition.alpha is 1, but only dirichlet takes it, and by is 'kmeans'"),
        ("partition={by='site', clients=3}", "partition.clients is 3, but each value of the column 'site' is a client"),
        ("rounds=0", "rounds is 0; it must be a whole number of at least 1"),
        ("rounds=many", "rounds is 'many'; it must be a whole number of at least 1"),
        ("target=0", "target is 0; it must be a positive number"),
        ("until=1", "until is 1.0, which takes a proof; add certificate = a radius that x* is within"),
        ("certificate=-1", "certificate is -1; it must be a positive number"),
        ("batch=2", "batch is 2; it is the fraction of rows used in a step"),
        ("every=0", "every is 0; it must be a whole number of at least 1"),
        ("seeds=[]", "seeds is []; give how many, or a list of different ones"),
        ("seeds=[1, 1]", "seeds is [1, 1]; give how many, or a list of different ones"),
        ("optimum=true", 'optimum is True; take "auto" to solve for it, false to go without, or a number'),
        ("loss=hing", "unknown loss 'hing': did you mean 'hinge'?"),
        ("loss_parameter=1", "loss_parameter is 1, but 'hinge' takes none; leave it out"),
        ("weights=row", "unknown weights 'row': did you mean 'rows'? choose from equal, rows"),
        ("intercept=1", "intercept is 1; it must be True or False"),
        ("l2=-1", "l2 is -1; it must be a number of at least 0"),
        ("metrics=test_acc", "unknown metric 'test_acc': did you mean 'test_accuracy'?"),
        ("metrics=test_accuracy", "metrics has 'test_accuracy', which needs rows kept for testing; set data.holdout"),
        ("variants=3", "variants is 3; it must be a table of names"),
        ("title=3", "title is 3; it must be text, in quotation marks"),
        ("algorithms=3", "algorithms is 3; give at least one [[algorithms]] with its name"),
        ("algorithms=[]", "algorithms is []; give at least one [[algorithms]] with its name"),
        ("algorithms={name='fedmls'}", "algorithms is one table; write [[algorithms]], with two brackets, above each"),
        ("algorithms=[{lam0=1}]", "algorithms.0 is {'lam0': 1}; give a table with the algorithm's name"),
        ("algorithms=['fedmlz']", "unknown algorithms.0.name 'fedmlz': did you mean 'fedmls'? choose from fedmls, "),
        ("algorithms=['fedmls', 'fedmls']", "algorithms has 'FedMLS' twice; leave one out, or give it a title"),
        ("algorithms=['fedmlsp']", "algorithms.0 (fedmlsp) needs 'participants'"),
        ("algorithms.fedmls.lam0=[1, -1]", "algorithms.0 (fedmls): lam0 is -1.0; it must be a positive number"),
        ("algorithms.fedmls.lam0=[]", "algorithms.0.lam0 is []; give at least one value"),
        (
            "algorithms.fedmls.lamm=1",
            "unknown key of algorithms.0 (fedmls) 'lamm': did you mean 'lam'? choose from name, ",
        ),
        ("algorithms.fedmls.lam={a=1}", "algorithms.0.lam is {'a': 1}; a schedule is { power = [scale, exponent] }"),
        ("algorithms.fedmls.lam={power=[-1, 1]}", "algorithms.0.lam: Power(scale=-1, exponent=1) is no schedule"),
        ("algorithms.scaffold.eta0=1", "unknown entry of algorithms in --set 'scaffold': choose from fedmls, fedavg"),
        ("algorithms.0=1", "--set algorithms.0 names no parameter; write e.g. algorithms.0.lam0"),
        ("algorithms=[1]", "algorithms.0 is 1; give a table with the algorithm's name"),
        ("rounds.x=3", "--set rounds.x: rounds is 5, which has no keys"),
        ("rounds", "--set 'rounds' sets nothing; write name=value, e.g. --set rounds=50 --set data.file=x.csv"),
        ("=3", "--set '=3' sets nothing"),
    ],
)
def test_mistakes_are_told_with_file_key_and_value(setting, message, small):
    with pytest.raises(ValueError) as error:
        read(small, [setting])
    assert str(error.value).startswith(f"{small}: {message}")


def test_files_that_are_no_experiments(tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = \n")
    with pytest.raises(ValueError, match=r"bad\.toml: no TOML: Invalid value \(at line 1, column 10\)"):
        read(tmp_path / "bad.toml")
    with pytest.raises(
        ValueError, match=r"none\.toml: there is no such file; fedmls run --example > my\.toml writes one"
    ):
        read(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="it is a folder; fedmls run --example"):
        read(tmp_path)
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ValueError, match=r"empty\.toml: there is no 'data'; fedmls run --example prints a file"):
        read(tmp_path / "empty.toml")
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'")
    with pytest.raises(ValueError, match=r"latin\.toml: it is no UTF-8 text; save it as UTF-8"):
        read(tmp_path / "latin.toml")

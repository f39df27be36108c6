"""Scores on held-out rows as text."""

from fedmls.results.held_out import HeldOutScores, Scores


def test_a_terminal_gets_the_accuracy_at_each_site():
    sites = {
        f"hospital-{i}": Scores(10 * i, {"accuracy": 0.9 - i / 100, "auc": 0.95, "auc_error": 0.01})
        for i in range(1, 6)
    }
    scores = HeldOutScores(Scores(150, {"accuracy": 0.87, "auc": 0.95, "auc_error": 0.01}), sites, {"west": "away"}, [])
    lines = scores.lines()
    assert lines[0] == "150 held-out rows: accuracy 0.870, AUC 0.950 ± 0.011"
    assert lines[1].startswith("accuracy at each site: hospital-1 0.890, hospital-2 0.880, hospital-3 0.870")
    assert lines[-1] == "without west: away"
    assert max(map(len, lines)) <= 80


def test_sums_alone_tell_nothing_of_a_site():
    scores = HeldOutScores(Scores(150, {"accuracy": 0.87}), {}, {}, [])
    assert scores.lines() == ["150 held-out rows: accuracy 0.870"]
    assert HeldOutScores(Scores(0, {}), {}, {}, ["no node holds out rows"]).lines()[-1] == "no node holds out rows"

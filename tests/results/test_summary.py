"""The summary: one statistic and one rule, for people, for programs and for papers."""

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import fedmls
from fedmls import report
from fedmls.report.curves import curves_of
from fedmls.results import latex
from fedmls.results.read import read_uniform
from fedmls.results.summary import best, cells, judged, least_important, median_to, summary_of
from fedmls.results.write import write_results
from fedmls.types import Run

GAPS = {  # of three curves, by seed and round
    "λ₀ = 1": [[0.5, 0.05], [0.4, 0.005], [0.3, 0.2], [0.2, 0.02]],
    "λ₀ = 10": [[0.5, 0.001], [0.4, 0.001], [0.9, 0.9], [0.9, 0.9]],
    "λ₀ = 100": [[0.5, 0.009], [0.5, 0.008], [0.5, 0.007], [0.5, 0.006]],
}


def run_of(seed, gaps, diverged=False):
    rounds = np.arange(1, len(gaps) + 1)
    columns = {"round": rounds, "exchanges": rounds, "local_steps": rounds, "bytes_up": 80 * rounds}
    columns |= {
        "bytes_down": 80 * rounds,
        "objective": 1 + np.array(gaps),
        "relative_gap": gaps,
        "seconds": 0.1 * rounds,
    }
    return Run(fedmls.FedMLS(), seed, 1.0, np.zeros(1), pd.DataFrame(columns), 1.0, diverged)


@pytest.fixture
def runs():
    """The curves' runs with their labels; the last two of the second curve diverged."""
    made, labels = [], []
    for parameter, seeds in GAPS.items():
        for seed, gaps in enumerate(seeds):
            made.append(run_of(seed, gaps, diverged=gaps[-1] == 0.9))
            labels.append(("FedMLS", "", parameter))
    return made, labels


def test_values_at_the_end_are_medians_of_the_runs_that_did_not_diverge(runs):
    summary = summary_of(*runs).set_index("parameter")
    assert summary.loc["λ₀ = 1", "relative_gap"] == pytest.approx(0.035)
    assert summary.loc["λ₀ = 1", ["smallest", "largest"]].tolist() == [0.005, 0.2]
    assert summary.loc["λ₀ = 10", ["relative_gap", "seeds", "diverged"]].tolist() == [0.001, 4, 2]
    assert summary.loc["λ₀ = 1", "objective"] == pytest.approx(1.035)


def test_a_target_is_reached_if_more_than_half_of_the_seeds_came_there(runs):
    summary = summary_of(*runs).set_index("parameter")
    assert summary["rounds_to_0.1"].tolist()[::2] == [2, 2]
    assert np.isnan(summary.loc["λ₀ = 10", "rounds_to_0.1"])  # two of four
    assert np.isnan(summary.loc["λ₀ = 1", "rounds_to_0.01"])  # one of four
    assert summary.loc["λ₀ = 100", "rounds_to_0.01"] == 2


TAKEN = [([], 1, np.inf), ([3], 2, np.inf), ([3, 5], 3, 5), ([3, 5, 7], 4, 6)]


@pytest.mark.parametrize(("reached", "seeds", "median"), TAKEN)
def test_the_median_over_all_seeds(reached, seeds, median):
    assert median_to(reached, seeds) == median


def test_a_curve_of_which_half_diverged_is_not_the_best(runs):
    assert best(summary_of(*runs))["parameter"].tolist() == ["λ₀ = 100"]
    assert judged([1.0, 2.0], 4) == np.inf
    assert judged([1.0, 2.0], 3) == 1.5


def test_the_report_has_the_same_numbers_and_the_same_best(runs, tmp_path):
    done = write_results(tmp_path, *runs, {"title": "three"})
    summary = done.summary.set_index("parameter")
    page = report.summarise([tmp_path])
    for curve in page["chart"]["curves"]:
        shown = curve["y"]["relative_gap"]
        assert shown["median"][-1] == pytest.approx(summary.loc[curve["parameter"], "relative_gap"])
        assert (shown["low"][-1], shown["high"][-1]) == tuple(summary.loc[curve["parameter"], ["smallest", "largest"]])
    ranks = {curve.parameter: curve.rank for curve in curves_of(read_uniform([tmp_path])[0], 0)}
    assert ranks == {"λ₀ = 100": 0, "λ₀ = 1": 1, "λ₀ = 10": 2}
    (row,) = next(t for t in page["targets"]["tables"] if (t["gap"], t["cost"]) == ("relative_gap", "round"))["rows"]
    assert [cell["text"] for cell in row["cells"]] == ["2", "2", "not reached", "not reached"]


def test_the_text_shows_the_range_over_seeds(runs):
    shown = cells(summary_of(*runs))
    assert shown[0][:4] == ["method", "parameter", "relative gap", "smallest to largest"]
    assert shown[1][2:4] == ["3.50e-02", "5.0e-03 to 2.0e-01"]
    assert shown[2][2] == "1.00e-03 (2 of 4 diverged)"
    assert least_important(summary_of(*runs))[:3] == ["smallest to largest", "local steps", "MB up"]


# For papers


def test_latex_escapes_what_it_must():
    assert latex.text("a_b & 50% #1 {x} ~ ^ \\") == (
        r"a\_b \& 50\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert latex.text("λ₀ = 0.1 – η") == r"\ensuremath{\lambda}\ensuremath{_0} = 0.1 -- \ensuremath{\eta}"
    assert latex.text("2.35e-02 (1 of 2)") == r"\ensuremath{2.35\cdot10^{-2}} (1 of 2)"
    assert latex.text("type1e-5x") == "type1e-5x"


def test_the_folder_holds_a_table_for_papers(runs, tmp_path):
    write_results(tmp_path, *runs, {})
    text = (tmp_path / "summary.tex").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[1] == r"\begin{tabular}{llrrrrrr}"
    assert [line for line in lines if line.startswith("\\")][1:] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert lines[3].startswith("method & parameter & relative gap & smallest to largest")
    assert all(line.count(" & ") == 7 for line in lines if line.endswith(r"\\"))


def has_booktabs():
    find = shutil.which("kpsewhich")  # comes with pdflatex
    return find is not None and bool(subprocess.run([find, "booktabs.sty"], capture_output=True, check=False).stdout)


@pytest.mark.processes
@pytest.mark.skipif(not has_booktabs(), reason="pdflatex with booktabs is not installed")
def test_latex_takes_the_table(runs, tmp_path):
    made, labels = runs
    hard = [("a_b & 50% #1 {x} ~ ^ \\ <|>", "é", f"{name} ρ² √2 × 3") for _, _, name in labels]
    write_results(tmp_path, made, hard, {})
    page = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\input{summary}\\end{document}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "page.pdf").stat().st_size > 1000

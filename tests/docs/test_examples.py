"""The example scripts run as they are, and draw figures that say what they show."""

import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("plot_*.py"))


@pytest.fixture
def headless(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with mpl.rc_context():
        plt.switch_backend("Agg")
        yield
        plt.close("all")


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_draws_its_figures(script, headless, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(plt, "show", lambda *args, **kwargs: None)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip(), "it says nothing"
    assert plt.get_fignums(), "it draws nothing"
    for number in plt.get_fignums():
        figure = plt.figure(number)
        assert all(axes.get_xlabel() for axes in figure.axes)
        assert any(axes.get_ylabel() or axes.get_title() for axes in figure.axes)
        figure.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000
    written = [file for file in tmp_path.iterdir() if file.suffix != ".png"]
    assert not written, "it leaves files behind"

"""What commands print fits the terminal, and can be written wherever it goes."""

import io
import re
import sys

import pytest

from fedmls.cli import output
from fedmls.cli.output import fitting, print_cells, replaced

CELLS = [
    ["method", "parameter", "relative gap", "smallest to largest", "rounds to 0.1", "rounds to 0.01", "local steps"],
    ["FedMLS-D", "", "2.84e-04", "1.4e-04 to 4.3e-04", "4", "7", "12,500"],
    ["FedAvg", "η₀ = 0.01, participants = 5", "2.88e-02 (1 of 2 diverged)", "–", "12", "not reached", "1,275"],
    ["FedMLS", "λ₀ = 0.1", "9.90e-02", "9.4e-02 to 1.0e-01", "not reached", "not reached", "1,275"],
]
GOING = ["smallest to largest", "local steps", "rounds to 0.1", "rounds to 0.01"]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_table_fits_and_no_number_is_cut(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_cells(CELLS, "A table", 2, GOING)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in printed
    for number in ("2.84e-04", "2.88e-02", "9.90e-02"):
        assert number in printed
    shown = [name for name in GOING if name not in " ".join(re.findall("without (.*)", printed.replace("\n", " ")))]
    assert shown == GOING[len(GOING) - len(shown) :]  # the least important go first
    assert (len(shown) == len(GOING)) == (width >= 100)


def test_nothing_goes_where_there_is_room():
    kept = fitting(CELLS, 2, GOING, 200)
    assert list(kept) == list(range(7))
    assert kept[1] == len("η₀ = 0.01, participants = 5")


def test_files_get_wide_tables(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_cells(CELLS, "A table", 2, GOING)
    assert "for want of room" not in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_cannot_be_written_are_replaced(encoding, monkeypatch):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors=output.REPLACED, write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "120")
    print_cells(CELLS, "λ", 2)
    text = written.getvalue().decode(encoding)
    assert "lambda0 = 0.1" in text
    assert "eta0 = 0.01" in text
    table = [line for line in text.splitlines() if line.startswith(("|", "+"))]
    assert len({len(line) for line in table}) == 1  # columns stay below each other


def test_what_stands_for_other_letters():
    def written(text):
        return text.encode("ascii", output.REPLACED).decode()

    assert written("f − f* ≤ 2 × 10⁻³ – é … 日") == "f - f* <= 2 x 10^-3 - e ... ?"
    with pytest.raises(AssertionError):
        replaced(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"))

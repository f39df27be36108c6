"""What the columns of a file hold, as fedmls new, node and split tell it."""

import pandas as pd
import pytest

from fedmls.datasets.overview import look_at


def test_every_column_is_of_one_kind(tmp_path):
    frame = pd.DataFrame(
        {
            "age": [61, 47, None, 58],
            "smoker": ["yes", None, "no", "yes"],
            "sex": ["F", "F", "M", "F"],
            "nothing": [None] * 4,
            "day": pd.date_range("2020", periods=4),
            "patient": [1, 2, 3, 4],
            "ill": [1.0, 0.0, 1.0, None],
        }
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    found = look_at(tmp_path / "rows.parquet", ignore=["patient"])
    assert found._asdict() == {
        "rows": 4,
        "label": "ill",
        "classes": ["0", "1"],
        "unlabelled": 1,
        "numbers": ["age"],
        "text": {"smoker": ["no", "yes"], "sex": ["F", "M"]},
        "unfit": {"day": "holds times", "nothing": "no value at all"},
        "gaps": {"age": 1, "smoker": 1, "nothing": 4},
        "decimal": ".",
        "ignored": ["patient"],
    }


def test_too_many_values_are_no_categories(tmp_path):
    pd.DataFrame({"id": [f"p{i}" for i in range(101)], "y": range(101)}).to_csv(tmp_path / "rows.csv", index=False)
    found = look_at(tmp_path / "rows.csv")
    assert found.unfit == {"id": "101 different values"}
    assert found.classes is None


@pytest.mark.parametrize(
    ("text", "options", "decimal"),
    [
        ("a;y\n2,5;0\n3;1\n3,5;1\n", {}, ","),
        ("a;y\n2.5;0\n3;1\n", {}, "."),
        ("a;y\n1;2,5\n2;3,5\n", {}, ","),  # of the label
        ('a,codes,y\n2.5,"1,2",0\n3.5,"3,4",1\n', {"ignore": ["codes"]}, "."),
    ],
)
def test_decimal_commas_are_found_out(text, options, decimal, tmp_path):
    (tmp_path / "rows.csv").write_text(text)
    assert look_at(tmp_path / "rows.csv", **options).decimal == decimal

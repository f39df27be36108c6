"""The command of trained models: predict."""

from pathlib import Path
from typing import Annotated

import typer

from fedmls.cli.app import app, reports_errors
from fedmls.cli.completion import decimals
from fedmls.cli.new import DECIMAL
from fedmls.cli.output import counted, say, say_wrapped


@app.command()
@reports_errors
def predict(
    folder: Annotated[Path, typer.Argument(help="A results folder with a model, or its model.json.", metavar="FOLDER")],
    file: Annotated[Path, typer.Argument(help="New rows: CSV, Parquet, svmlight or NPZ.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="The predictions, a CSV file.", metavar="FILE")],
    keep: Annotated[
        list[str] | None, typer.Option(help="A column of FILE to copy beside the predictions; may be repeated.")
    ] = None,
    decimal: Annotated[str | None, typer.Option(help=DECIMAL, autocompletion=decimals)] = None,
) -> None:
    """The predictions of a trained model for new rows.

    FOLDER is one of fedmls federate, run or reproduce.
    FILE needs no label; columns may be in any order, and others among them.
    The CSV has the prediction for each row, and for classes the score:
    above 0 for the larger class, whose probability is there for logistic.
    If FILE has the label, it is told how good the predictions are.
    """
    from fedmls.files import whole_file
    from fedmls.results.pipeline import predict_file

    if out.suffix.lower() != ".csv":
        raise ValueError(f"--out is {str(out)!r}; predictions are written as CSV: name a file that ends in .csv")
    if out.is_dir() or (out.exists() and file.exists() and out.samefile(file)):
        what = "a folder" if out.is_dir() else "the file of the rows, which would be lost"
        raise ValueError(f"--out is {str(out)!r}, {what}; name another file")
    table, notes = predict_file(folder, file, keep or (), decimal)
    try:
        with whole_file(out) as stream:
            stream.write(table.to_csv(index=False).encode())
    except OSError as error:
        raise ValueError(f"--out is {str(out)!r}, which cannot be written ({error.strerror}); name another") from None
    say_wrapped(*notes)
    say(f"{counted(len(table), 'prediction')} in {out}")

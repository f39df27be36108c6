"""The names of a results folder's files, and of the columns that tell its curves apart."""

RUNS = "runs"
HISTORY = "history.parquet"
SUMMARY, SUMMARY_TEXT = "summary.csv", "summary.md"
SETUP = "setup.json"
MODEL, MODEL_TEXT = "model.npz", "model.json"
POINTS, CHOSEN, PROBLEMS = "points.parquet", "chosen.csv", "problems.csv"  # of a comparison

LABELS = ("method", "variant", "parameter")
Labels = tuple[str, str, str]  # of one curve, "" for a variant or a parameter that it has not

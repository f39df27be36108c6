"""The names of a results folder's files, and of the columns that tell its curves apart."""

RUNS = "runs"
HISTORY = "history.parquet"
SUMMARY, SUMMARY_TEXT, SUMMARY_LATEX = "summary.csv", "summary.md", "summary.tex"
SETUP = "setup.json"
MODEL, MODEL_TEXT = "model.npz", "model.json"
LIVE, PLAN = "live", "plan.json"  # of an experiment that is not finished: the folder, and what is to be run
EVENTS = "events.jsonl"  # of a federation: a line for each exchange, as it is done
POINTS, CHOSEN, PROBLEMS = "points.parquet", "chosen.csv", "problems.csv"  # of a comparison

LABELS = ("method", "variant", "parameter")
Labels = tuple[str, str, str]  # of one curve, "" for a variant or a parameter that it has not

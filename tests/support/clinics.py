"""Six clinics, whose files say the same in six ways: for tests that go from rows to predictions."""

import numpy as np
import pandas as pd

from fedmls.federation import InProcess, Job, NodeConfig, drive

COLUMNS = ["age", "dose", "ward", "smoker"]
WARDS = ["surgery", "heart", "eyes"]


def patients(m, seed, wards=WARDS):
    """Rows with two columns of numbers, one of three categories, one of two, and a label of text."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.normal(55, 12, m).round(1),
            "dose": rng.gamma(2.0, 150.0, m).round(2),
            "ward": rng.choice(wards, m),
            "smoker": rng.choice(["no", "yes"], m, p=[0.7, 0.3]),
        }
    )
    score = (table["age"] - 55) / 12 + (table["dose"] - 300) / 200 + 1.5 * (table["ward"] == "heart")
    table["ill"] = np.where(score + (table["smoker"] == "yes") + rng.normal(size=m) > 0.5, "yes", "no")
    return table


def with_gaps(table, seed=0):
    """The table with some cells empty."""
    rng, gapped = np.random.default_rng(seed), table.copy()
    for name in ("age", "ward", "smoker"):
        gapped[name] = gapped[name].mask(rng.random(len(table)) < 0.1)
    return gapped


def clinics(folder, m=40):
    """Write the six files; return what each holds, by its path."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {f"clinic-{i}": patients(m, seed=i) for i in range(1, 6)}
    tables = plain | {"clinic-5": with_gaps(plain["clinic-5"]), "clinic-6": patients(m, 6, ["heart", "eyes"])}
    tables["clinic-2"] = tables["clinic-2"][["ill", "smoker", "dose", "age", "ward"]]  # another order
    options = {"clinic-3": {"encoding": "utf-8-sig"}, "clinic-4": {"sep": ";"}}  # a byte order mark; semicolons
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, **options.get(name, {}))
    return {folder / f"{name}.csv": table for name, table in tables.items()}


def nodes(files, **options):
    """A node for each file."""
    return [
        NodeConfig(name=file.stem, data=file, state=file.parent / "state" / file.stem, label="ill", **options)
        for file in files
    ]


def federation(folder, transport=InProcess, **job):
    """Run the job over the six clinics, within one process; return its result, whose folder holds the model."""
    files = clinics(folder / "parts")
    Job(**{"rounds": 12, "categorical": "onehot"} | job).write(folder / "job")
    return drive(folder / "job", transport(nodes(files)))


def write_nodes(files):
    """Write the configuration of a node beside each file, as ``fedmls federate --parts`` takes them."""
    for file in files:
        text = f'name = "{file.stem}"\ndata = "{file.name}"\nstate = "state/{file.stem}"\nlabel = "ill"\n'
        file.with_suffix(".toml").write_text(text, encoding="utf-8")

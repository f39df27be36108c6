"""The command that measures scale."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_scale.py"


@pytest.mark.processes
@pytest.mark.parametrize(("method", "columns"), [("fedmls", 4), ("fedmlsb", 4), ("fedavg", 2000)])
def test_one_line_is_measured(method, columns):
    command = [sys.executable, str(SCRIPT), "--one", method, "20", "400", str(columns)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout)
    assert found.keys() == {"made", "peak", "first", "exchange"}
    assert found["made"] > 0


def test_rows_on_disk_are_read_in_every_way(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("bench_scale", SCRIPT)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    monkeypatch.setattr(bench, "ON_DISK", (20_000, 5))
    rates = bench.disk_rates(tmp_path / "X.npy")
    assert len(rates) == 3
    assert all(rate > 0 for _, rate in rates)

"""The command that measures scale."""

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
    assert found.keys() == {"made", "peak", "exchange"}
    assert found["made"] > 0

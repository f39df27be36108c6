"""Without a GPU, ``device="cuda"`` says what is missing and what to do."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import fedmls
from fedmls.local import cuda
from tests.support.problems import svm


@pytest.fixture(autouse=True)
def anew():
    cuda.cupy.cache_clear()
    yield
    cuda.cupy.cache_clear()


class CUDARuntimeError(RuntimeError):
    """What CuPy raises."""


def fake(count):
    return SimpleNamespace(
        cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CUDARuntimeError))
    )


def no_driver():
    raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (None, "device='cuda' needs CuPy, which is not installed; pip install 'fedmls[gpu]'"),
        (fake(lambda: 0), "device='cuda' needs an NVIDIA GPU, and there is none here; leave out device="),
        (fake(no_driver), "and none answers .*no CUDA-capable device.*; leave out device="),
    ],
)
def test_what_is_missing_is_said(module, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", module)
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        fedmls.simulate(fedmls.FedAvg(), svm(), rounds=2, device="cuda")
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        fedmls.sweep([fedmls.FedAvg()], svm(), rounds=2, seeds=range(2), device="cuda")


def test_devices_are_names():
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        fedmls.simulate(fedmls.FedAvg(), svm(), rounds=2, device="gpu")
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        fedmls.FederatedLinearSVC(device="tpu").fit(np.eye(4), [0, 1, 0, 1])
    functions = fedmls.OracleProblem([(lambda x: 0.0, lambda x, rng: x)], 2)
    with pytest.raises(ValueError, match="device is 'cuda', but a problem made of functions has no rows; leave it out"):
        fedmls.simulate(fedmls.FedAvg(), functions, rounds=2, device="cuda")


def test_a_problem_keeps_one_copy_for_each_device():
    made = svm()
    there = made.on("cuda")
    assert there is made.on("cuda")
    assert there.on("cpu") is made
    assert there.fingerprint == made.fingerprint
    assert there.optimum is made.optimum


def test_a_problem_is_sent_to_another_process_without_its_loops():
    made = svm()
    made.value(np.zeros(made.dimension))
    assert "loops" in made.__dict__
    sent = pickle.loads(pickle.dumps(made))
    assert "loops" not in sent.__dict__
    assert sent.value(np.ones(made.dimension)) == made.value(np.ones(made.dimension))

"""Paths that live in provisioned kits, apps and units: they lead to where things are now."""

import runpy
import sys

import pytest


@pytest.mark.parametrize("name", ["certificates", "flower", "nvflare", "flower_warm"])
def test_commands_of_units_and_pages(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, f"fedmls.federation.{name}", raising=False)
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"fedmls.federation.{name}", run_name="__main__")
    assert left.value.code == 0
    assert f"usage: python -m fedmls.federation.{name} " in capsys.readouterr().out


def test_classes_that_kits_allow_and_jobs_name():
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'fedmls[nvflare]'")
    from fedmls.federation import nvflare_app
    from fedmls.federation.deploy.nvflare_kits import NODE_APP, SERVER_APP

    named = {f"{nvflare_app.__name__}.{name}" for name in ("ServerApp", "NodeApp") if hasattr(nvflare_app, name)}
    assert (
        named == {SERVER_APP, NODE_APP} == {f"fedmls.federation.nvflare_app.{name}App" for name in ("Server", "Node")}
    )


def test_functions_that_flowers_apps_name():
    pytest.importorskip("flwr", reason="Flower is not installed; it comes with fedmls[flower]")
    from fedmls.federation import flower_app
    from fedmls.federation.deploy.flower import APP

    assert "from fedmls.federation.flower_app import client_app, server_app" in APP["fedmls_app.py"]
    assert callable(flower_app.client_app)
    assert callable(flower_app.server_app)

"""The live page: served to this machine only, and followed by a real browser."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

import fedmls
from fedmls.federation import InProcess, Job, drive
from fedmls.results import layout
from fedmls.watch import Server
from fedmls.watch import server as serving
from tests.support.federations import parts, wait_until
from tests.support.live import half_done, swept
from tests.support.problems import svm

EVIL = "<img src=x onerror=window.ran=1>"


@pytest.fixture
def stopped(tmp_path):
    return half_done(tmp_path / "two")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """The folder is looked at whenever the page asks."""
    monkeypatch.setattr(serving, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(serving, "LOOKING_SHARE", 1e9)


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def test_the_page_and_what_it_needs_are_served_and_nothing_else(stopped):
    with Server(stopped) as server:
        status, page, headers = get(server.url)
        assert status == 200
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        needed = re.findall(r'(?:src|href)="([\w.]+)"', page.decode())
        assert {*needed} == {"report.css", "watch.css", "plotly.js", "chart.js", "watch.js"}
        for name in (*needed, "data.json"):
            assert get(server.url + name)[0] == 200, name
        for path in ("setup.json", "live/plan.json", "../pyproject.toml", "%2e%2e/pyproject.toml", "server.py"):
            assert get(server.url + path)[0] == 404, path
        tag = get(server.url + "chart.js")[2]["ETag"]
        assert get(server.url + "chart.js", **{"If-None-Match": tag})[:2] == (304, b"")


def test_only_this_machine_is_answered(stopped):
    with Server(stopped) as server:
        assert server.http.server_address[0] == "127.0.0.1"
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", ""):
            assert get(server.url + "data.json", Host=host)[:2] == (403, b""), host
        assert get(server.url + "data.json", Host=f"localhost:{server.port}")[0] == 200
        request = urllib.request.Request(server.url, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 501
        refused.value.close()


def test_a_port_that_is_taken_is_an_error_of_one_line(stopped):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port {port} cannot be had .*; leave out --port"):
            Server(stopped, port)


def test_a_folder_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / layout.LIVE).mkdir()
    (tmp_path / layout.LIVE / layout.PLAN).write_text("{")
    with Server(tmp_path) as server:
        told = json.loads(get(server.url + "data.json")[1])
    assert list(told) == ["error"]


def test_looking_takes_a_small_share_of_the_time(stopped, monkeypatch):
    monkeypatch.setattr(serving, "LEAST_SECONDS", 60.0)
    with Server(stopped) as server:
        looks = []
        monkeypatch.setattr(server.watcher, "look", lambda: looks.append(1) or {})
        for _ in range(5):
            get(server.url + "data.json")
    assert len(looks) == 1


def test_the_end_is_waited_for_only_if_a_page_is_open(stopped):
    with Server(stopped) as server:
        server.say_the_end()  # nobody has asked: at once
        get(server.url + "data.json")
        asking = threading.Timer(0.3, get, [server.url + "data.json"])
        asking.start()
        server.say_the_end()
        asking.join()
        assert server.told.is_set()


@pytest.mark.processes
def test_the_command_serves_until_ctrl_c(stopped):
    command = [sys.executable, "-m", "fedmls", "watch", stopped.name]
    process = subprocess.Popen(command, cwd=stopped.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    url = re.fullmatch(r"two is shown at (http://127\.0\.0\.1:\d+/) \(Ctrl-C to end\)\n", line)[1]
    assert json.loads(get(url + "data.json")[1])["title"] == "Two"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "stopped\n")


# In a browser


@pytest.fixture
def visit(browser):
    """Opens a page in an empty profile; at the end nothing may have been complained of."""
    contexts, complaints = [], []

    def opened(url, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(url) else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def drawn(page):
    return page.evaluate("document.getElementById('chart').data.map((trace) => ({ name: trace.name, x: trace.x }))")


def test_a_browser_follows_a_sweep_to_its_end(tmp_path, visit):
    """The sweep waits after each round until the page has shown it."""
    from fedmls.simulation.run import Simulation

    go_on, play = threading.Semaphore(0), Simulation.play

    def slow(simulation, stop=None):
        for view in play(simulation, stop):
            yield view
            go_on.acquire()

    Simulation.play = slow
    thread = threading.Thread(target=swept, args=(tmp_path / "sweep",))
    try:
        with Server(tmp_path / "sweep") as server:
            thread.start()
            wait_until((tmp_path / "sweep" / layout.LIVE / layout.PLAN).exists)
            page = visit(server.url)
            page.wait_for_selector("body[data-status=running]")
            assert page.locator("h1").inner_text() == "Two"
            for _ in range(2):
                go_on.release()
            page.locator("#runs td", has_text="3 of 4").wait_for()
            assert drawn(page)[-1] == {"name": "FedMLS, λ₀ = 1", "x": [1, 2, 3]}
            for _ in range(2):
                go_on.release()
            page.locator("#tiles .value", has_text="1 of 4").wait_for()
            page.locator("input[name=x][value=bytes]").evaluate("box => box.click()")
            chosen = "document.getElementById('chart')._fullLayout.xaxis.title.text"
            assert page.evaluate(chosen) == "bytes"
            for _ in range(12):
                go_on.release()
            thread.join(60)
            page.wait_for_selector("body:not([data-status=running])")
            assert page.evaluate(chosen) == "bytes"  # what was chosen stays chosen
    finally:
        Simulation.play = play
        for _ in range(50):
            go_on.release()
        thread.join(60)


def test_a_browser_follows_a_federation(tmp_path, visit):
    class Waiting(InProcess):
        go_on = threading.Semaphore(0)

        def exchange(self, messages, timeout):
            self.go_on.acquire()
            return super().exchange(messages, timeout)

    Job(algorithm=fedmls.FedMLSB(), rounds=4, certificate=True, name="clinics").write(tmp_path / "job")
    transport = Waiting(parts(svm(n=3), tmp_path / "parts"))
    thread = threading.Thread(target=drive, args=(tmp_path / "job", transport))
    with Server(tmp_path / "job") as server:
        page = visit(server.url)
        page.wait_for_selector("body[data-status=waiting]")
        thread.start()
        for _ in range(4):  # two before the first round, and two rounds
            transport.go_on.release()
        page.locator("#tiles .value", has_text="2 of 4").wait_for()
        assert page.locator("#nodes tbody th").all_inner_texts() == ["site-1", "site-2", "site-3"]
        assert page.locator("#nodes .answers").first.locator("i").count() == 4
        for _ in range(10):
            transport.go_on.release()
        page.wait_for_selector("body[data-status=finished]")
        assert "fedmls report" in page.locator("#sentence").inner_text()
    thread.join(60)


def test_names_from_files_are_shown_as_text(stopped, visit):
    file = stopped / layout.LIVE / layout.PLAN
    plan = json.loads(file.read_text(encoding="utf-8"))
    plan["setup"]["title"] = EVIL
    for run in plan["runs"]:
        run["method"] = EVIL
    file.write_text(json.dumps(plan), encoding="utf-8")
    with Server(stopped) as server:
        page = visit(server.url)
        page.wait_for_selector("body[data-status=stopped]")
        assert page.locator("h1").inner_text() == EVIL
        assert EVIL in page.locator("#runs tbody").inner_text()
        page.wait_for_selector("#chart .legendtext")
        assert EVIL in page.locator("#chart .legendtext").first.text_content()
        assert page.evaluate("window.ran") is None


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window(stopped, visit, width):
    with Server(stopped) as server:
        page = visit(server.url, viewport={"width": width, "height": 800})
        page.wait_for_selector("#chart .legendtext")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_whose_server_has_gone_says_so(stopped, browser):
    context = browser.new_context()
    page = context.new_page()
    with Server(stopped) as server:
        page.goto(server.url)
        page.wait_for_selector("body[data-status=stopped]")
    page.wait_for_selector("body[data-status=error]")
    assert "has ended; what is shown is the last it told" in page.locator("#sentence").inner_text()
    assert page.locator("h1").inner_text() == "Two"
    context.close()

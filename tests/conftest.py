"""Settings for all tests."""

import functools
import shutil
import signal

import pytest
from hypothesis import settings

settings.register_profile("fedmls", deadline=None)  # the first call compiles
settings.load_profile("fedmls")

# Some shells start background jobs with Ctrl-C ignored, which the processes started by the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Mark the tests that look at a page, and skip those that need a GPU where there is none."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        if item.get_closest_marker("gpu") and missing_gpu():
            item.add_marker(pytest.mark.skip(reason=missing_gpu()))


@functools.cache
def missing_gpu():
    """Why tests of the GPU cannot run here; nothing if they can."""
    from fedmls.local.cuda import cupy

    try:
        cupy()
    except ValueError as error:
        return str(error)
    return ""


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield started
        finally:
            started.close()

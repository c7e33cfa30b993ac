"""A browser for the tests of pages."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium on PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function from HTML to a page opened from disk without network; nothing may complain."""
    complaints = []
    context = browser.new_context(offline=True, accept_downloads=True)

    def check(request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            complaints.append(request.url)

    def open_page(text):
        (tmp_path / "page.html").write_text(text, "utf-8")
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", check)
        tab.goto((tmp_path / "page.html").as_uri())
        return tab

    yield open_page
    context.close()
    assert complaints == []

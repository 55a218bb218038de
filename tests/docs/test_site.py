"""The built site: strictly, from disk, without a request to anywhere else."""

import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LOADED = re.compile(
    r"""<(?:script|img|link|iframe|source|video|audio)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
)
PAGES = [
    "index.html",
    "models/pbm.html",
    "models/dbn.html",
    "metrics.html",
    "reference/configuration.html",
    "howto/compare.html",
    "benchmarks.html",
    "data-formats.html",
]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="building the site needs the docs extra")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_nothing_is_loaded_from_elsewhere(site):
    found = {}
    for page in site.rglob("*.html"):
        links = [url for url in LOADED.findall(page.read_text()) if 'rel="canonical"' not in url]
        if links:
            found[page.name] = links
    assert not found
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", sheet.read_text()), (
            sheet.name
        )


def test_every_model_has_its_page(site):
    options = {file.stem for file in (ROOT / "conf/model").glob("*.yaml")} - {
        "cm_marginal",
        "ranker",
    }
    assert (site / "rankers.html").exists()
    assert options <= {file.stem for file in (site / "models").glob("*.html")}


def test_no_page_shows_markup_that_was_not_read(site):
    for page in site.rglob("*.html"):
        text = re.sub(r"<(script|style|code|pre)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
        assert "--8<--" not in text and "$$" not in text and "{ ." not in text, page.name
        assert not re.search(r"\$[^$\n<]*(?:_|\^|\\)[^$\n<]*\$", text), page.name


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_pages_open_from_disk_with_no_request_to_elsewhere(site, browser, width):
    requests, errors = [], []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in PAGES:
        page.goto((site / name).as_uri())
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()
    assert requests and not [
        url for url in requests if not url.startswith(("file:", "data:", "blob:"))
    ]
    assert not errors


@pytest.mark.parametrize("scheme, width", [("light", 1280), ("dark", 1280), ("light", 400)])
def test_axe_reports_nothing(site, browser, scheme, width):
    package = "axe_playwright_python.sync_playwright"
    axe = pytest.importorskip(package, reason="needs axe-playwright-python").Axe()
    found = {}
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in PAGES:
        page.goto((site / name).as_uri())
        page.wait_for_load_state("load")
        for rule in axe.run(page).response["violations"]:
            found.setdefault((rule["id"], rule["nodes"][0]["html"][:160]), name)
    page.close()
    assert not found


def test_the_search_finds_a_page_from_disk(site, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.click("[data-md-component=search-query]")
    page.keyboard.type("propensity weights")
    page.wait_for_selector(".md-search-result__item a", timeout=20_000)
    assert "propensities" in page.inner_html(".md-search-result__list")
    page.close()

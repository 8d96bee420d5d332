"""The front door: a page for browsers, a greeting for programs, and nothing from elsewhere."""

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm.server.routes.front import FOLDER, POLICY
from tests.server.house import House, serving
from tests.server.test_prefix_cache import KEYS
from tests.test_tidy import FILE_LINES_MAX, LINE_COLUMNS_MAX

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
FILES = sorted(FOLDER.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
SINKS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
CONTRAST_MIN = 4.5  # WCAG AA, for text


def test_a_browser_gets_a_page_and_a_program_a_greeting(house: House) -> None:
    page = httpx.get(house.url, headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<main" in page.text
    for accept in ("*/*", "application/json"):
        assert httpx.get(house.url, headers={"Accept": accept}).json()["openai"] == "/v1"
    for reply in (page, httpx.get(house.url)):
        assert reply.headers["vary"] == "Accept"
    assert httpx.head(house.url, headers=BROWSER).headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/", *(f"/page/{file.name}" for file in FILES)])
def test_every_file_comes_under_the_strict_policy(house: House, path: str) -> None:
    reply = httpx.get(house.url + path, headers=BROWSER)
    assert reply.status_code == 200
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in POLICY
    assert "unsafe" not in POLICY
    again = {**BROWSER, "If-None-Match": reply.headers["etag"]}
    unchanged = httpx.get(house.url + path, headers=again)
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_the_page_opens_without_the_key_and_nothing_else_does(house: House) -> None:
    with serving(house.residence, KEYS) as url:
        assert httpx.get(url, headers=BROWSER).status_code == 200
        assert httpx.get(f"{url}/page/main.js").status_code == 200
        for path in ("/", "/v1/models", "/v1/events", "/metrics"):
            assert httpx.get(url + path).status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=BROWSER).status_code == 401
        assert httpx.post(f"{url}/page/main.js").status_code == 401


@pytest.mark.parametrize("name", ["nothing.js", "..%2Ffront.py", "%2e%2e/front.py", ""])
def test_no_other_file_can_be_had(house: House, name: str) -> None:
    reply = httpx.get(f"{house.url}/page/{name}", headers=BROWSER)
    assert reply.status_code == 404
    assert reply.json()["error"]["fix"]


def test_all_that_the_page_loads_lies_beside_it() -> None:
    names = {path.name for path in FILES}
    index = (FOLDER / "index.html").read_text()
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', index)
    assert loaded
    assert {name.removeprefix("page/") for name in loaded} <= names
    imported = {name for path in SCRIPTS for name in re.findall(r'from "(.+)"', path.read_text())}
    assert {name.removeprefix("./") for name in imported} == {
        path.name for path in SCRIPTS if path.name != "main.js"
    }
    assert not re.search(r"url\(|@import", (FOLDER / "style.css").read_text())


def test_the_pages_files_fit_on_a_screen() -> None:
    for path in FILES:
        lines = path.read_text().splitlines()
        assert len(lines) <= FILE_LINES_MAX, path.name
        assert max(map(len, lines)) <= LINE_COLUMNS_MAX, path.name


def test_no_text_is_ever_taken_for_markup() -> None:
    for path in SCRIPTS:
        assert not [sink for sink in SINKS if sink in path.read_text()], path.name


def test_the_package_has_every_file_of_the_page() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    for path in FILES:
        assert any(fnmatch(path.name, pattern) for pattern in patterns), path.name


def colours() -> Iterator[tuple[str, dict[str, str]]]:
    text = (FOLDER / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#\w{6});", light))
    yield "light", found
    yield "dark", found | dict(re.findall(r"--([\w-]+): (#\w{6});", dark))


def contrast(one: str, other: str) -> float:
    """As WCAG has it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "known"), [*colours()])
def test_all_text_stands_out_from_its_ground(scheme: str, known: dict[str, Any]) -> None:
    pairs = [*product(("ink", "quiet"), ("paper", "raised", "sunk"))]
    pairs += [("wrong", "wrong-soft"), ("on-main", "kept"), ("kept", "paper"), ("read", "paper")]
    for text, ground in pairs:
        wanted = 3 if text == "read" else CONTRAST_MIN  # of what is no text
        assert contrast(known[text], known[ground]) >= wanted, (scheme, text, ground)

"""The page in a real browser, without a window: Chromium, and everything by what a person sees."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from flm.server.residence.residence import Residence
from tests.server.house import CARD, House, open_house, serving
from tests.server.test_leaving import until
from tests.server.test_prefix_cache import KEYS, Client, clock

webdriver = pytest.importorskip("selenium.webdriver")

from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt install chromium chromium-driver"),
]
WAIT_S = 20
PHONE = (360, 740)
DESKTOP = (1280, 860)
# A PNG of one black pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK"
DOT += "+kcQAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(DRIVER)) as driver:
        yield driver


class Page:
    """What a person sees and does."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, size: tuple[int, int] = DESKTOP) -> "Page":
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(url)
        return self

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def text(self, selector: str) -> str:
        """Of the first that is seen."""
        return next((each.text for each in self.all(selector) if each.is_displayed()), "")

    def wait(self, condition: Callable[[], Any]) -> None:
        wait = WebDriverWait(self.driver, WAIT_S, 0.05, [StaleElementReferenceException])
        wait.until(lambda driver: condition())

    def shows(self, selector: str, text: str) -> None:
        self.wait(lambda: text in self.text(selector))

    def ready(self) -> "Page":
        self.wait(lambda: self.text("#model") == "tiny:1m" and self.focused == "message")
        return self

    def keys(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def say(self, text: str) -> None:
        """And wait for the end of the reply."""
        before = len(self.all("article"))
        self.keys(text, Keys.ENTER)
        self.wait(lambda: len(self.all('article[aria-busy="false"]')) == before + 1)

    def choose(self, **fields: str) -> None:
        """Settings by the ids of their fields."""
        self.one("#choices summary").click()
        for name, value in fields.items():
            self.one(f"#{name}").clear()
            self.one(f"#{name}").send_keys(value)
        self.one("#choices summary").click()
        self.one("#message").click()

    @property
    def focused(self) -> str:
        return str(self.driver.switch_to.active_element.get_attribute("id"))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)


@pytest.fixture
def browser(chromium: Any) -> Iterator[Page]:
    """Whatever is done with it: nothing breaks the policy, and no script stumbles."""
    chromium.get_log("browser")
    yield Page(chromium)
    told = [entry["message"] for entry in chromium.get_log("browser")]
    assert not [message for message in told if "Failed to load resource" not in message]
    chromium.get("about:blank")


def test_a_chat_is_shown_as_it_is_written_and_its_words_are_no_markup(
    house: House, browser: Page
) -> None:
    house.say("A **bold** word, `code` and <img src=x onerror=alert(1)>.\n\n```python\nx = 1\n```")
    browser.open(house.url).ready().say("Hello.")
    assert browser.text(".asked p") == "Hello."
    assert browser.text(".content strong") == "bold"
    assert browser.text(".content pre") == "x = 1"
    assert "<img src=x onerror=alert(1)>" in browser.text(".content")
    assert not browser.all(".content img")
    assert "tok/s" in browser.text(".foot")
    assert browser.run("return document.getElementById('status').textContent").startswith("Reply:")


def endless(house: House) -> Event:
    """The next reply goes on for as long as nobody sets this."""
    house.say("endless ", end=False)
    stopped, passes = Event(), count()
    house.during_passes(lambda: next(passes) < 20 or stopped.wait(60))
    return stopped


def test_a_reply_is_stopped_and_its_lane_is_free(house: House, browser: Page) -> None:
    stopped = endless(house)
    browser.open(house.url).ready()
    browser.keys("Go on.", Keys.ENTER)
    browser.shows(".content", "endless")
    browser.one("#stop").click()
    browser.shows(".foot", "stopped")
    stopped.set()
    until(lambda: house.resident.thread.idle)
    assert browser.text("#send") == "Send"


def test_what_was_said_goes_along_with_the_next_message(house: House, browser: Page) -> None:
    house.say("First.", "Second.")
    browser.open(house.url).ready().say("one")
    browser.say("two")
    prompt = house.prompt_text()
    assert re.search(r"one.*First\..*two", prompt, re.DOTALL)


def test_a_hit_is_shown_as_it_was_used(house: House, browser: Page) -> None:
    house.say("One.", "Two.")
    browser.open(house.url).ready().choose(system="Be brief, and follow the rules. " * 12)
    browser.say("one")
    browser.shows("#last", "No prompt that was read before is known to begin like this one.")
    browser.say("two")
    browser.wait(lambda: browser.text("#last .legend").endswith("written"))
    kept, length = re.findall(r"\d+", browser.text("#last .headline"))
    assert 0 < int(kept) < int(length) == len(house.requests[-1].prompt.tokens)
    assert f"{kept} of {length} kept" in browser.all(".foot")[-1].text
    shown = Client(house.url).show()
    browser.wait(lambda: len(browser.all("#tree .stretch")) == len(shown["tree"]))
    assert "own" in browser.text("#tree")
    assert "snapshot" in browser.text("#room")
    assert len(browser.all("#first-plot circle")) == 2


def test_a_miss_is_explained_with_what_differs(house: House, browser: Page) -> None:
    browser.open(house.url).ready()
    for minute in (5, 6):
        house.say("Yes.")
        browser.choose(system=clock(minute))
        browser.one("#new-chat").click()
        browser.say("hello")
    browser.shows("#last .why", "time, in messages[0].content")
    assert "Fix: move the time" in browser.text("#last .why")
    earlier, now = browser.all("#last mark")
    assert (earlier.text[:2], now.text[:2]) == ("5:", "6:")


def test_an_eviction_is_told_as_it_happens(tmp_path: Path, browser: Page) -> None:
    with open_house(tmp_path, cache_bytes=2**14) as house, serving(house.residence) as url:
        browser.open(url).ready()
        browser.wait(lambda: browser.text("#room"))
        for turn in range(6):
            Client(url).chat(system=f"{turn} " + "Rules of another house. " * 12)
        browser.shows("#news", "gave up")


def test_an_error_is_shown_with_its_fix_and_can_be_tried_again(house: House, browser: Page) -> None:
    browser.open(house.url).ready().choose(temperature="9")
    browser.say("Hello.")
    assert "temperature is 9" in browser.text(".foot .notice")
    assert "Fix: change temperature" in browser.text(".foot .notice .fix")
    house.say("Better.")
    browser.choose(temperature="1")
    browser.one("article:last-child .foot button").click()
    browser.shows(".content", "Better.")
    assert not browser.all(".foot .notice")


def test_the_key_is_asked_for_and_a_wrong_one_is_told(house: House, browser: Page) -> None:
    house.say("Welcome.")
    with serving(house.residence, KEYS) as url:
        browser.open(url)
        browser.wait(lambda: browser.focused == "key")
        browser.keys("three", Keys.ENTER)
        browser.shows("#key-wrong", "not the server's")
        browser.keys("one", Keys.ENTER)
        browser.ready().say("Hello.")
        assert browser.text(".content") == "Welcome."
        browser.shows("#last", "tokens kept")
        assert browser.run("return localStorage.length") == 0
        browser.one("#change-key").click()
        browser.wait(lambda: browser.focused == "key")


def test_it_waits_for_the_model_and_says_so(tmp_path: Path, browser: Page) -> None:
    residence = Residence()
    with serving(residence) as url, open_house(tmp_path) as house:
        browser.open(url)
        browser.shows("#notice", "The model is loading")
        residence.settle(house.resident)
        browser.ready()
        assert not browser.text("#notice")


def test_a_server_that_comes_back_is_heard_again(house: House, browser: Page) -> None:
    with serving(house.residence) as url:
        browser.open(url).ready()
    browser.shows("#notice", "The server cannot be reached. Fix: see whether")
    with serving(house.residence, port=int(url.rpartition(":")[2])):
        browser.wait(lambda: not browser.text("#notice"))
        client = Client(url)
        browser.wait(lambda: client.chat() >= 0 and "tokens kept" in browser.text("#last"))


def test_all_is_forgotten_once_a_person_says_so(house: House, browser: Page) -> None:
    Client(house.url).chat()
    browser.open(house.url).ready().shows("#tree", "own")
    browser.one("#forget").click()
    browser.driver.switch_to.alert.dismiss()
    assert Client(house.url).show()["tree"]
    browser.one("#forget").click()
    browser.driver.switch_to.alert.accept()
    browser.shows("#tree", "Nothing is kept yet.")
    browser.shows("#news", "forgot")
    assert not Client(house.url).show()["tree"]


def test_all_can_be_done_by_keyboard(house: House, browser: Page) -> None:
    stopped = endless(house)
    browser.open(house.url).ready()
    one_below = webdriver.ActionChains(browser.driver).send_keys("one").key_down(Keys.SHIFT)
    one_below.send_keys(Keys.ENTER).key_up(Keys.SHIFT).send_keys("two", Keys.ENTER).perform()
    browser.shows(".content", "endless")
    browser.keys(Keys.ESCAPE)
    browser.shows(".foot", "stopped")
    stopped.set()
    assert browser.text(".asked p") == "one\ntwo"
    seen = []
    for _ in range(40):
        browser.keys(Keys.TAB)
        seen.append(browser.focused)
    assert {"model", "new-chat", "conversation", "send", "with-text", "forget"} <= set(seen)


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_screen_reader_has_a_name_for_all_that_takes_the_focus(
    house: House, browser: Page, size: tuple[int, int]
) -> None:
    house.say("Yes.\n\n```\ncode\n```")
    browser.open(house.url, size).ready().say("hello")
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = [node["role"]["value"] for node in tree if not node["ignored"]]
    assert {"main", "banner", "log", "status"} <= set(roles)
    for node in tree:
        takes = any(
            p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", ())
        )
        role = node["role"]["value"] if not node["ignored"] else ""
        if takes and role not in ("", "RootWebArea", "generic", "Pre", "code", "none"):
            assert node["name"]["value"], role


def test_thoughts_are_folded(house: House, browser: Page) -> None:
    house.say("<think>deep and long</think>Yes.")
    browser.open(house.url).ready().say("hello")
    assert browser.text(".content") == "Yes."
    assert not browser.one(".thought-text").is_displayed()
    assert browser.text(".thought summary").startswith("Thought for")
    browser.one(".thought summary").click()
    assert browser.text(".thought-text") == "deep and long"


def test_pictures_are_taken_where_the_model_sees(tmp_path: Path, browser: Page) -> None:
    for labels, seen in (((), False), (("vision",), True)):
        folder = tmp_path / str(seen)
        folder.mkdir()
        with open_house(folder) as house:
            residence = Residence()
            card = replace(CARD, labels=labels)
            residence.settle(replace(house.resident, card=card))
            with serving(residence) as url:
                browser.open(url).ready()
                assert browser.one("#attach").is_displayed() == seen


def test_a_pasted_picture_goes_with_the_message(tmp_path: Path, browser: Page) -> None:
    """To a server whose model sees none, whatever its card says: it is told so, with its place."""
    with open_house(tmp_path) as house:
        residence = Residence()
        residence.settle(replace(house.resident, card=replace(CARD, labels=("vision",))))
        with serving(residence) as url:
            browser.open(url).ready()
            browser.run(
                "const data = new DataTransfer();"
                f"const bytes = Uint8Array.from(atob('{DOT}'), (c) => c.charCodeAt(0));"
                "data.items.add(new File([bytes], 'a.png', {type: 'image/png'}));"
                "document.getElementById('message').dispatchEvent("
                "new ClipboardEvent('paste', {clipboardData: data}));"
            )
            browser.wait(lambda: browser.all("#pictures img"))
            browser.say("What is this?")
            assert not browser.all("#pictures img")
            assert browser.one(".asked img")
            assert "messages[0].content[0] is an image" in browser.text(".foot .notice")


def test_many_tabs_leave_a_connection_for_each_other(house: House, browser: Page) -> None:
    """A browser opens six to a server; what is out of sight lets go of its own."""
    first = browser.driver.current_window_handle
    for number in range(8):
        browser.driver.switch_to.new_window("tab")
        house.say(f"{number}.")
        browser.open(house.url).ready().say("hello")
        assert browser.text(".content") == f"{number}."
    for handle in browser.driver.window_handles:
        if handle != first:
            browser.driver.switch_to.window(handle)
            browser.driver.close()
    browser.driver.switch_to.window(first)


@pytest.mark.parametrize("shown", ["chat", "kept"])
def test_a_phone_has_all_of_it_in_its_width(house: House, browser: Page, shown: str) -> None:
    house.say("word " * 40 + "`" + "x" * 200 + "`")
    browser.open(house.url, PHONE).ready().say("hello")
    browser.one(f"#show-{shown}").click()
    assert browser.one("main").is_displayed() == (shown == "chat")
    assert browser.one("aside").is_displayed() == (shown == "kept")
    width = "return document.documentElement.scrollWidth"
    assert browser.run(width) <= PHONE[0]
    for box in ("header", "main" if shown == "chat" else "aside"):
        assert browser.run(f"return document.querySelector('{box}').scrollWidth") <= PHONE[0]


def test_the_policy_holds_in_a_browser(house: House, browser: Page) -> None:
    """Markup from text and scripts from elsewhere do nothing here, and that would be told."""
    browser.open(house.url).ready()
    with pytest.raises(Exception, match="TrustedHTML"):
        browser.run("document.body.innerHTML = '<p>x</p>'")
    browser.run("const picture = new Image(); picture.src = 'https://example.invalid/x.png'")
    browser.wait(lambda: "Content Security Policy" in str(browser.driver.get_log("browser")))

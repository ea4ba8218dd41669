"""A headless Chromium in which tests open the dashboard.

def test_it(browser): browser.open(f"{api.url}/dashboard")

One process serves all tests of a run's worker; each test gets it without cookies.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.support.eventually import MAX_WAIT

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)
WIDE, MIDDLE, NARROW = (1280, 900), (780, 900), (390, 844)


class Browser:
    """What a test does with a page. Not asynchronous: call it by `asyncio.to_thread`."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        """Wait for the first element of that CSS selector, and return it."""
        return self._wait(lambda driver: driver.find_element(By.CSS_SELECTOR, selector), selector)

    def click(self, selector: str) -> None:
        """Click on an element, and repeat that if the page was replaced meanwhile."""

        def click(driver: Chrome) -> bool:
            driver.find_element(By.CSS_SELECTOR, selector).click()
            return True

        self._wait(click, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        return self.find(selector).text

    def await_text(self, text: str, selector: str = "body") -> None:
        """Wait until the element shows the text."""

        def visible_text(driver: Chrome) -> str:
            if (
                selector == "body"
            ):  # an element's `text` visits all elements below: seconds for a page
                return str(driver.execute_script("return document.body.innerText"))
            return driver.find_element(By.CSS_SELECTOR, selector).text

        self._wait(lambda driver: text in visible_text(driver), f"{text!r} in {selector}")

    def await_address(self, part: str) -> None:
        self._wait(lambda driver: part in driver.current_url, f"the address {part}")

    def press(self, *keys: str) -> None:
        """Type into whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def resize(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def prefer(self, scheme: str) -> None:
        """Set the preferred colours to `light` or `dark`, without animations of the change."""
        media_features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media_features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, path: Path) -> None:
        """Keep a picture of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        self.resize(width, max(height, 600))
        path.write_bytes(self.driver.get_screenshot_as_png())

    def complaints(self) -> list[str]:
        """Return the messages of the browser's console since the last call: errors of scripts, of
        policies and of missing files."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that is not on the page."""
        self._wait(lambda _: condition(), what)

    def _wait(self, condition: Any, what: str) -> Any:
        waiting = WebDriverWait(
            self.driver, MAX_WAIT, poll_frequency=0.05, ignored_exceptions=(Exception,)
        )
        return waiting.until(condition, f"{what} did not come; the page is: {self._page()}")

    def _page(self) -> str:
        return f"{self.driver.current_url}"


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Start one. Raises FileNotFoundError without a Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise FileNotFoundError("needs Chromium: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


def clear(browser: Browser) -> Browser:
    """Return the browser without what the test before has left in it."""
    browser.open("about:blank")
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.resize(*WIDE)
    browser.prefer("light")
    browser.complaints()
    return browser

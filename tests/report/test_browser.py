"""A report as a reader has it: in headless Chromium it opens, sorts, filters, points, and says no error.

Needs Debian's packages chromium and chromium-driver; without them these tests are skipped, in CI they fail.
"""

import json
import shutil
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from experiments.command_line.launch import launch
from interp.report.contents import read_runs
from interp.report.page import Section, ShownPrompt, Viewer, page
from interp.results import tables
from tests.needs import unavailable
from tests.report.test_report import HOSTILE, ODD, row_of, run_of, view_of, viewer_of

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Iterator[WebDriver]:
    """One browser for all tests."""
    browser, server = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if browser is None or server is None:
        unavailable("needs Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(server))
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, tmp_path):
    """Opens a page; at the end there must be nothing in the console, and nothing asked of a network."""

    def open_page(text: str) -> WebDriver:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        driver.get("about:blank")
        for log in ("browser", "performance"):
            driver.get_log(log)
        driver.get(path.as_uri())
        return driver

    yield open_page
    assert driver.get_log("browser") == []
    asked = {address.partition(":")[0] for address in requests(driver)}
    assert "file" in asked and asked <= {"file", "data"}


def requests(driver: WebDriver) -> list[str]:
    """The addresses that were asked for since the log was read last."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def all_of(inside: WebDriver | WebElement, selector: str) -> list[WebElement]:
    return inside.find_elements(By.CSS_SELECTOR, selector)


def one_of(inside: WebDriver | WebElement, selector: str) -> WebElement:
    return inside.find_element(By.CSS_SELECTOR, selector)


def point_at(driver: WebDriver, element: WebElement) -> None:
    ActionChains(driver).move_to_element(element).perform()


def column(driver: WebDriver, name: str) -> list[str]:
    """The text of one column of the first table."""
    script = (
        "const table = document.querySelector('.grid table');"
        "const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);"
        "const place = names.indexOf(arguments[0]);"
        "return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent)"
    )
    return driver.execute_script(script, name)


def sections_of(folder, table) -> list[Section]:
    return [Section(one, "") for one in read_runs(run_of(folder, table))]


@pytest.fixture
def verdicts(tmp_path):
    """A page with a table whose numbers sort otherwise as text, and are undefined in one place."""
    values = [10.0, 9.5, np.nan, -1.0, np.inf, 0.00001]
    table = pd.DataFrame(
        {
            "table": "t.csv",
            "column": [f"column {n}" for n in (10, 9, 2, 1, 3, 4)],
            "verdict": ["different", "identical"] * 3,
            "largest_difference": values,
            "n_different": [*range(5), 50_000],
            "n_rows": 20_000,
        }
    )
    return page(sections_of(tmp_path / "run", tables.VERDICTS.validate(table)), "", 100)


# ------------------------------------------------------------------------------ tables


WRITTEN = ["10.00", "9.50", "\u2013", "\u22121.00", "\u221e", "1.0e\u22125"]
RISING = ["\u22121.00", "1.0e\u22125", "9.50", "10.00", "\u221e", "\u2013"]


def test_a_header_sorts_numbers_as_numbers_and_undefined_last(verdicts, opened):
    driver = opened(verdicts)
    assert column(driver, "largest_difference") == WRITTEN
    header = all_of(driver, ".grid th")[2]
    button = one_of(header, "button")
    for direction, expected in (
        ("ascending", RISING),
        ("descending", [*RISING[-2::-1], RISING[-1]]),
        ("none", WRITTEN),
    ):
        button.click()
        assert column(driver, "largest_difference") == expected
        assert header.get_attribute("aria-sort") == direction
    all_of(driver, ".grid th button")[0].click()
    assert column(driver, "column") == [f"column {n}" for n in (1, 2, 3, 4, 9, 10)]
    sorted_by = [th.get_attribute("aria-sort") for th in all_of(driver, ".grid th")]
    assert sorted_by == ["ascending", "none", "none", "none"]


def test_a_header_is_reached_by_keyboard(verdicts, opened):
    driver = opened(verdicts)
    one_of(driver, ".grid input").click()
    for _ in range(10):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        if driver.switch_to.active_element.text == "largest_difference":
            break
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert column(driver, "largest_difference") == RISING
    assert driver.switch_to.active_element.text == "largest_difference"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("IDENT", ["9.50", "\u22121.00", "1.0e\u22125"]),
        ("largest_difference>0", ["10.00", "9.50", "\u221e", "1.0e\u22125"]),
        ("largest_difference<=9.5 identical", ["9.50", "\u22121.00", "1.0e\u22125"]),
        ("largest_difference=9.5", ["9.50"]),
        ("n_different>=4", ["\u221e", "1.0e\u22125"]),
        ("verdict=different n_different<2", ["10.00"]),
        ("nowhere>3", []),
        ("largest_difference>much", []),
    ],
)
def test_a_filter_leaves_rows_with_its_words(words, expected, verdicts, opened):
    driver = opened(verdicts)
    one_of(driver, ".grid input").send_keys(words)
    assert column(driver, "largest_difference") == expected
    said = one_of(driver, ".grid [role=status]").text
    assert said == f"{len(expected)} of {len(expected)} rows, filtered from 6"


def test_a_cell_says_its_full_value(verdicts, opened):
    driver = opened(verdicts)
    cells = all_of(driver, ".grid td:nth-child(3)")
    assert [cell.get_attribute("title") for cell in cells] == [
        "10",
        "9.5",
        "undefined",
        "-1",
        "Infinity",
        "0.00001",
    ]
    assert column(driver, "n_different") == ["0", "1", "2", "3", "4", "50,000"]
    assert one_of(driver, ".same").text == "The same in every row: table t.csv, n_rows 20000"


def test_of_many_rows_the_first_are_drawn(tmp_path, opened):
    sections = sections_of(tmp_path / "run", row_of([str(n) for n in range(700)]))
    driver = opened(page(sections, "", 600))
    status, more = one_of(driver, ".grid [role=status]"), one_of(driver, ".grid .more")
    assert len(column(driver, "key_token")) == 200
    part = "; the file has 700, of which this page holds the first 600"
    assert status.text == "200 of 600 rows" + part
    more.click()
    assert column(driver, "key_token") == [str(n) for n in range(600)]
    assert status.text == "600 of 600 rows" + part and not more.is_displayed()


# ------------------------------------------------------------------------------ the viewer


@pytest.fixture(scope="module")
def row_run(tmp_path_factory):
    """A run of read_attention, and a report of it."""
    folder = tmp_path_factory.mktemp("row")
    prompt = "prompt=Ann had a coin. Ben had a cup. Ann gave the"
    arguments = [prompt, "layer=1", "head=3", "query=-2", "threads=1", f"out={folder / 'run'}"]
    assert launch("read_attention", arguments) == 0
    out = ["--to", str(folder / "page.html"), "threads=1", "heads=[1.3,2.1]"]
    assert launch("report", [str(folder / "run"), *out]) == 0
    table = tables.read(folder / "run" / "table.csv")
    return (folder / "page.html").read_text(encoding="utf-8"), table


def numbers(driver: WebDriver) -> list[list[str]]:
    """The viewer's small table: position, token, weight, value-weighted."""
    script = "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.cells].map("
    return driver.execute_script(script + "(cell) => cell.textContent))", ".numbers tbody tr")


def test_pointing_at_a_token_shows_the_weights_of_the_table(row_run, opened):
    text, table = row_run
    driver = opened(text)
    query = int(table["query"].iloc[0])
    for panel in ("weight", "fetched"):
        point_at(driver, all_of(driver, f".tokens.{panel} .token")[0])
        assert "token 0 " in one_of(driver, ".said").text
        point_at(driver, all_of(driver, f".tokens.{panel} .token")[query])
        shown = numbers(driver)
        assert len(shown) == min(12, len(table))
        for (key, token, weight, _), row in zip(shown, table.itertuples(), strict=False):
            assert (int(key), token) == (row.key, row.key_token.replace(" ", "·"))
            assert float(weight.replace("\u2212", "-")) == pytest.approx(row.weight, abs=5e-5)
    full = one_of(driver, ".numbers td:nth-child(3)").get_attribute("title")
    assert float(full) == pytest.approx(table.weight.iloc[0], abs=1e-6)
    shades = driver.execute_script(
        "return [...document.querySelectorAll('.weight .token')]"
        ".map((token) => token.style.getPropertyValue('--share'))"
    )
    expected = table.set_index("key").weight / table.weight.max() * 100
    for key, shade in enumerate(shades):
        assert float(shade.removesuffix("%")) == pytest.approx(expected.get(key, 0), abs=0.051)
    classes = [token.get_attribute("class") for token in all_of(driver, ".weight .token")]
    assert "query" in classes[query] and "later" in classes[query + 1]


def test_another_head_shows_its_own(row_run, opened):
    driver = opened(row_run[0])
    before = numbers(driver)
    select = all_of(driver, ".viewer select")[1]
    select.send_keys("2.1")
    after = numbers(driver)
    assert before != after and "token" in one_of(driver, ".said").text


def test_tokens_are_reached_by_keyboard_and_held(row_run, opened):
    driver = opened(row_run[0])
    tokens = all_of(driver, ".tokens.weight .token")
    last = len(tokens) - 1
    assert [token.get_attribute("tabindex") for token in tokens] == ["-1"] * last + ["0"]
    driver.execute_script("arguments[0].focus()", tokens[last])
    said = one_of(driver, ".said")
    for key, where in (
        (Keys.ARROW_LEFT, last - 1),
        (Keys.HOME, 0),
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_UP, 0),
        (Keys.END, last),
    ):
        ActionChains(driver).send_keys(key).perform()
        assert said.text.startswith(f"token {where} ")
        assert driver.switch_to.active_element == tokens[where]
    ActionChains(driver).send_keys(Keys.ARROW_LEFT, Keys.ENTER).perform()
    point_at(driver, tokens[2])
    assert said.text.startswith(f"token {last - 1} ")  # held
    tokens[last - 1].click()
    point_at(driver, tokens[3])
    assert said.text.startswith("token 3 ")


def test_what_a_token_says_is_shown_and_not_obeyed(tmp_path, opened):
    (run,) = read_runs(run_of(tmp_path / "odd", row_of(ODD)))
    driver = opened(page([Section(run, HOSTILE, viewer_of(ODD))], "", 100))
    shown = [token.text for token in all_of(driver, ".tokens.weight .token")]
    assert shown[:4] == [HOSTILE, "<!--", "&amp;", "<U+2028>"]
    assert shown[4:8] == ["\u23ce", "·", "\u2205", "NA"] and shown[8] == "<U+202E>"
    assert column(driver, "key_token")[:2] == [HOSTILE.replace(" ", "·"), "<!--"]
    assert len(driver.find_elements(By.TAG_NAME, "script")) == 3
    assert "special" in all_of(driver, ".token")[0].get_attribute("class")


def test_what_is_undefined_or_left_out_is_said(tmp_path, opened):
    view = view_of(3)
    tokens = ShownPrompt("short", ("a", "b", "c"), ())
    left_out = {"starts": np.array([0, 1, 2, 3]), "keys": np.array([0, 1, 2])}
    changed = left_out | {
        "weights": np.array([1, 0.5, 0.25], np.float32),
        "others": np.array([0, 0.5, 0.625]),
        "others_fetched": np.full(3, np.nan),
        "lengths": np.full(3, np.nan, np.float32),
        "learned_sink": np.array([0, 0, 0.125]),
        "undefined_reason": "no values",
    }
    view = type(view)(**(vars(view) | changed))

    (run,) = read_runs(run_of(tmp_path / "run", row_of(["a"])))
    driver = opened(page([Section(run, "", Viewer([tokens], ["1.2"], [[view]], 1, []))], "", 10))
    assert numbers(driver) == [["2", "c", "0.2500", "\u2013"]]
    assert one_of(driver, ".rest").text == (
        "others, added up: 0.6250, value-weighted undefined; learned sink: 0.1250"
    )
    assert "undefined: no values" in all_of(driver, ".panel h4")[1].text


# ------------------------------------------------------------------------------ the page


@pytest.mark.parametrize("width", [360, 800, 1200])
def test_nothing_sticks_out(width, row_run, opened):
    hold_within(opened(row_run[0]), width)


def hold_within(driver, width):
    """Everything on the page fits into a window of that width."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wide, inner = driver.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= inner == width


def test_the_policy_lets_nothing_in(row_run, driver, tmp_path):
    """Nothing on the page tries; this test does, and the browser refuses."""
    path = tmp_path / "page.html"
    path.write_text(row_run[0], encoding="utf-8")
    driver.get(path.as_uri())
    driver.get_log("browser")
    fetched = driver.execute_async_script(
        "const done = arguments[0];"
        "fetch('http://127.0.0.1:9/x').then(() => done('yes'), () => done('no'))"
    )
    assert fetched == "no"
    driver.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.obeyed = 1\">');"
        "const script = document.createElement('script');"
        "script.textContent = 'window.obeyed = 1'; document.body.append(script)"
    )
    assert driver.execute_script("return window.obeyed") is None
    said = " ".join(entry["message"] for entry in driver.get_log("browser"))
    assert said.count("Content Security Policy") >= 3

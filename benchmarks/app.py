"""How long `anchorscope app` takes to answer a click on a token, in a real browser.

python benchmarks/app.py                     # runs/demo, made by `make demo`
python benchmarks/app.py runs/other --model M

Serves the page, asks a question in headless Chromium, and cuts and keeps tokens one at a time. Of
the clicks it prints the median and the longest time in seconds until the new panel was there. Exit
code 1 where the median is above 1.5 s. Needs gradio, playwright and chromium; other work on the
machine counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import threading
import time

from playwright.sync_api import Page, sync_playwright

from anchorscope.app.desk import Desk
from anchorscope.app.serve import address_of, bind, guarded, server
from anchorscope.models import load_model
from anchorscope.run_folder.view import RunView

LIMIT, CLICKS = 1.5, 15
QUESTION = "What is the capital of France?"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", default="runs/demo")
    parser.add_argument("--model")
    given = parser.parse_args()
    run = RunView.open(given.run)
    model = load_model(given.model or str(run.model["source"]), dtype=str(run.model["dtype"]))
    desk = Desk(model, run)
    begun = time.monotonic()
    desk.warm()
    print(f"{model.name}, {run.path}: ready in {time.monotonic() - begun:.1f} s")
    load = os.getloadavg()[0]
    clicks = measure(desk)
    median = statistics.median(clicks)
    print(
        f"{CLICKS} clicks until painted: median {median:.2f} s (at most {LIMIT}), longest "
        f"{max(clicks):.2f} s; load of the machine {load:.1f}"
    )
    return int(median > LIMIT)


def measure(desk: Desk) -> list[float]:
    """Seconds of each click, in a browser."""
    listening = bind("127.0.0.1", 0)
    host, port = listening.getsockname()
    running = server(guarded(desk, host=host, port=port))
    threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not running.started:
        time.sleep(0.05)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 1000})
        tab.goto(address_of(listening))
        tab.locator("#question textarea").fill(QUESTION)
        begun = time.monotonic()
        tab.locator("#ask").click()
        tab.locator("#first svg.beliefs").wait_for(timeout=120_000)
        print(f"asked and taken apart in {time.monotonic() - begun:.2f} s")
        times = [click(tab, number) for number in range(CLICKS)]
        browser.close()
    running.should_exit = True
    return times


def click(tab: Page, number: int) -> float:
    """Seconds from a click on a token to the panel that the server sent for it."""
    token = tab.locator("#first button.token").nth(number % 6 + 1)
    wanted = "false" if token.get_attribute("aria-pressed") == "true" else "true"
    name = token.get_attribute("data-token")
    begun = time.monotonic()
    token.click()
    tab.wait_for_function(
        f"document.querySelector('#first [data-token=\"{name}\"]')?.ariaPressed === '{wanted}'",
        timeout=120_000,
        polling=20,
    )
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())

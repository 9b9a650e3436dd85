"""A made-up run folder, and a headless Chromium, where this machine has one."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import yaml

import saki.rollout as rollout_files
from tests.analysis.trace import made_rollouts as made

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

HOSTILE = """</script></style></title><img src=x onerror="alert(1)"> & $x$ 'quoted'"""


def metric_rows(num_steps: int = 60) -> list[dict]:
    rows = []
    for step in range(1, num_steps + 1):
        radius = 0.02 * max(0.0, 1 - (step - 1) / 50)
        bound = math.sqrt(radius / 2)
        rows.append(
            {
                "step": step,
                "rollout/correction_rate": bound * (0.2 + 0.05 * math.sin(step)),
                "rollout/mean_tv": 0.2 * bound,
                "rollout/pinsker_bound": bound,
                "rollout/trust_region_radius": radius,
                "loss/reverse_kl": 1 / step,
                "loss/teacher_mode": radius,
                "rollout/kl_to_teacher": 1 / step,
                "rollout/mean_length": 30.0 + step % 3,
                "rollout/truncated_share": 0.01 * (step % 4),
                "train/logprob_gap_mean": 1e-6,
                "train/logprob_gap_max": 1e-5 + 1e-6 * (step % 3),
                "time/tokens_per_s": 3000.0 + step,
                "time/rollout_s": 0.5,
                "time/score_s": 0.1,
                "time/update_s": 0.3,
                "time/sync_s": 0.1,
            }
        )
    return rows


def evaluation_json(share: float, names: tuple[str, ...] = ("sum_3", "gcd")) -> dict:
    ci = {"mean_at_k": [share - 0.05, share + 0.05], "pass_at_k": [share - 0.04, share + 0.06]}
    values = {"mean_at_k": share, "pass_at_k": share, "ci95": ci, "k": 8}
    entry = {**values, "num_problems": 10, "num_samples": 8, "truncated": 0.25, "timeouts": 0, "num_tokens": 9}
    return {
        "benchmarks": {name: dict(entry) for name in names},
        "average": {**values, "num_benchmarks": len(names)},
        "seconds": 1.0,
        "tokens_per_s": 9.0,
    }


def write_rollouts(path: Path, corrections: list[list[int]]) -> None:
    """One row a list: four tokens 20 to 23, 1 where corrected, with 30 as the rejected proposal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rejected = {(row, t): 30 for row, flags in enumerate(corrections) for t, flag in enumerate(flags) if flag}
    rollout_files.write_rollouts(path, made.batch_of([[20, 21, 22, 23]] * len(corrections), corrections=rejected))


@pytest.fixture
def rows() -> list[dict]:
    return metric_rows()


@pytest.fixture
def hostile() -> str:
    return HOSTILE


@pytest.fixture
def make_evaluation():
    return evaluation_json


@pytest.fixture
def make_rollouts():
    return write_rollouts


@pytest.fixture
def run_dir(tmp_path: Path, rows: list[dict]) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "method": "saki",
        "commit": "0a1b2c3",
        "versions": {"torch": "2.13.0"},
        "training": {"model": HOSTILE, "teacher_model": "lab:teacher", "learning_rate": 3e-4, "hub_token": "hf_abc"},
    }
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(config))
    names = ("sum_3", HOSTILE)
    results = {"before": evaluation_json(0.1, names), "after": evaluation_json(0.3, names), "teacher": None}
    (folder / "evaluation.json").write_text(json.dumps(results))
    write_rollouts(folder / "rollouts" / "step-000001.parquet", [[0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]])
    return folder


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'saki[dev-browser]'")
    with playwright.sync_playwright() as driver:
        path = next(filter(None, map(shutil.which, NAMES)), None) or driver.chromium.executable_path
        if not Path(path).is_file():
            pytest.skip(f"needs a Chromium: none of {', '.join(NAMES)} is installed")
        chromium = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens a page file and waits until it is ready; fails on console messages, errors and requests."""
    contexts, complaints = [], []

    def open_it(path: Path, fragment: str = "", ready: str = "body[data-ready]", **options):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request", lambda request: None if request.url.startswith(path.as_uri()) else complaints.append(request.url)
        )
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector(ready)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints

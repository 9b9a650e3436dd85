"""What commands show, and the folders that they may fill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from saki.cli.console import fresh_folder, page_target, progress_bar


def test_a_bar_shows_rate_and_time_left(capfd):
    with progress_bar("evaluate", "samples") as progress:
        progress(3, 6)
        progress(6, 6)
    shown = capfd.readouterr().err
    assert "evaluate: 100%" in shown
    assert "6/6" in shown
    assert "samples/s" in shown
    assert "<00:00" in shown  # elapsed<left


def test_a_folder_is_tried_and_left_as_it_was(tmp_path):
    folder = tmp_path / "a" / "b"
    assert fresh_folder(str(folder), "the test") == folder
    assert not (tmp_path / "a").exists()
    folder.mkdir(parents=True)
    assert fresh_folder(str(folder), "the test") == folder
    assert list(folder.iterdir()) == []
    (folder / "x").touch()
    with pytest.raises(ValueError, match="is not empty; give the test another --out"):
        fresh_folder(str(folder), "the test")


def test_a_page_is_tried_and_left_as_it_was(tmp_path):
    page = tmp_path / "a" / "page.html"
    assert page_target(page) == page
    assert list(tmp_path.iterdir()) == []
    page.parent.mkdir()
    page.write_text("old")
    assert page_target(page).read_text() == "old"
    for path, message in (
        (page.parent, "it is a folder; give the name of a page"),
        (page / "b.html", "is a file; give another folder"),
        (Path("/dev/null"), "it is no plain file; give the name of a page"),
        (Path("/proc/x.html"), "cannot write to /proc"),
    ):
        with pytest.raises(ValueError, match=message):
            page_target(path)
    assert page.read_text() == "old"


def test_ranks_that_try_a_folder_at_the_same_time_do_not_disturb_each_other(tmp_path):
    folder = tmp_path / "runs" / "new"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: fresh_folder(str(folder), "the test"), range(400)))
    assert found == [folder] * 400
    assert list(tmp_path.iterdir()) == []

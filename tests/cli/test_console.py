"""What commands show, and the folders that they may fill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from saki.cli.console import fresh_folder, progress_bar


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


def test_ranks_that_try_a_folder_at_the_same_time_do_not_disturb_each_other(tmp_path):
    folder = tmp_path / "runs" / "new"
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: fresh_folder(str(folder), "the test"), range(400)))
    assert found == [folder] * 400
    assert list(tmp_path.iterdir()) == []

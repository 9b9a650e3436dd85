"""Engines for commands: how much memory they take for granted."""

from __future__ import annotations

import os

from saki.cli.engines import available_memory


def test_what_the_system_has_cached_counts_as_free(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       64 kB\nMemFree:        1 kB\nMemAvailable:       48 kB\n")
    assert available_memory(meminfo) == 48 * 1024


def test_a_system_that_does_not_say_is_taken_whole(tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(tmp_path / "absent") == whole
    (tmp_path / "other").write_text("MemTotal: 64 kB\n")
    assert available_memory(tmp_path / "other") == whole

"""Options of the whole suite."""

from __future__ import annotations

import zlib


def pytest_addoption(parser):
    parser.addoption(
        "--share",
        default=None,
        metavar="K/N",
        help="run only the K-th of N shares of the chosen tests; shares are fixed by the tests' names",
    )


def pytest_collection_modifyitems(config, items):
    share = config.getoption("--share")
    if share is None:
        return
    number, _, count = share.partition("/")
    wanted = int(number) % int(count)
    kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % int(count) == wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept

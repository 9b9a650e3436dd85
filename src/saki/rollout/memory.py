"""Out of memory: which errors say so, and how work goes on with half the rows."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device or the host has no memory left; libraries raise it in several ways."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def with_half_until_it_fits(
    what: str, rows: int, attempt: Callable[[int], _T], on_halving: Callable[[int], None]
) -> _T:
    """Do something for at most ``rows`` rows at once, and from the beginning with half of them if memory runs out.

    Args:
        what: What is done, for the log.
        rows: Rows at once in the first attempt.
        attempt: Does it with so many rows at once; nothing of a failed attempt may stay behind.
        on_halving: Hears how many rows at once the next attempt has.

    Returns:
        What ``attempt`` returned.

    Raises:
        RuntimeError: What ``attempt`` raised, if it is another error or even one row does not fit.
    """
    while True:
        try:
            return attempt(rows)
        except (RuntimeError, MemoryError) as error:
            if rows <= 1 or not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # The error is gone here, and with it the frames that held the attempt's tensors.
        rows //= 2
        logger.warning(
            "%s ran out of memory (%s); going on with at most %d rows at once from now on: set the rows of a batch to "
            "that, as results are the same to the bit only for one number of rows",
            what,
            reason,
            rows,
        )
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        on_halving(rows)

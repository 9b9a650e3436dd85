"""The day that a chat template takes for today."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

NAME = "strftime_now"
"""The function with which chat templates ask for today's date."""

_CALL = re.compile(rf"""{NAME}\(\s*(?:'([^']*)'|"([^"]*)")\s*\)""")


def parse_date(day: Any) -> datetime:
    """The day that a template is to take for today.

    Args:
        day: Such as ``"2026-12-31"``; a date of YAML is one, too.

    Raises:
        ValueError: If it is none.
    """
    try:
        return datetime.fromisoformat(str(day))
    except ValueError:
        raise ValueError(f"{NAME} of chat_template_kwargs is {day!r}, expected a date such as '2026-12-31'") from None


def fix_date(template: str, day: datetime) -> str:
    """A chat template with the dates of another day in place of today's.

    Raises:
        ValueError: If the template asks for the date in a way that is not understood.
    """
    fixed = _CALL.sub(lambda call: json.dumps(day.strftime(call[1] or call[2])), template)
    if f"{NAME}(" in fixed:
        raise ValueError(f"the chat template calls {NAME} with more than a plain form; write the date into it yourself")
    return fixed


def note_date(template: str, variables: Mapping[str, Any]) -> None:
    """Warn, once, if prompts depend on the day.

    Args:
        template: The chat template.
        variables: Its variables; many templates take a ``date_string`` instead of asking.
    """
    if NAME in template and "date_string" not in variables:
        _warn()


@cache
def _warn() -> None:
    logger.warning(
        "the chat template writes today's date into prompts: tomorrow they are others, and a run cannot be resumed "
        'then; fix the day with chat_template_kwargs {"%s": "%s"}',
        NAME,
        datetime.now().date().isoformat(),
    )

"""The trace page: what a guided rollout did at each token, in one HTML file."""

from saki.analysis.rollout_files import rollout_files
from saki.analysis.trace.data import Drawn, Judge, Trace, read_trace
from saki.analysis.trace.page import TRACE_PAGE, trace_link, write_trace
from saki.analysis.trace.sources import MAX_TOKENS, choose_files
from saki.analysis.trace.vocabulary import TokenText, TokenTexts

__all__ = [
    "MAX_TOKENS",
    "TRACE_PAGE",
    "Drawn",
    "Judge",
    "TokenText",
    "TokenTexts",
    "Trace",
    "choose_files",
    "read_trace",
    "rollout_files",
    "trace_link",
    "write_trace",
]

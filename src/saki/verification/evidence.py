"""Anytime-valid evidence against a law: e-values that may be looked at after every token.

Each process here is a non-negative martingale that starts at 1 if the law is right. By Ville's inequality it ever
reaches 1 / alpha with probability at most alpha, whenever one looks and however many samples one takes. A mean of such
processes is one again.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NUM_BINS = 40
RESOLUTIONS = (2, 4, 8, 20, 40)
"""Histograms that are bet on, in bins; each divides :data:`NUM_BINS`. Coarse ones see small shifts early."""

PRIOR = 0.5
"""Jeffreys' prior of the Dirichlet mixture, pseudo-counts per bin."""

TILTS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Sizes of the changes in log-odds that an event process bets on, upwards and downwards."""


class UniformEvidence:
    """Evidence that numbers claimed to be independent uniforms on (0, 1) are not.

    For each B of :data:`RESOLUTIONS` all histograms of B bins at once are bet on, mixed by a Dirichlet prior,
    E_B = B^n Gamma(B a) / Gamma(n + B a) * prod_b Gamma(n_b + a) / Gamma(a), and E is the mean of them.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(NUM_BINS, dtype=torch.long)

    def add(self, values: Tensor) -> None:
        """Add [N] float64 values in [0, 1]."""
        bins = (values * NUM_BINS).long().clamp(0, NUM_BINS - 1)
        self.counts += torch.bincount(bins, minlength=NUM_BINS)

    @property
    def num(self) -> int:
        """Values seen."""
        return int(self.counts.sum())

    @property
    def log_e(self) -> float:
        """log E, 0 at the beginning."""
        return mean_log_e([self._log_e_of(self.counts.view(bins, -1).sum(dim=1).tolist()) for bins in RESOLUTIONS])

    def _log_e_of(self, counts: list[int]) -> float:
        bins, num = len(counts), sum(counts)
        mixed = sum(math.lgamma(count + PRIOR) - math.lgamma(PRIOR) for count in counts)
        return num * math.log(bins) + math.lgamma(bins * PRIOR) - math.lgamma(num + bins * PRIOR) + mixed


class EventEvidence:
    """Evidence that events do not come with their claimed probabilities, each with its own.

    E = mean over tilts l of prod_i e^{l C_i} / (1 + pi_i (e^l - 1)), for changes of the log-odds up and down. An event
    of probability 0 that happens, or one of probability 1 that does not, makes E infinite.

    Args:
        slack: How far a claimed probability may be off in either direction, for example by rounding; the bets take
            the worst case.
    """

    def __init__(self, slack: float = 0.0) -> None:
        self.slack = slack
        self.num = self.num_events = 0
        self.expected = 0.0
        self._tilts = torch.tensor([sign * size for size in TILTS for sign in (1, -1)], dtype=torch.float64)
        self._log_e = torch.zeros_like(self._tilts)

    def add(self, events: Tensor, probabilities: Tensor) -> None:
        """Add [N] bool events and their [N] float64 probabilities."""
        probabilities = probabilities.double()
        tilts = self._tilts.unsqueeze(1)
        # A bet on more events is charged for the largest probability, one on fewer for the smallest.
        high, low = (probabilities + self.slack).clamp(max=1.0), (probabilities - self.slack).clamp(min=0.0)
        charged = torch.where(tilts > 0, high, low)
        gain = tilts * events.double() - torch.log1p(charged * torch.expm1(tilts))
        self._log_e += gain.sum(dim=1)
        impossible = (events & (high <= 0)) | (~events & (low >= 1))
        if bool(impossible.any()):
            self._log_e += torch.inf
        self.num += events.numel()
        self.num_events += int(events.sum())
        self.expected += float(probabilities.sum())

    @property
    def log_e(self) -> float:
        """log E, 0 at the beginning."""
        return float(torch.logsumexp(self._log_e, dim=0)) - math.log(len(self._tilts))


def mean_log_e(log_es: list[float]) -> float:
    """log of the mean of e-values."""
    return float(torch.logsumexp(torch.tensor(log_es, dtype=torch.float64), dim=0)) - math.log(len(log_es))

"""Checks that an engine samples exactly what it claims, on a user's own models."""

from saki.verification.certificate import Certificate
from saki.verification.subject import Check, Settings
from saki.verification.verify import verify_pair

__all__ = ["Certificate", "Check", "Settings", "verify_pair"]

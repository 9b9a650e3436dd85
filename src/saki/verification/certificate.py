"""What a verification found, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from saki.verification.subject import Check, Settings

NOT_CHECKED = (
    "completions longer than those sampled here",
    "dtypes, devices and attention kernels other than those named above",
    "the trainer's losses and gradients (`make test`, `make slow`)",
    "whether the student learns, and anything about the quality of text",
)


@dataclass(frozen=True)
class Certificate:
    """Outcome of :func:`saki.verification.verify_pair`.

    Attributes:
        checks: Every check, in the order they ran.
        settings: How much was verified.
        facts: Models, versions, device, dtypes, commit.
        seconds: Wall seconds.
    """

    checks: tuple[Check, ...]
    settings: Settings
    facts: dict[str, Any]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check held."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; infinite figures become strings."""
        return _finite(
            {
                "verdict": "pass" if self.passed else "fail",
                "alpha": self.settings.alpha,
                "checks": [asdict(check) for check in self.checks],
                "settings": asdict(self.settings),
                "not_checked": list(NOT_CHECKED),
                "seconds": self.seconds,
                **self.facts,
            }
        )

    def to_markdown(self) -> str:
        """A page to keep beside results."""
        lines = [
            f"# saki verify: {'pass' if self.passed else 'FAIL'}",
            "",
            *(f"- {name}: {_plain(value)}" for name, value in self.facts.items()),
            f"- radii {self.settings.trust_region_radius:g} and {self.settings.trust_region_radius / 4:g} nats, "
            f"K = {self.settings.block_size}, seed {self.settings.seed}; {self.seconds:.0f} s",
            "",
            "| check | verdict | what was seen |",
            "| --- | --- | --- |",
            *(f"| {c.name} | {'pass' if c.passed else 'FAIL'} | {c.detail.replace('|', '/')} |" for c in self.checks),
            "",
            f"A correct engine fails the test of the one-step law with probability at most {self.settings.alpha:g}, "
            "however many tokens are drawn and whenever one looks. The other checks compare numbers with the limits "
            "they name.",
            "",
            "Not checked:",
            "",
            *(f"- {text}" for text in NOT_CHECKED),
            "",
        ]
        return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return str(value)
    return value

"""Where the host may look at numbers while it works."""

from __future__ import annotations

import torch

HOST_DEVICES = {"cpu"}
"""Types of devices whose numbers cost nothing to read. On all others the host would wait for the device, so code that
runs in a wave computes every branch there instead of choosing one. The solver of the bridge alone asks whether it may
stop: an answer costs far less than another pass over the vocabulary."""


def reads_back(device: torch.device) -> bool:
    """Whether numbers on this device may decide what the host does next."""
    return device.type in HOST_DEVICES

"""The wire format of the external loop: frames of a JSON descriptor and raw arrays, over one socket.

A frame is

    magic "SAKI", version (1 byte), kind (1), zero (2), descriptor bytes (4), payload bytes (8), CRC-32 (4)
    descriptor: JSON {"op", "fields", "arrays": [[name, dtype, shape], ...]}
    payload: the arrays' bytes in that order, each begun at a multiple of 8

little-endian. The CRC covers header and descriptor; the payload must have exactly the size that the descriptor's
shapes need. What comes is never unpickled or evaluated: JSON, numbers of known dtypes, and nothing else.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saki.rollout.external_errors import (
    ForeignBytesError,
    OversizedFrameError,
    RequestTimeoutError,
    ServerDiedError,
    TruncatedFrameError,
)

MAGIC, VERSION = b"SAKI", 1
REQUEST, REPLY, ERROR = 1, 2, 3
MAX_DESCRIPTOR = 2**20
"""Bytes of a descriptor at most; it holds names and small numbers."""

SOCKET_BUFFER = 4 * 2**20
"""Bytes asked for the kernel's buffers, so that a block of log-probs goes out in one call."""

_HEADER = struct.Struct("<4sBBHIQ")
_CRC = struct.Struct("<I")
_ALIGN = 8
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Frame:
    """One message. Arrays alias the channel's buffer: the next frame of the same channel overwrites them."""

    kind: int
    op: str
    fields: dict[str, Any]
    arrays: dict[str, Tensor]


@dataclass
class WireTimes:
    """Wall seconds of the last frame sent and the last one received.

    Attributes:
        pack: Descriptor and views of the arrays made.
        send: Bytes handed to the kernel.
        wait: From the call until the first bytes of the frame were there.
        receive: Bytes taken from the kernel, from then on.
        unpack: Descriptor read and checked, arrays laid over the bytes.
    """

    pack: float = 0.0
    send: float = 0.0
    wait: float = 0.0
    receive: float = 0.0
    unpack: float = 0.0


class Channel:
    """Frames over one connected TCP socket.

    Args:
        sock: The socket; the channel owns it.
        peer: What the other side is called in messages.

    Attributes:
        bytes_sent: Bytes sent so far.
        bytes_received: Bytes received so far.
        times: What the last frames took.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket, self.peer = sock, peer
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        self.bytes_sent = self.bytes_received = 0
        self.times = WireTimes()
        self._head = bytearray(_HEADER.size + _CRC.size)
        self._buffer = bytearray()

    def send(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Tensor] | None = None,
        *,
        kind: int = REQUEST,
        timeout: float | None = None,
    ) -> None:
        """Send one frame, without copying the arrays.

        Args:
            op: What is asked or answered.
            fields: Numbers, strings and lists.
            arrays: Tensors on the host; contiguous ones are not copied.
            kind: REQUEST, REPLY or ERROR.
            timeout: Seconds for the whole frame; None waits for ever.

        Raises:
            RequestTimeoutError: If the other side does not take the bytes in time.
            ServerDiedError: If the connection is gone.
        """
        begin = time.perf_counter()
        parts = pack_frame(op, fields or {}, arrays or {}, kind)
        packed = time.perf_counter()
        deadline = None if timeout is None else packed + timeout
        total = sum(map(len, parts))
        sent = 0
        try:
            while parts:
                self._socket.settimeout(self._left(deadline, "take a request"))
                count = self._socket.sendmsg(parts)
                sent += count
                if sent == total:
                    break
                while count and count >= len(parts[0]):
                    count -= len(parts.pop(0))
                if count:
                    parts[0] = memoryview(parts[0])[count:]
        except TimeoutError as error:
            raise self._late("take a request") from error
        except OSError as error:
            raise ServerDiedError(f"the connection to the {self.peer} is gone ({error})") from error
        finally:
            self.bytes_sent += sent
        self.times.pack, self.times.send = packed - begin, time.perf_counter() - packed

    def receive(
        self, *, timeout: float | None = None, max_payload: int = 0, max_descriptor: int = MAX_DESCRIPTOR
    ) -> Frame:
        """Wait for one frame.

        Args:
            timeout: Seconds for the whole frame; None waits for ever.
            max_payload: Most bytes of arrays that are taken.
            max_descriptor: Most bytes of the descriptor.

        Returns:
            The frame; its arrays live in the channel's buffer.

        Raises:
            RequestTimeoutError: If it is not there in time.
            ServerDiedError: If the connection ends before the frame.
            TruncatedFrameError: If it ends inside.
            OversizedFrameError: If the frame announces more than is allowed; nothing of it is stored.
            ForeignBytesError: If it is no frame.
        """
        begin = time.perf_counter()
        deadline = None if timeout is None else begin + timeout
        head = memoryview(self._head)
        got = self._take(head, deadline, inside=False)
        first = time.perf_counter()
        self._fill(head[got:], deadline)
        magic, version, kind, zero, descriptor_bytes, payload_bytes = _HEADER.unpack_from(head)
        if magic != MAGIC or version != VERSION or kind not in (REQUEST, REPLY, ERROR) or zero:
            raise ForeignBytesError(
                f"the {self.peer} sent bytes that are no frame of version {VERSION} (they begin with "
                f"{bytes(head[:8])!r}); something else answers on this connection"
            )
        if descriptor_bytes > max_descriptor or payload_bytes > max_payload:
            raise OversizedFrameError(
                f"the {self.peer} announced a descriptor of {descriptor_bytes} and arrays of {payload_bytes} bytes, "
                f"expected at most {max_descriptor} and {max_payload}"
            )
        descriptor = bytearray(descriptor_bytes)
        self._fill(memoryview(descriptor), deadline)
        if len(self._buffer) < payload_bytes:
            self._buffer = bytearray(payload_bytes)  # tensors of earlier frames keep the old one
        self._fill(memoryview(self._buffer)[:payload_bytes], deadline)
        taken = time.perf_counter()
        frame = self._unpack(kind, head, descriptor, payload_bytes)
        times = self.times
        times.wait, times.receive, times.unpack = first - begin, taken - first, time.perf_counter() - taken
        return frame

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _unpack(self, kind: int, head: memoryview, descriptor: bytearray, payload_bytes: int) -> Frame:
        (checksum,) = _CRC.unpack_from(head, _HEADER.size)
        if zlib.crc32(descriptor, zlib.crc32(head[: _HEADER.size])) != checksum:
            raise ForeignBytesError(f"the {self.peer} sent a frame whose checksum does not fit its descriptor")
        try:
            content = json.loads(descriptor)
            op, fields, layout = content["op"], content["fields"], content["arrays"]
            if not isinstance(op, str) or not isinstance(fields, dict):
                raise TypeError("op or fields have the wrong type")
            arrays, offset = {}, 0
            for name, dtype_name, shape in layout:
                dtype = _DTYPES[dtype_name]
                if not all(type(size) is int and size >= 0 for size in shape):
                    raise TypeError("a shape is no list of sizes")
                count = math.prod(shape)
                end = offset + count * dtype.itemsize
                if end > payload_bytes:
                    raise ValueError("the arrays need more bytes than the payload has")
                flat = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=offset) if count else None
                arrays[name] = (flat if flat is not None else torch.empty(0, dtype=dtype)).view(shape)
                offset = end + -end % _ALIGN
            if offset != payload_bytes:
                raise ValueError(f"the arrays take {offset} bytes, the payload has {payload_bytes}")
        except (KeyError, TypeError, ValueError) as error:
            raise ForeignBytesError(f"the {self.peer} sent a frame with a wrong descriptor ({error})") from error
        return Frame(kind, op, fields, arrays)

    def _fill(self, view: memoryview, deadline: float | None) -> None:
        while len(view):
            view = view[self._take(view, deadline, inside=True) :]

    def _take(self, view: memoryview, deadline: float | None, inside: bool) -> int:
        try:
            self._socket.settimeout(self._left(deadline, "answer"))
            count = self._socket.recv_into(view)
        except TimeoutError as error:
            raise self._late("answer") from error
        except OSError as error:
            raise ServerDiedError(f"the connection to the {self.peer} is gone ({error})") from error
        if not count:
            if inside:
                raise TruncatedFrameError(f"the {self.peer} ended the connection in the middle of a frame")
            raise ServerDiedError(f"the {self.peer} ended the connection")
        self.bytes_received += count
        return count

    def _left(self, deadline: float | None, what: str) -> float | None:
        if deadline is None:
            return None
        left = deadline - time.perf_counter()
        if left <= 0:
            raise self._late(what)
        return left

    def _late(self, what: str) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"the {self.peer} did not {what} within the time-out; raise request_timeout, or look at its process"
        )


def pack_frame(op: str, fields: Mapping[str, Any], arrays: Mapping[str, Tensor], kind: int) -> list[Any]:
    """The byte pieces of a frame, in order: header and descriptor, then views of the arrays."""
    layout, pieces, size = [], [], 0
    for name, tensor in arrays.items():
        layout.append([name, _NAMES[tensor.dtype], list(tensor.shape)])
        if tensor.numel():
            raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
            pieces.append(raw.data)
            padding = -raw.nbytes % _ALIGN
            if padding:
                pieces.append(memoryview(bytes(padding)))
            size += raw.nbytes + padding
    descriptor = json.dumps({"op": op, "fields": dict(fields), "arrays": layout}, separators=(",", ":")).encode()
    head = _HEADER.pack(MAGIC, VERSION, kind, 0, len(descriptor), size)
    checksum = _CRC.pack(zlib.crc32(descriptor, zlib.crc32(head)))
    return [head + checksum + descriptor, *pieces]


def payload_bytes(*shapes: tuple[tuple[int, ...], torch.dtype]) -> int:
    """Bytes of a payload that holds one array of each shape and dtype."""
    sizes = (math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
    return sum(size + -size % _ALIGN for size in sizes)

"""The coordinator's side of a model server: a decoder whose model and caches live in another process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from saki.functional import RowKeys
from saki.rollout.decoder import StaleCacheError
from saki.rollout.external_errors import (
    AccessDeniedError,
    ExternalError,
    ForeignBytesError,
    RemoteError,
    ServerDiedError,
    TruncatedFrameError,
)
from saki.rollout.external_process import ServerProcess
from saki.rollout.external_stats import Ledger
from saki.rollout.external_wire import ERROR, REPLY, Channel, Frame, payload_bytes
from saki.rollout.protocol import SyncReport
from saki.rollout.sync import WeightSyncError, tensor_checksum

_KNOWN_ERRORS: dict[str, type[Exception]] = {
    "AccessDeniedError": AccessDeniedError,
    "StaleCacheError": StaleCacheError,
    "WeightSyncError": WeightSyncError,
}


class RemoteCache:
    """A cache in the server (a :class:`saki.rollout.decoder.DecoderCache`); the server drops it some time after this.

    Args:
        decoder: The decoder that asked for it.
        handle: Its number there.
        num_rows: B.
    """

    def __init__(self, decoder: RemoteDecoder, handle: int, num_rows: int) -> None:
        self._decoder, self.handle = decoder, handle
        self.num_rows, self.version = num_rows, decoder.version

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row but the given ones."""
        self._decoder.call("keep_rows", {"cache": self.handle}, {"rows": rows})
        self.num_rows = int(rows.shape[0])

    def copy_rows(self, source: RemoteCache, source_rows: Tensor, rows: Tensor, length: int) -> None:
        """Take over the first ``length`` entries of some rows of another cache of the same server."""
        fields = {"cache": self.handle, "source": source.handle, "length": length}
        self._decoder.call("copy_rows", fields, {"source_rows": source_rows, "rows": rows})

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache holds in the server."""
        return int(self._decoder.call("cache_bytes", {"cache": self.handle}).fields["num_bytes"])

    def __del__(self) -> None:
        # A request may be under way on the connection, so the news waits for the next one.
        self._decoder.forgotten.append(self.handle)


class RemoteDecoder:
    """A model server as a :class:`saki.rollout.decoder.Decoder`, with whole blocks a request beside it.

    Dense results live in the connection's buffer until the next request to the same server.

    Args:
        channel: Connection to the server.
        token: What the server expects in the first frame.
        ledger: Takes the seconds of every request.
        timeout: Seconds until a request is given up.
        process: The server's process, for messages; None where the server is not a process of this loop.

    Raises:
        ExternalError: If the server refuses the token or is none.
    """

    def __init__(
        self, channel: Channel, token: str, ledger: Ledger, timeout: float, process: ServerProcess | None = None
    ) -> None:
        self.channel, self.ledger, self._timeout, self._process = channel, ledger, timeout, process
        self.forgotten: list[int] = []
        facts = self._exchange("hello", {"token": token}, {}, 0).fields
        try:
            self.vocab_size, self.version = int(facts["vocab_size"]), int(facts["version"])
            self.max_positions: int | None = facts["max_positions"]
            self.dtype: torch.dtype = getattr(torch, facts["dtype"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ForeignBytesError(f"the {channel.peer} described its model wrongly ({error!r})") from error
        self.device = torch.device("cpu")

    def compile(self) -> None:
        """Refused: what a server compiles is the server's."""
        raise NotImplementedError("a model behind the wire cannot be compiled from here")

    @property
    def float_dtype(self) -> torch.dtype:
        """Dtype of log-probs on the wire: float64 for float64 models, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    # ---- requests ------------------------------------------------------------------------------------------------

    def call(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Tensor] | None = None,
        max_reply: int = 0,
    ) -> Frame:
        """One request and its reply, charged to the ledger.

        Args:
            op: The operation.
            fields: Its numbers and names.
            arrays: Its arrays.
            max_reply: Bytes of arrays that the reply may have.

        Raises:
            ExternalError: If the connection or the server fails.
            WeightSyncError: If the server refused weights.
            StaleCacheError: If the cache was filled by older weights.
        """
        begin, before = time.perf_counter(), self.ledger.accounted()
        fields = dict(fields or {})
        if self.forgotten:
            fields["drop"], self.forgotten = self.forgotten, []
        frame = self._exchange(op, fields, arrays or {}, max_reply)
        self._charge(frame)
        self.ledger.add("rest", time.perf_counter() - begin - (self.ledger.accounted() - before))
        return frame

    def _exchange(self, op: str, fields: Mapping[str, Any], arrays: Mapping[str, Tensor], max_reply: int) -> Frame:
        try:
            self.channel.send(op, fields, arrays, timeout=self._timeout)
            return self._answer(op, max_reply)
        except (ServerDiedError, TruncatedFrameError) as error:
            raise self._with_obituary(error) from error

    def _answer(self, op: str, max_reply: int) -> Frame:
        frame = self.channel.receive(timeout=self._timeout, max_payload=max_reply)
        if frame.kind == ERROR:
            kind, message = str(frame.fields.get("kind")), str(frame.fields.get("message"))
            if kind in _KNOWN_ERRORS:
                raise _KNOWN_ERRORS[kind](f"{self.channel.peer}: {message}")
            raise RemoteError(f"the {self.channel.peer} could not carry out {op!r}: {kind}: {message}")
        if frame.kind != REPLY or frame.op != op:
            raise ForeignBytesError(f"the {self.channel.peer} answered {frame.op!r} to {op!r}")
        return frame

    def _with_obituary(self, error: ExternalError) -> ExternalError:
        if self._process is None:
            return error
        return type(error)(f"{error}; {self._process.obituary()}")

    def _charge(self, frame: Frame) -> None:
        times, ledger = self.channel.times, self.ledger
        there = frame.fields.get("seconds", {})
        ledger.requests += 1
        ledger.add("forward", there.get("forward", 0.0) + there.get("draw", 0.0))
        ledger.add("serialise", there.get("serialise", 0.0) + times.pack + times.unpack)
        ledger.add("transfer", there.get("transfer", 0.0) + times.send + times.receive)

    def _array(self, frame: Frame, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        array = frame.arrays.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            got = "none" if array is None else f"{tuple(array.shape)} of {array.dtype}"
            raise ForeignBytesError(
                f"the {self.channel.peer} answered {frame.op!r} with {name!r} {got}, expected {shape} of {dtype}"
            )
        return array

    # ---- blocks --------------------------------------------------------------------------------------------------

    def draft(
        self,
        token_ids: Tensor,
        starts: Tensor,
        cache: RemoteCache,
        visible: int,
        keys: RowKeys,
        positions: Tensor,
        width: int,
        dense: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Ask for K proposals a row.

        Args:
            token_ids: [B] int64, the token behind each row's cached prefix.
            starts: [B] int64, entries of the cache that stay valid.
            cache: The rows' cache.
            visible: Cache entries that the longest row sees in the first forward.
            keys: Identity of the rows in the random numbers.
            positions: [B] int64, absolute response position of the first proposal.
            width: K.
            dense: Whether the whole log-probs are wanted.

        Returns:
            Proposals [B, K], and their log-probs: [B, K, V] if ``dense``, else [B, K] of the proposals alone.
        """
        rows = token_ids.shape[0]
        shape = (rows, width, self.vocab_size) if dense else (rows, width)
        frame = self.call(
            "draft",
            {"cache": cache.handle, "visible": visible, "width": width, "dense": dense, "seed": keys.seed},
            {
                "token_ids": token_ids,
                "starts": starts,
                "positions": positions,
                "prompt_keys": keys.prompt_keys,
                "sample_indices": keys.sample_indices,
            },
            payload_bytes(((rows, width), torch.int64), (shape, self.float_dtype)),
        )
        proposals = self._array(frame, "proposals", (rows, width), torch.int64).clone()
        log_probs = self._array(frame, "log_probs" if dense else "chosen", shape, self.float_dtype)
        if proposals.numel() and not 0 <= int(proposals.min()) <= int(proposals.max()) < self.vocab_size:
            raise ForeignBytesError(f"the {self.channel.peer} proposed ids outside [0, {self.vocab_size})")
        return proposals, log_probs

    def score(self, token_ids: Tensor, starts: Tensor, cache: RemoteCache, visible: int) -> Tensor:
        """Feed [B, K] tokens; the log-probs [B, K, V] after each of them."""
        shape = (*token_ids.shape, self.vocab_size)
        frame = self.call(
            "score",
            {"cache": cache.handle, "visible": visible},
            {"token_ids": token_ids, "starts": starts},
            payload_bytes((shape, self.float_dtype)),
        )
        return self._array(frame, "log_probs", shape, self.float_dtype)

    def extend(self, token_ids: Tensor, starts: Tensor, cache: RemoteCache, visible: int) -> None:
        """Feed [B, Q] tokens into the cache; nothing comes back."""
        fields = {"cache": cache.handle, "visible": visible}
        self.call("extend", fields, {"token_ids": token_ids, "starts": starts})

    # ---- the decoder protocol ------------------------------------------------------------------------------------

    def new_cache(self, num_rows: int, num_slots: int) -> RemoteCache:
        """See :meth:`saki.rollout.decoder.Decoder.new_cache`."""
        frame = self.call("new_cache", {"num_rows": num_rows, "num_slots": num_slots})
        return RemoteCache(self, int(frame.fields["cache"]), num_rows)

    def forward(self, token_ids: Tensor, starts: Tensor, cache: RemoteCache, visible: int, num_logits: int) -> Tensor:
        """See :meth:`saki.rollout.decoder.Decoder.forward`."""
        shape = (token_ids.shape[0], num_logits, self.vocab_size)
        frame = self.call(
            "forward",
            {"cache": cache.handle, "visible": visible, "num_logits": num_logits},
            {"token_ids": token_ids, "starts": starts},
            payload_bytes((shape, self.dtype)),
        )
        return self._array(frame, "logits", shape, self.dtype)

    def cache_bytes(self, num_slots: int) -> int:
        """See :meth:`saki.rollout.decoder.Decoder.cache_bytes`."""
        return int(self.call("row_bytes", {"num_slots": num_slots}).fields["num_bytes"])

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See :meth:`saki.rollout.decoder.Decoder.named_tensors`; each is fetched, and a copy."""
        for name, size in self.call("tensor_names").fields["sizes"].items():
            yield name, self.call("tensor", {"name": name}, max_reply=int(size) + 8).arrays["tensor"].clone()

    # ---- weights -------------------------------------------------------------------------------------------------

    def checksum(self) -> str:
        """Checksum of the server's tensors."""
        return str(self.call("checksum").fields["checksum"])

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Stream weights into the server's model, each with its checksum.

        Raises:
            WeightSyncError: If a name is unknown, missing or comes twice, or a shape differs.
            ExternalError: If the connection or the server fails.
        """
        begin = time.perf_counter()
        try:
            self.channel.send("sync", {"version": version}, timeout=self._timeout)
            last = "give_up"
            try:
                for name, tensor in weights:
                    host = tensor.detach().cpu()
                    fields = {"name": name, "checksum": tensor_checksum(host)}
                    self.channel.send("weight", fields, {"tensor": host}, timeout=self._timeout)
                last = "end"
            finally:
                # Whatever the source of the weights raised: the server must know that no more come, and answers once.
                self.channel.send(last, timeout=self._timeout)
                if last != "end":
                    self.channel.receive(timeout=self._timeout)
            facts = self._answer("sync", 0).fields
        except (ServerDiedError, TruncatedFrameError) as error:
            raise self._with_obituary(error) from error
        self.ledger.requests += 1
        self.version = int(facts["version"])
        seconds = time.perf_counter() - begin
        return SyncReport(self.version, facts["checksum"], facts["probe_change"], seconds, facts["num_bytes"])

"""The server of the external loop: one model in a process of its own, asked by one client over the loopback."""

from __future__ import annotations

import hmac
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from saki.functional import RowKeys, draw_proposals, normalized_log_probs, proposal_uniforms
from saki.models import load_causal_lm
from saki.rollout.decoder import Decoder, DecoderCache, HFDecoder
from saki.rollout.external_errors import ExternalError
from saki.rollout.external_process import LOOPBACK
from saki.rollout.external_wire import ERROR, REPLY, Channel, Frame
from saki.rollout.sync import WeightSyncError, model_checksum, sync_decoder, tensor_checksum

_HANDSHAKE_SECONDS = 10.0
_HELLO_BYTES = 4096
_SMALL_PAYLOAD = 64 * 2**20
"""Bytes of token ids and positions that one request may bring."""

_Answer = tuple[dict[str, Any], dict[str, Tensor]]


class ModelServer:
    """Serves one decoder to the one client that knows the token.

    The key-value caches stay here; the client rolls back by sending smaller starts. Each reply carries the wall
    seconds that it took: ``forward`` (model and log-softmax), ``draw`` (proposals), ``serialise`` and ``transfer``.

    Args:
        decoder: The model.
        token: What the client's first frame must carry.
    """

    def __init__(self, decoder: Decoder, token: str) -> None:
        self._decoder, self._token = decoder, token
        self._caches: dict[int, DecoderCache] = {}
        self._next_cache = 0
        self._seconds: dict[str, float] = {}
        self._block = torch.empty(0)
        self._tensors = dict(decoder.named_tensors())
        largest = max((tensor.numel() * 8 for tensor in self._tensors.values()), default=0)
        self._max_payload = _SMALL_PAYLOAD + largest
        self._answers: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], _Answer]] = {
            "new_cache": self._new_cache,
            "copy_rows": self._copy_rows,
            "keep_rows": self._keep_rows,
            "cache_bytes": self._cache_bytes,
            "row_bytes": self._row_bytes,
            "extend": self._extend,
            "forward": self._forward,
            "draft": self._draft,
            "score": self._score,
            "checksum": self._checksum,
            "tensor_names": self._tensor_names,
            "tensor": self._tensor,
        }

    def serve(self, listener: socket.socket) -> None:
        """Answer until the client is gone. Connections without the token are closed; the first with it is the last."""
        channel = self._wait_for_client(listener)
        try:
            while True:
                frame = channel.receive(max_payload=self._max_payload)
                self._seconds = {"serialise": channel.times.unpack, "transfer": channel.times.receive}
                self._reply(channel, frame)
        except ExternalError:
            pass  # the client is gone, or sends what no client of ours would: either way this is the end
        finally:
            channel.close()

    def _wait_for_client(self, listener: socket.socket) -> Channel:
        with listener:
            while True:
                connection, _ = listener.accept()
                channel = Channel(connection, "client")
                try:
                    frame = channel.receive(timeout=_HANDSHAKE_SECONDS, max_descriptor=_HELLO_BYTES)
                    given = frame.fields.get("token")
                    if frame.op == "hello" and isinstance(given, str) and self._knows(given):
                        channel.send("hello", self._facts(), kind=REPLY, timeout=_HANDSHAKE_SECONDS)
                        return channel
                    text = {"kind": "AccessDeniedError", "message": "the token is wrong"}
                    channel.send("error", text, kind=ERROR, timeout=_HANDSHAKE_SECONDS)
                except ExternalError:
                    pass  # a foreigner; the next one may be ours
                channel.close()

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _facts(self) -> dict[str, Any]:
        decoder = self._decoder
        return {
            "vocab_size": decoder.vocab_size,
            "dtype": str(decoder.dtype).removeprefix("torch."),
            "version": decoder.version,
            "max_positions": decoder.max_positions,
        }

    def _reply(self, channel: Channel, frame: Frame) -> None:
        for handle in frame.fields.get("drop", ()):
            self._caches.pop(handle, None)
        try:
            if frame.op == "sync":
                fields, arrays = self._sync(channel, frame.fields)
            elif frame.op in self._answers:
                fields, arrays = self._answers[frame.op](frame.fields, frame.arrays)
            else:
                raise ValueError(f"there is no operation {frame.op!r}")
        except ExternalError:
            raise
        except Exception as error:  # the client is told, whatever it was
            text = {"kind": type(error).__name__, "message": str(error) or repr(error)}
            channel.send("error", text, kind=ERROR)
            return
        channel.send(frame.op, {**fields, "seconds": self._seconds}, arrays, kind=REPLY)

    # ---- caches --------------------------------------------------------------------------------------------------

    def _new_cache(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        handle, self._next_cache = self._next_cache, self._next_cache + 1
        self._caches[handle] = self._decoder.new_cache(int(fields["num_rows"]), int(fields["num_slots"]))
        return {"cache": handle}, {}

    def _copy_rows(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        target, source = self._caches[fields["cache"]], self._caches[fields["source"]]
        with self._phase("forward"):
            target.copy_rows(source, self._in(arrays["source_rows"]), self._in(arrays["rows"]), int(fields["length"]))
        return {}, {}

    def _keep_rows(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        with self._phase("forward"):
            self._caches[fields["cache"]].keep_rows(self._in(arrays["rows"]).clone())
        return {}, {}

    def _cache_bytes(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        return {"num_bytes": self._caches[fields["cache"]].num_bytes}, {}

    def _row_bytes(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        return {"num_bytes": self._decoder.cache_bytes(int(fields["num_slots"]))}, {}

    # ---- forwards ------------------------------------------------------------------------------------------------

    def _run(self, fields: dict[str, Any], arrays: dict[str, Tensor], num_logits: int) -> Tensor:
        return self._decoder.forward(
            self._in(arrays["token_ids"]),
            self._in(arrays["starts"]),
            self._caches[fields["cache"]],
            int(fields["visible"]),
            num_logits,
        )

    def _extend(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        """Feed tokens into a cache and send nothing back: the prefill of prompts."""
        with self._phase("forward"):
            self._run(fields, arrays, 1)
        return {}, {}

    def _forward(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        with self._phase("forward"):
            logits = self._run(fields, arrays, int(fields["num_logits"]))
        with self._phase("serialise"):
            return {}, {"logits": logits.cpu()}

    def _score(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        """Log-probs [B, K, V] at the prefix of each proposal: the teacher's part of a wave."""
        with self._phase("forward"):
            log_probs = normalized_log_probs(self._run(fields, arrays, arrays["token_ids"].shape[1]))
        with self._phase("serialise"):
            return {}, {"log_probs": log_probs.cpu()}

    def _draft(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        """K proposals a row, with their whole log-probs [B, K, V] (``dense``) or those of the proposals alone."""
        decoder, width, dense = self._decoder, int(fields["width"]), bool(fields["dense"])
        feed, starts = self._in(arrays["token_ids"]), self._in(arrays["starts"])
        with self._phase("draw"):
            keys = RowKeys(int(fields["seed"]), self._in(arrays["prompt_keys"]), self._in(arrays["sample_indices"]))
            positions = self._in(arrays["positions"]).unsqueeze(1) + torch.arange(width, device=decoder.device)
            noise = proposal_uniforms(keys, positions, decoder.vocab_size)
        proposals, chosen = [], []
        block = self._room(feed.shape[0], width) if dense else None
        for offset in range(width):
            with self._phase("forward"):
                cache, visible = self._caches[fields["cache"]], int(fields["visible"]) + offset
                logits = decoder.forward(feed.unsqueeze(1), starts + offset, cache, visible, 1)
                log_p = normalized_log_probs(logits[:, 0])
            with self._phase("draw"):
                feed = draw_proposals(log_p, noise[:, offset])
                proposals.append(feed)
            if block is not None:
                with self._phase("serialise"):
                    block[:, offset] = log_p
            else:
                chosen.append(log_p.gather(1, feed.unsqueeze(1)).squeeze(1))
        with self._phase("serialise"):
            answer = {"proposals": torch.stack(proposals, dim=1).cpu()}
            if block is not None:
                return {}, {**answer, "log_probs": block}
            return {}, {**answer, "chosen": torch.stack(chosen, dim=1).cpu()}

    def _room(self, rows: int, width: int) -> Tensor:
        """[rows, width, V] on the host, the same memory at every call: fresh pages cost more than the copy."""
        dtype = torch.float64 if self._decoder.dtype == torch.float64 else torch.float32
        size = rows * width * self._decoder.vocab_size
        if self._block.numel() < size:
            self._block = torch.empty(size, dtype=dtype)
        return self._block[:size].view(rows, width, self._decoder.vocab_size)

    def _in(self, array: Tensor) -> Tensor:
        return array.to(self._decoder.device)

    # ---- weights -------------------------------------------------------------------------------------------------

    def _sync(self, channel: Channel, fields: dict[str, Any]) -> _Answer:
        """Read the weights that follow, one a frame, into the model."""
        ended = False

        def weights() -> Iterator[tuple[str, Tensor]]:
            nonlocal ended
            while True:
                frame = channel.receive(max_payload=self._max_payload)
                if frame.op != "weight":
                    ended = True
                    if frame.op != "end":
                        raise WeightSyncError("the stream of weights was given up before its end")
                    return
                tensor = frame.arrays["tensor"]
                if tensor_checksum(tensor) != frame.fields["checksum"]:
                    raise WeightSyncError(f"weight {frame.fields['name']!r} arrived with another checksum than it had")
                yield frame.fields["name"], tensor

        stream = weights()
        try:
            report = sync_decoder(self._decoder, stream, int(fields["version"]))
        finally:
            while not ended:  # after a refusal the rest of the stream is still on its way
                ended = channel.receive(max_payload=self._max_payload).op != "weight"
        return {
            "version": report.version,
            "checksum": report.checksum,
            "probe_change": report.probe_change,
            "forwards_seconds": report.seconds,
            "num_bytes": report.num_bytes,
        }, {}

    def _checksum(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        return {"checksum": model_checksum(self._tensors.items())}, {}

    def _tensor_names(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        return {"sizes": {name: tensor.numel() * tensor.element_size() for name, tensor in self._tensors.items()}}, {}

    def _tensor(self, fields: dict[str, Any], arrays: dict[str, Tensor]) -> _Answer:
        return {}, {"tensor": self._tensors[fields["name"]].detach().cpu()}

    def _phase(self, name: str) -> _Phase:
        return _Phase(self._seconds, name)


class _Phase:
    """Adds the wall seconds spent inside to one entry."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *unused: object) -> None:
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.perf_counter() - self._begin


def listen() -> socket.socket:
    """A listening socket on a free port of the loopback interface, reachable from this machine alone."""
    return socket.create_server((LOOPBACK, 0), backlog=4)


def load_decoder(order: dict[str, Any]) -> Decoder:
    """The decoder of a :class:`saki.rollout.external_process.ServedModel`, given as a dict.

    Raises:
        ValueError: If the model cannot be loaded.
    """
    if order["factory"] is not None:
        module, _, function = order["factory"].partition(":")
        decoder: Decoder = getattr(importlib.import_module(module), function)(**order["arguments"])
        return decoder
    options = {name: order[name] for name in ("dtype", "device", "revision", "trust_remote_code")}
    model = load_causal_lm(order["folder"], **options)
    return HFDecoder(model, order["vocab_size"])


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, whatever the main thread waits for."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Entry point of a server process: an order as one JSON line on stdin, one JSON line with the port on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle
    order = json.loads(sys.stdin.readline())
    _end_with(order["parent"])
    # What libraries print goes to stderr; stdout carries one line, for the coordinator.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(order["num_threads"])
    try:
        server = ModelServer(load_decoder(order), order["token"])
    except Exception as error:  # the coordinator is told, whatever it was
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answer, flush=True)
        sys.exit(2)
    listener = listen()
    print(json.dumps({"port": listener.getsockname()[1]}), file=answer, flush=True)
    server.serve(listener)

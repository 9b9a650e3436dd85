"""Frames survive the wire to the bit; what is no frame, too long, too short or late is named; nothing is unpickled."""

from __future__ import annotations

import ast
import pickle
import socket
import struct
import threading
from pathlib import Path

import pytest
import torch

import saki.rollout
from saki.rollout.external_client import RemoteDecoder
from saki.rollout.external_errors import (
    AccessDeniedError,
    ExternalError,
    ForeignBytesError,
    OversizedFrameError,
    RemoteError,
    RequestTimeoutError,
    ServerDiedError,
    TruncatedFrameError,
)
from saki.rollout.external_server import ModelServer, listen
from saki.rollout.external_stats import ExternalStats, Ledger
from saki.rollout.external_wire import MAGIC, REPLY, VERSION, Channel, pack_frame, payload_bytes
from tests.rollout.served import table_decoder

TOKEN = "the token"
FACTS = {"vocab_size": 5, "dtype": "float64", "version": 0, "max_positions": None}


@pytest.fixture
def ends():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    with one, other:
        yield one, other


@pytest.fixture
def server():
    """A server of a table model in a thread; gives its address."""
    listener = listen()
    address = listener.getsockname()
    assert address[0] == "127.0.0.1"  # the loopback alone, while it listens
    thread = threading.Thread(target=ModelServer(table_decoder(vocab_size=5), TOKEN).serve, args=(listener,))
    thread.start()
    yield address
    thread.join(5)
    assert not thread.is_alive()


def connect(address, token=TOKEN, timeout=5.0):
    channel = Channel(socket.create_connection(address), "student server")
    try:
        return RemoteDecoder(channel, token, Ledger(), timeout)
    except ExternalError:
        channel.close()
        raise


def raw(op="draft", fields=None, arrays=None, kind=REPLY):
    return b"".join(bytes(part) for part in pack_frame(op, fields or {}, arrays or {}, kind))


def test_every_dtype_and_shape_arrives_as_it_was(ends):
    generator = torch.Generator().manual_seed(0)
    number = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    arrays = {
        "float64": number,
        "float32": number.float().t(),  # not contiguous
        "bfloat16": number.bfloat16(),
        "float16": number[:, :1].half(),
        "special": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "int64": torch.tensor([-(2**63), 2**63 - 1]),
        "bool": number > 0,
        "scalar": torch.tensor(3, dtype=torch.int32),
        "empty": torch.empty(0, 4),
    }
    fields = {"seed": 2**64 - 1, "text": "é", "list": [1, 2.5, None]}
    left, right = (Channel(end, "peer") for end in ends)
    left.send("op", fields, arrays, timeout=5)
    size = payload_bytes(*((tuple(array.shape), array.dtype) for array in arrays.values()))
    frame = right.receive(timeout=5, max_payload=size)
    assert (frame.op, frame.fields, list(frame.arrays)) == ("op", fields, list(arrays))
    for name, array in arrays.items():
        got = frame.arrays[name]
        assert (got.shape, got.dtype) == (array.shape, array.dtype), name
        flat = got.reshape(-1), array.contiguous().reshape(-1)
        assert torch.equal(*(value.view(torch.uint8) for value in flat)), name
    assert left.bytes_sent == right.bytes_received > size


def test_blocks_larger_than_any_socket_buffer_arrive(ends):
    block = torch.arange(6 * 2**20, dtype=torch.float32)
    left, right = (Channel(end, "peer") for end in ends)
    sender = threading.Thread(target=left.send, args=("op", {}, {"a": block[:5], "b": block}), kwargs={"timeout": 20})
    sender.start()
    frame = right.receive(timeout=20, max_payload=2**25)
    sender.join()
    assert torch.equal(frame.arrays["b"], block)


def flip(message, place):
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


GOOD = raw(fields={"n": 1}, arrays={"a": torch.zeros(2)})


@pytest.mark.parametrize("place", [*range(8), *range(20, len(GOOD) - 8)])
def test_any_flipped_bit_before_the_payload_is_noticed(ends, place):
    """Header and descriptor alike; the lengths (bytes 8 to 19) are tested below, where too much or little comes."""
    ends[1].sendall(flip(GOOD, place))
    with pytest.raises(ForeignBytesError):
        Channel(ends[0], "peer").receive(timeout=5, max_payload=8)


@pytest.mark.parametrize(
    "message",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40), pickle.dumps({"op": "draft", "fields": {}, "arrays": [0] * 30})],
)
def test_foreign_bytes(ends, message):
    ends[1].sendall(message)
    with pytest.raises(ForeignBytesError, match="no frame of version 1"):
        Channel(ends[0], "peer").receive(timeout=5, max_payload=2**20)


def framed(descriptor, payload=b""):
    import zlib

    head = struct.pack("<4sBBHIQ", MAGIC, VERSION, REPLY, 0, len(descriptor), len(payload))
    return head + struct.pack("<I", zlib.crc32(descriptor, zlib.crc32(head))) + descriptor + payload


class Mine:
    """Unpickling this would leave a trace."""

    def __reduce__(self):
        return (traces.append, (1,))


traces: list[int] = []


@pytest.mark.parametrize(
    "descriptor",
    [
        pickle.dumps(Mine()),
        b"not json",
        b"[1]",
        b'{"op":1,"fields":{},"arrays":[]}',
        b'{"op":"a","fields":{},"arrays":[["x","object",[1]]]}',
        b'{"op":"a","fields":{},"arrays":[["x","float32",[-2]]]}',
        b'{"op":"a","fields":{},"arrays":[["x","float32",[2.0]]]}',
        b'{"op":"a","fields":{},"arrays":[["x","float32",[4]]]}',  # more than the payload
        b'{"op":"a","fields":{},"arrays":[["x","float32",[1000000000000]]]}',
        b'{"op":"a","fields":{},"arrays":[]}',  # less than the payload
    ],
)
def test_wrong_descriptors(ends, descriptor):
    ends[1].sendall(framed(descriptor, bytes(8)))
    with pytest.raises(ForeignBytesError, match="wrong descriptor"):
        Channel(ends[0], "peer").receive(timeout=5, max_payload=8)
    assert not traces


def test_no_module_of_the_loop_can_unpickle():
    folder = Path(saki.rollout.__file__).parent
    files = sorted(folder.glob("external*.py"))
    assert len(files) >= 7
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            names += [node.func.id] if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else []
            forbidden = {"pickle", "marshal", "shelve", "dill", "eval", "exec", "allow_pickle", "multiprocessing"}
            assert not forbidden & set(names), file.name
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"), file.name


def answering(end, message):
    """A decoder whose server answers the handshake and then ``message``, whatever is asked; None stays silent."""
    end.sendall(raw("hello", FACTS))
    decoder = RemoteDecoder(Channel(end_of[end], "student server"), TOKEN, Ledger(), 0.3)
    if message is not None:
        end.sendall(message)
    return decoder


end_of: dict[socket.socket, socket.socket] = {}


@pytest.fixture
def fake(ends):
    end_of[ends[1]] = ends[0]
    yield ends[1]
    end_of.clear()


def score(decoder):
    cache = type("Cache", (), {"handle": 0})()
    return decoder.score(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long), cache, 3)


def test_a_good_answer_is_taken(fake):
    block = torch.rand(2, 3, 5, dtype=torch.float64)
    assert torch.equal(score(answering(fake, raw("score", {"seconds": {}}, {"log_probs": block}))), block)


def test_a_server_that_stays_silent_is_given_up(fake):
    with pytest.raises(RequestTimeoutError, match=r"student server did not answer within the time-out"):
        score(answering(fake, None))


def test_a_trickle_does_not_reset_the_time_out(fake):
    decoder = answering(fake, None)
    stop = threading.Event()

    def trickle():
        for byte in raw("score", {}, {"log_probs": torch.zeros(2, 3, 5, dtype=torch.float64)}):
            if stop.wait(0.05):
                return
            fake.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(RequestTimeoutError):
        score(decoder)
    stop.set()
    thread.join()


@pytest.mark.parametrize("kept", [3, 24, 60, 200])
def test_a_truncated_reply(fake, kept):
    decoder = answering(fake, raw("score", {}, {"log_probs": torch.zeros(2, 3, 5, dtype=torch.float64)})[:kept])
    fake.shutdown(socket.SHUT_WR)
    with pytest.raises(TruncatedFrameError, match="middle of a frame"):
        score(decoder)


def test_an_ended_connection(fake):
    decoder = answering(fake, None)
    fake.shutdown(socket.SHUT_WR)
    with pytest.raises(ServerDiedError, match="ended the connection"):
        score(decoder)


def test_an_oversized_reply_is_refused_by_its_header(fake):
    too_much = raw("score", {}, {"log_probs": torch.zeros(2, 3, 6, dtype=torch.float64)})
    with pytest.raises(OversizedFrameError, match="288 bytes, expected at most 1048576 and 240"):
        score(answering(fake, too_much))
    assert len(end_of[fake].recv(4096)) > 240  # the arrays were left where they are


@pytest.mark.parametrize(
    ("op", "arrays", "message"),
    [
        ("draft", {"log_probs": torch.zeros(2, 3, 5, dtype=torch.float64)}, "answered 'draft' to 'score'"),
        ("score", {"log_probs": torch.zeros(3, 2, 5, dtype=torch.float64)}, r"expected \(2, 3, 5\)"),
        ("score", {"log_probs": torch.zeros(2, 3, 5)}, "expected .* of torch.float64"),
        ("score", {}, "'log_probs' none"),
    ],
)
def test_an_answer_to_something_else(fake, op, arrays, message):
    with pytest.raises(ForeignBytesError, match=message):
        score(answering(fake, raw(op, {}, arrays)))


def turned_away(foreigner):
    """Whether the server ends the connection without a word; bytes that it left unread make that a reset."""
    foreigner.settimeout(5)
    try:
        return foreigner.recv(100) == b""
    except ConnectionResetError:
        return True


def test_the_wrong_token_is_refused_and_the_right_one_still_served(server):
    with pytest.raises(AccessDeniedError, match="token is wrong"):
        connect(server, "another token")
    with socket.create_connection(server) as foreigner:
        foreigner.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert turned_away(foreigner)
    with socket.create_connection(server) as foreigner:
        foreigner.sendall(raw("hello", {"token": TOKEN}, {"x": torch.zeros(4)}))  # nobody unknown may send arrays
        assert turned_away(foreigner)
    decoder = connect(server)
    assert (decoder.vocab_size, decoder.dtype) == (5, torch.float64)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(server)  # one client, and no second
    decoder.channel.close()


def test_a_request_that_cannot_be_served_is_named_and_the_next_one_is(server):
    decoder = connect(server)
    with pytest.raises(RemoteError, match="'frobnicate': ValueError"):
        decoder.call("frobnicate")
    with pytest.raises(RemoteError, match="KeyError"):
        score(decoder)
    assert decoder.new_cache(1, 4).num_rows == 1
    decoder.channel.close()


def test_a_server_ends_when_its_client_sends_foreign_bytes(server):
    channel = Channel(socket.create_connection(server), "student server")
    RemoteDecoder(channel, TOKEN, Ledger(), 5.0)
    channel._socket.sendall(pickle.dumps(Mine()) + bytes(40))
    with pytest.raises(ServerDiedError):
        channel.receive(timeout=5)
    assert not traces
    channel.close()


def test_the_honesty_condition():
    stats = ExternalStats(wave_ratios=(1.0, 1.2, 9.0))
    assert stats.overhead_ratio() == 1.2
    stats.check_honest(1.3)
    with pytest.raises(ValueError, match=r"1\.20 times"):
        stats.check_honest(1.1)
    with pytest.raises(ValueError, match="no wave"):
        ExternalStats().overhead_ratio()

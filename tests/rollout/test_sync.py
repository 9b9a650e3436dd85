"""Weight sync: version, checksum, probe, stale caches, and what is refused."""

import copy

import pytest
import torch

from saki.models import plain_state, tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine, StaleCacheError, WeightSyncError, model_checksum
from saki.rollout.decoder import HALF_SYNCED, HalfSyncedError
from saki.rollout.sync import ChecksumMismatchError, Piece, WeightReceiver, sync_decoder, tensor_checksum
from saki.types import Prompt, RolloutRequest

VOCAB = 23


def engine():
    student, teacher = (tiny_qwen3(VOCAB, seed=seed, scale=0.3) for seed in (1, 2))
    return ResidentEngine(HFDecoder(student, VOCAB), HFDecoder(teacher, VOCAB), [0])


REQUEST = RolloutRequest(seed=4, max_completion_length=10, num_generations=4, trust_region_radius=0.1)


def test_a_sync_changes_the_student_alone():
    used, new = engine(), tiny_qwen3(VOCAB, seed=3, scale=0.3)
    before, teacher = used.student_checksum(), used.teacher_checksum()
    report = used.sync_student(plain_state(new), version=5)
    assert report.version == 5
    assert report.probe_change > 0.01
    assert report.seconds >= 0
    assert used.student_checksum() == report.checksum == model_checksum(plain_state(new)) != before
    assert used.teacher_checksum() == teacher
    fresh = ResidentEngine(
        HFDecoder(copy.deepcopy(new), VOCAB), HFDecoder(tiny_qwen3(VOCAB, seed=2, scale=0.3), VOCAB), [0]
    )
    a, b = (e.generate([Prompt(0, (3, 4))], REQUEST) for e in (used, fresh))
    assert torch.equal(a.completion_ids, b.completion_ids)
    assert a.student_version == 5


def test_the_same_weights_change_nothing():
    used = engine()
    before = used.student_checksum()
    report = used.sync_student(plain_state(tiny_qwen3(VOCAB, seed=1, scale=0.3)), version=1)
    assert report.probe_change == 0.0
    assert report.checksum == before


def test_a_stale_cache_is_refused():
    decoder = HFDecoder(tiny_qwen3(VOCAB, seed=1), VOCAB)
    cache = decoder.new_cache(1, 4)
    decoder.forward(torch.tensor([[3]]), torch.tensor([0]), cache, 1, 1)
    decoder.version += 1
    with pytest.raises(StaleCacheError, match="version 0"):
        decoder.forward(torch.tensor([[3]]), torch.tensor([1]), cache, 2, 1)


def test_misfits_are_named():
    used = engine()
    weights = dict(plain_state(tiny_qwen3(VOCAB, seed=3)))
    name = next(iter(weights))
    with pytest.raises(WeightSyncError, match="were not sent"):
        used.sync_student(list(weights.items())[1:], 1)
    with pytest.raises(WeightSyncError, match="is unknown"):
        used.sync_student([("nothing.weight", torch.zeros(1))], 1)
    with pytest.raises(WeightSyncError, match="comes twice"):
        used.sync_student([(name, weights[name])] * 2, 1)
    with pytest.raises(WeightSyncError, match="has shape"):
        used.sync_student([(name, weights[name][:1])], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_flipped_bit_shows(dtype):
    tensor = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    reference = tensor_checksum(tensor)
    raw = tensor.view(torch.uint8)
    for place in range(0, raw.numel(), 7):
        for bit in (0, 3, 7):
            raw.view(-1)[place] ^= 1 << bit
            assert tensor_checksum(tensor) != reference
            raw.view(-1)[place] ^= 1 << bit
    assert tensor_checksum(tensor) == reference


def test_casts_to_the_engine_dtype():
    student = HFDecoder(tiny_qwen3(VOCAB, seed=1).to(torch.bfloat16), VOCAB)
    used = ResidentEngine(student, None, [0])
    new = tiny_qwen3(VOCAB, seed=3)
    report = used.sync_student(plain_state(new), 1)
    assert report.checksum == model_checksum(plain_state(new.to(torch.bfloat16)))


def test_checksum_of_several_pieces_is_that_of_one(monkeypatch):
    tensor = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    whole = tensor_checksum(tensor)
    monkeypatch.setattr("saki.rollout.sync._CHECKSUM_WORDS", 10)
    assert tensor_checksum(tensor) == whole
    words = tensor.view(torch.int32).flatten().tolist()
    assert whole == sum(word * (2 * place + 1) for place, word in enumerate(words)) % 2**64


def pieces_of(tensors, size):
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        for begin in range(0, flat.numel(), size):
            yield Piece(name, tuple(tensor.shape), begin, flat[begin : begin + size])


def test_weights_in_pieces_are_those_in_one():
    new = dict(plain_state(tiny_qwen3(VOCAB, seed=3, scale=0.3)))
    decoder = HFDecoder(tiny_qwen3(VOCAB, seed=1, scale=0.3), VOCAB)
    receiver = WeightReceiver(decoder)
    receiver.begin(2)
    for piece in pieces_of(new.items(), 7):
        receiver.add(piece)
    report = receiver.finish(model_checksum(new.items()))
    whole = sync_decoder(HFDecoder(tiny_qwen3(VOCAB, seed=1, scale=0.3), VOCAB), new.items(), 2)
    assert (report.checksum, report.probe_change, report.num_bytes) == (
        whole.checksum,
        whole.probe_change,
        whole.num_bytes,
    )
    assert report.num_bytes == sum(tensor.numel() * tensor.element_size() for tensor in new.values())
    assert decoder.version == 2


def test_checksums_of_parts_add_up():
    tensor = torch.randn(50, generator=torch.Generator().manual_seed(0))
    parts = sum(tensor_checksum(tensor[begin : begin + 7], begin) for begin in range(0, 50, 7)) % 2**64
    assert parts == tensor_checksum(tensor)
    assert tensor_checksum(tensor[7:14], 7) != tensor_checksum(tensor[7:14])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda pieces: pieces[1:], "goes on at 7 with"),
        (lambda pieces: [pieces[0], *pieces], "goes on at 0 with"),
        (lambda pieces: pieces[:1] + pieces[2:], "expected 7 of"),
        (lambda pieces: pieces[:-1], "were not sent"),
        (lambda pieces: [*pieces, pieces[-1]], "comes twice"),
    ],
)
def test_gaps_and_repetitions_are_named_and_the_half_done_model_drafts_nothing(edit, message):
    decoder = HFDecoder(tiny_qwen3(VOCAB, seed=1), VOCAB)
    used = ResidentEngine(decoder, None, [0])
    new = list(plain_state(tiny_qwen3(VOCAB, seed=3)))
    receiver = WeightReceiver(decoder)
    receiver.begin(1)

    def send():
        for piece in edit(list(pieces_of(new, 7))):
            receiver.add(piece)
        receiver.finish()

    with pytest.raises(WeightSyncError, match=message):
        send()
    asked = RolloutRequest(seed=4, max_completion_length=4, behavior="student", score_teacher=False)
    with pytest.raises(HalfSyncedError, match="sync again"):
        used.generate([Prompt(0, (3, 4))], asked)
    with pytest.raises(HalfSyncedError, match="two versions"):
        decoder.forward(torch.tensor([[3]]), torch.tensor([0]), decoder.new_cache(1, 4), 1, 1)
    receiver.begin(1)
    for piece in pieces_of(new, 1000):
        receiver.add(piece)
    assert receiver.finish().probe_change > 0  # compared with the last complete version
    assert used.generate([Prompt(0, (3, 4))], asked).student_version == 1


def test_what_arrives_otherwise_than_it_was_sent_is_refused():
    decoder = HFDecoder(tiny_qwen3(VOCAB, seed=1), VOCAB)
    new = list(plain_state(tiny_qwen3(VOCAB, seed=3)))
    receiver = WeightReceiver(decoder)
    receiver.begin(1)
    for piece in pieces_of(new, 1000):
        receiver.add(piece)
    sent = model_checksum(new)
    with torch.no_grad():
        next(iter(decoder.named_tensors()))[1].view(torch.int32).view(-1)[3] ^= 1
    with pytest.raises(ChecksumMismatchError, match=f"sent was {sent}"):
        receiver.finish(sent)
    assert decoder.version == HALF_SYNCED


def test_a_piece_or_an_end_before_the_beginning_is_refused():
    receiver = WeightReceiver(HFDecoder(tiny_qwen3(VOCAB, seed=1), VOCAB))
    with pytest.raises(WeightSyncError, match="call begin first"):
        receiver.add(Piece("a", (1,), 0, torch.zeros(1)))
    with pytest.raises(WeightSyncError, match="call begin first"):
        receiver.finish()
    with pytest.raises(ValueError, match="at least 0"):
        receiver.begin(-1)

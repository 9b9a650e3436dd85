"""Building a probe: the same twice, true to plain forwards, and its initial values found again by measuring."""

from __future__ import annotations

import math

import pytest
import torch

from saki.models import ModelPair
from saki.probe import MEASURES, ProbeSettings, build_probe, measure_probe, write_probe
from saki.rollout import HFDecoder
from tests.probing import PROMPTS, SETTINGS, model_pair, tiny_probe
from tests.tiny import VOCAB


def plain_laws(model, probe):
    """Log-probs at every position by a plain forward of its prefix alone, float64."""
    laws = []
    for index, length in zip(
        probe.positions.sequence_ids.tolist(), probe.positions.prefix_lengths.tolist(), strict=True
    ):
        ids = torch.tensor([probe.sequences[index][:length]])
        with torch.no_grad():
            laws.append(torch.log_softmax(model(input_ids=ids).logits[0, -1, :VOCAB], dim=-1))
    return torch.stack(laws)


def by_hand(log_s, log_t, k):
    """The figures of Appendix E, position by position, in plain Python sums."""
    figures = {name: [] for name in MEASURES}
    for s, t in zip(log_s.exp().tolist(), log_t.exp().tolist(), strict=True):
        ranked = sorted(range(len(t)), key=lambda token: (-t[token], token))
        figures["c1"].append(s[ranked[0]])
        figures["c_top"].append(sum(s[token] for token in ranked[:k]))
        ratios = [(a, b, math.log(a / b)) for a, b in zip(t, s, strict=True)]
        figures["kl_teacher_student"].append(sum(a * ratio for a, _, ratio in ratios))
        figures["kl_student_teacher"].append(-sum(b * ratio for _, b, ratio in ratios))
        figures["entropy"].append(-sum(b * math.log(b) for b in s))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in figures.items()}


def test_twice_with_one_seed_is_identical_to_the_byte(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    digests = [write_probe(folder, tiny_probe()).digest for folder in folders]
    assert digests[0] == digests[1]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    assert len(names[0]) == 4
    for name in names[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    assert write_probe(tmp_path / "c", tiny_probe(seed=1)).digest != digests[0]


def test_positions_are_corrections_and_accepted_ones_in_pairs():
    probe = tiny_probe()
    assert len(probe) == 24
    positions = probe.positions
    assert positions.correction_mask.tolist() == [True, False] * 12
    assert torch.equal(positions.correction_mask, positions.proposal_ids != positions.token_ids)
    assert bool(((positions.tv > 0) | ~positions.correction_mask).all())
    prefixes = {
        probe.sequences[index][:length]
        for index, length in zip(positions.sequence_ids.tolist(), positions.prefix_lengths.tolist(), strict=True)
    }
    assert len(prefixes) == 24
    # The prefix ends where the response position begins, after its own prompt.
    prompt_lengths = torch.tensor([len(PROMPTS[key].token_ids) for key in positions.prompt_keys.tolist()])
    assert torch.equal(positions.prefix_lengths, prompt_lengths + positions.response_positions)
    for index, key in zip(positions.sequence_ids.tolist(), positions.prompt_keys.tolist(), strict=True):
        assert probe.sequences[index][: len(PROMPTS[key].token_ids)] == PROMPTS[key].token_ids
    longest = dict.fromkeys(range(len(probe.sequences)), 0)
    for index, length in zip(positions.sequence_ids.tolist(), positions.prefix_lengths.tolist(), strict=True):
        longest[index] = max(longest[index], length)
    assert [len(sequence) for sequence in probe.sequences] == list(longest.values())


def test_figures_are_those_of_plain_forwards_by_hand():
    pair = model_pair(torch.float64)
    probe = build_probe(model_pair(torch.float64), PROMPTS, ProbeSettings(**SETTINGS))
    log_t = plain_laws(pair.teacher, probe)
    torch.testing.assert_close(probe.teacher.logprobs, log_t, rtol=0, atol=1e-9)
    for name, expected in by_hand(plain_laws(pair.student, probe), log_t, 3).items():
        torch.testing.assert_close(getattr(probe.initial, name), expected, rtol=0, atol=1e-9, msg=name)
    other = model_pair(torch.float64).teacher  # any model that is not the one that built the probe
    measured = measure_probe(HFDecoder(other, VOCAB), probe, top_k=5)
    for name, expected in by_hand(log_t, log_t, 5).items():
        torch.testing.assert_close(getattr(measured, name), expected, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("teacher_top", [0, 4])
def test_measuring_the_initial_student_gives_the_frozen_values_to_the_bit(monkeypatch, teacher_top):
    monkeypatch.setattr("saki.probe.measure.TOKENS_TOGETHER", 40)  # several groups of sequences
    probe = tiny_probe(teacher_top=teacher_top)
    again = measure_probe(HFDecoder(model_pair().student, VOCAB), probe)
    for name in MEASURES:
        assert torch.equal(getattr(again, name), getattr(probe.initial, name)), name
    moved = model_pair().student
    with torch.no_grad():
        moved.model.norm.weight.mul_(1.01)
    changed = measure_probe(HFDecoder(moved, VOCAB), probe)
    assert bool((changed.entropy != probe.initial.entropy).all())


def test_lumped_laws_bound_the_divergences_from_below():
    whole, lumped = tiny_probe(), tiny_probe(teacher_top=4)
    assert whole.teacher.whole
    assert lumped.teacher.logprobs.shape == (24, 5)
    for name in ("kl_teacher_student", "kl_student_teacher"):
        lost = getattr(whole.initial, name) - getattr(lumped.initial, name)
        assert float(lost.min()) > -1e-9
        assert float(lost.max()) > 1e-4
        if name == "kl_teacher_student":
            assert lumped.facts["largest_kl_lost_to_lumping"] == pytest.approx(float(lost.max()), abs=1e-6)
    for name in ("c1", "c_top", "entropy"):
        torch.testing.assert_close(getattr(whole.initial, name), getattr(lumped.initial, name), rtol=0, atol=1e-12)


def test_the_size_decides_whether_laws_are_kept_whole(monkeypatch):
    monkeypatch.setattr("saki.probe.build.WHOLE_BYTES", 24 * VOCAB * 4 - 1)
    monkeypatch.setattr("saki.probe.build.NUM_KEPT", 6)
    probe = tiny_probe()
    assert not probe.teacher.whole
    assert probe.teacher.ranked_ids.shape == (24, 6)
    mass = probe.teacher.logprobs.exp().sum(dim=1)
    torch.testing.assert_close(mass, torch.ones(24), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pairs": 500}, "the probe needs 500; roll out more"),
        ({"top_k": 23}, "top_k must be at most 22"),
        ({"teacher_top": 2}, "top_k must be at most 2"),
        ({"trust_region_radius": 0.0}, "trust_region_radius must be above 0"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_probe(**changes)


def test_a_student_alone_has_no_probe():
    pair = model_pair()
    alone = ModelPair(pair.student, None, pair.tokenizer, pair.spec, pair.student_architecture, None)
    with pytest.raises(ValueError, match="a probe needs a teacher"):
        build_probe(alone, PROMPTS, ProbeSettings(**SETTINGS))


def test_models_that_do_not_fit_are_refused():
    probe = tiny_probe()
    with pytest.raises(ValueError, match="the probe is over 22 ids, the model has 20"):
        measure_probe(HFDecoder(model_pair().student, VOCAB - 2), probe)
    broken = model_pair().student
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the figures of 24 of 24 positions are not finite"):
        measure_probe(HFDecoder(broken, VOCAB), probe)

"""Which positions are frozen: on made-up rollouts where the right ones can be named."""

from __future__ import annotations

import pytest
import torch

from saki.probe.matching import Place, match_positions
from saki.types import TOKEN_FIELDS, RolloutBatch

NUMBERS = ("beta", "kl", "tv", "acceptance_probability")


def batch_of(*rows, seed=7):
    """Rows of (prompt key, sample, tokens, corrected positions)."""
    width = max(len(tokens) for _, _, tokens, _ in rows)
    shape = (len(rows), width)
    ids, mask = torch.full(shape, -1), torch.zeros(shape, dtype=torch.bool)
    corrected, numbers = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    for row, (_, _, tokens, places) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = True
        corrected[row, list(places)] = True
    return RolloutBatch(
        prompt_ids=torch.tensor([[key] for key, *_ in rows]),
        prompt_mask=torch.ones(len(rows), 1, dtype=torch.bool),
        completion_ids=ids,
        response_mask=mask,
        proposal_ids=ids,
        correction_mask=corrected,
        teacher_mode_ids=ids,
        prompt_keys=torch.tensor([key for key, *_ in rows]),
        sample_indices=torch.tensor([sample for _, sample, *_ in rows]),
        finish_reasons=("stop",) * len(rows),
        student_version=0,
        trust_region_radius=0.02,
        seed=seed,
        **{name: numbers for name in TOKEN_FIELDS if name.endswith("_logprobs") or name in NUMBERS},
    )


def test_the_match_is_the_nearest_accepted_position_of_the_same_prompt():
    batch = batch_of(
        (0, 0, [5, 6, 7, 8], [2]),
        (0, 1, [9, 9], []),  # position 1 is nearest of this row, at distance 1
        (1, 0, [1, 2, 3, 4], []),  # position 2 is nearer, but of another prompt
    )
    matching = match_positions(batch, 1)
    assert matching.corrections == (Place(0, 2),)
    assert matching.accepted == (Place(0, 1),)  # ties: the earlier position, then the lower sample
    assert (matching.num_same_prompt, matching.mean_distance) == (1, 1.0)
    other = batch_of((0, 0, [5, 6, 7, 8], [2]), (0, 1, [9, 9, 9], []))
    assert match_positions(other, 1).accepted == (Place(1, 2),)  # the same response position of another sample


def test_each_position_and_each_prefix_is_used_once():
    batch = batch_of(
        (0, 0, [5, 6], [0]),
        (0, 1, [7, 6], [0]),  # corrected at the very same prefix: the bare prompt
        (0, 2, [8, 6], []),  # accepted at it
        (0, 3, [5, 9], []),  # its position 1 has the prefix of row 0's
    )
    with pytest.raises(ValueError, match="4 completions hold 1 corrections with a prefix of their own"):
        match_positions(batch, 2)
    assert match_positions(batch, 1).accepted[0].position == 1
    longer = batch_of((0, 0, [5, 6, 7], [1, 2]), (0, 1, [5, 9, 9], []), (0, 2, [4, 8, 8], []))
    matching = match_positions(longer, 2)
    # The prefix [5] of row 1 is that of a correction, so row 2 stands in; at position 2 row 1 has a prefix of its own.
    assert matching.accepted == (Place(2, 1), Place(1, 2))


def test_a_prompt_without_accepted_positions_borrows_from_another():
    batch = batch_of((0, 0, [5], [0]), (1, 0, [6, 7], []))
    matching = match_positions(batch, 1)
    assert matching.accepted == (Place(1, 0),)
    assert matching.num_same_prompt == 0
    with pytest.raises(ValueError, match="no accepted position left to match the 1th of 1 corrections"):
        match_positions(batch_of((0, 0, [5], [0])), 1)


def test_corrections_are_chosen_evenly():
    """Of 10 corrections 3 are chosen under 400 seeds: each about 120 times, SD 9.2; 5 SD for ten of them: odds 6e-6."""
    rows = [(key, 0, [3, 4, 5, 6], [1]) for key in range(10)]
    counts = torch.zeros(10)
    for seed in range(400):
        for place in match_positions(batch_of(*rows, seed=seed), 3).corrections:
            counts[place.row] += 1
    assert counts.sum() == 1200
    assert float((counts - 120).abs().max()) < 5 * (400 * 0.3 * 0.7) ** 0.5


def test_the_choice_does_not_depend_on_the_order_of_rows():
    rows = [(key, sample, [3 + sample, 4, 5, 6], [1, 3]) for key in range(5) for sample in range(2)]

    def chosen(rows):
        matching = match_positions(batch_of(*rows), 4)
        return [
            [(*rows[place.row][:2], place.position) for place in places]
            for places in (matching.corrections, matching.accepted)
        ]

    assert chosen(rows) == chosen(rows[::-1])

"""Most corrected samples: which are chosen, and how they are written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saki.analysis.rollout_samples import NUM_TOKENS, most_corrected, samples_section, spaced


def test_samples_with_most_corrections_come_first_over_all_files(tmp_path, make_rollouts):
    make_rollouts(tmp_path / "a.parquet", [[0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]])
    make_rollouts(tmp_path / "b.parquet", [[1, 1, 1, 0], [0, 0, 0, 1]])
    files = sorted(tmp_path.glob("*.parquet"))
    found = most_corrected(files, count=4)
    assert [(sample.file, sample.row, sample.num_corrections) for sample in found] == [
        ("b.parquet", 0, 3),
        ("a.parquet", 1, 2),
        ("a.parquet", 2, 1),
        ("b.parquet", 1, 1),
    ]
    assert found[1].prompt_ids == (10, 11)
    assert found[1].completion_ids == (20, 21, 22, 23)
    assert found[1].proposal_ids == (20, 30, 30, 23)


def test_proposals_and_corrections_stand_side_by_side(tmp_path, make_rollouts):
    make_rollouts(tmp_path / "a.parquet", [[0, 1, 0, 1]])
    html = samples_section(tmp_path, decode=lambda ids: "".join(f"<{token}>" for token in ids))
    assert '<span class="prompt">&lt;10&gt;&lt;11&gt;</span>' in html
    assert (
        "&lt;20&gt;<del>&lt;30&gt;</del><ins>&lt;21&gt;</ins>&lt;22&gt;<del>&lt;30&gt;</del><ins>&lt;23&gt;</ins>"
        in html
    )
    assert "2 corrections in 4 tokens" in html


def test_files_of_the_rollout_floor_are_read(tmp_path):
    # Its lists hold valid tokens only, and it writes no response_mask.
    table = {"prompt_ids": [[10], [11]], "completion_ids": [[20, 21], []], "proposal_ids": [[30, 21], []]}
    table["correction_mask"] = [[True, False], []]
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    (sample,) = most_corrected([tmp_path / "a.parquet"])
    assert (sample.completion_ids, sample.proposal_ids, sample.corrected) == ((20, 21), (30, 21), (True, False))


def test_ids_are_shown_without_a_decoder(tmp_path, make_rollouts):
    make_rollouts(tmp_path / "a.parquet", [[0, 1, 0, 0]])
    html = samples_section(tmp_path, decode=None)
    assert "20 <del>30 </del><ins>21 </ins>22 23 " in html
    assert "no decoder was given" in html


def test_long_samples_are_cut_and_say_so(tmp_path):
    length = NUM_TOKENS + 50
    table = {name: [[7] * length] for name in ("completion_ids", "proposal_ids")}
    table["correction_mask"] = [[True] * length]
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    html = samples_section(tmp_path, decode=lambda ids: "x")
    assert html.count("<del>") == NUM_TOKENS
    assert "50 more tokens" in html


def test_absence_is_said(tmp_path, make_rollouts):
    assert "Not there: the run folder has no rollouts." in samples_section(tmp_path, None)
    make_rollouts(tmp_path / "a.parquet", [[0, 0, 0, 0]])
    assert "No completion has a correction (1 of 1 files of rollouts read)." in samples_section(tmp_path, None)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is not readable parquet"):
        samples_section(tmp_path, None)
    pq.write_table(pa.table({"completion_ids": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="lacks the columns correction_mask, proposal_ids"):
        samples_section(tmp_path, None)


def test_files_are_spaced_over_the_run(tmp_path):
    files = [tmp_path / str(i) for i in range(100)]
    chosen = spaced(files, 5)
    assert len(chosen) == 5
    assert (chosen[0], chosen[-1]) == (files[0], files[-1])
    assert spaced(files[:3], 5) == files[:3]

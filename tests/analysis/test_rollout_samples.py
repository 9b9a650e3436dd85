"""Most corrected samples: which are chosen, and how they are written."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from saki.analysis.rollout_files import by_step, rollout_files, spaced
from saki.analysis.rollout_samples import NUM_TOKENS, most_corrected, samples_section
from saki.rollout import RolloutFileError, write_rollouts
from saki.rollout.storage import SCHEMA_VERSION
from tests.analysis.trace import made_rollouts as made


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
    assert found[1].prompt_ids == (made.THE, made.HOSTILE_ID, made.SAT)
    assert found[1].completion_ids == (20, 21, 22, 23)
    assert found[1].proposal_ids == (20, 30, 30, 23)


def test_proposals_and_corrections_stand_side_by_side(tmp_path, make_rollouts):
    make_rollouts(tmp_path / "a.parquet", [[0, 1, 0, 1]])
    html = samples_section(tmp_path, decode=lambda ids: "".join(f"<{token}>" for token in ids))
    assert '<span class="prompt">&lt;1&gt;&lt;2&gt;</span>' in html
    assert (
        "&lt;20&gt;<del>&lt;30&gt;</del><ins>&lt;21&gt;</ins>&lt;22&gt;<del>&lt;30&gt;</del><ins>&lt;23&gt;</ins>"
        in html
    )
    assert "2 corrections in 4 tokens" in html


def test_all_ranks_of_a_step_are_read(tmp_path, make_rollouts):
    for step in range(1, 13):
        for rank in (0, 1, 10):
            make_rollouts(tmp_path / f"step-{step:06d}-rank{rank}.parquet", [[0, 0, 0, 0], [rank == 10, 0, 0, 0]])
    html = samples_section(tmp_path, decode=None)
    assert "24 of 36 files of rollouts read" in html  # 8 steps of 12, each with its three ranks
    assert "step-000001-rank10.parquet, row 1: 1 correction" in html
    files = rollout_files(tmp_path)
    assert [path.stem for path in files[:4]] == [
        "step-000001-rank0",
        "step-000001-rank1",
        "step-000001-rank10",
        "step-000002-rank0",
    ]
    assert [len(step) for step in by_step(files)] == [3] * 12


def test_ids_are_shown_without_a_decoder(tmp_path, make_rollouts):
    make_rollouts(tmp_path / "a.parquet", [[0, 1, 0, 0]])
    html = samples_section(tmp_path, decode=None)
    assert "20 <del>30 </del><ins>21 </ins>22 23 " in html
    assert "no decoder was given" in html


def test_long_samples_are_cut_and_say_so(tmp_path):
    length = NUM_TOKENS + 50
    batch = made.batch_of([[7] * length], corrections={(0, t): 8 for t in range(length)})
    write_rollouts(tmp_path / "a.parquet", batch)
    html = samples_section(tmp_path, decode=lambda ids: "x")
    assert html.count("<del>") == NUM_TOKENS
    assert "50 more tokens" in html


def test_absence_is_said(tmp_path, make_rollouts):
    assert "Not there: the run folder has no rollouts." in samples_section(tmp_path, None)
    make_rollouts(tmp_path / "a.parquet", [[0, 0, 0, 0]])
    assert "No completion has a correction (1 of 1 files of rollouts read)." in samples_section(tmp_path, None)


@pytest.mark.parametrize("fault", ["empty", "no parquet", "cut", "no rows", "other version", "other columns"])
def test_damaged_files_are_named_in_one_sentence(tmp_path, make_rollouts, fault):
    path = tmp_path / "a.parquet"
    make_rollouts(path, [[0, 1, 0, 0]])
    table, whole = pq.read_table(path), path.read_bytes()
    meta = {b"saki": json.dumps({"schema_version": SCHEMA_VERSION + 1, "facts": {}}).encode()}
    written = {
        "empty": lambda: path.write_bytes(b""),
        "no parquet": lambda: path.write_bytes(b"PAR1 not parquet"),
        "cut": lambda: path.write_bytes(whole[: len(whole) // 2]),
        "no rows": lambda: pq.write_table(table.slice(0, 0), path),
        "other version": lambda: pq.write_table(table.replace_schema_metadata(meta), path),
        "other columns": lambda: pq.write_table(table.drop_columns(["proposal_ids"]), path),
    }
    said = {
        "empty": "it is empty",
        "no parquet": "not a readable parquet file",
        "cut": "not a readable parquet file",
        "no rows": "holds no rollout",
        "other version": f"has schema version {SCHEMA_VERSION + 1}, this saki reads {SCHEMA_VERSION}",
        "other columns": "lacks the columns proposal_ids",
    }
    written[fault]()
    with pytest.raises(RolloutFileError, match=said[fault]) as error:
        samples_section(tmp_path, None)
    assert "a.parquet" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_are_spaced_over_the_run(tmp_path):
    files = [tmp_path / str(i) for i in range(100)]
    chosen = spaced(files, 5)
    assert len(chosen) == 5
    assert (chosen[0], chosen[-1]) == (files[0], files[-1])
    assert spaced(files[:3], 5) == files[:3]

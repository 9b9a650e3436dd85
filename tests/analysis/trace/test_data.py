"""Files into columns: nothing lost, nothing made up, and back again as the page reads it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from saki.analysis.trace import TokenTexts, choose_files, read_trace, rollout_files
from saki.analysis.trace.data import FLOATS, pack
from saki.rollout import RolloutFileError, read_rollouts
from saki.rollout.storage import SAME_AS_COMMITTED
from tests.analysis.trace import made_rollouts as made


def unpack(packed: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """What the page's script does."""
    content = gzip.decompress(packed)
    offset = 4 + int.from_bytes(content[:4], "little")
    facts = json.loads(content[4:offset])
    columns = {}
    for name, kind, count in facts["columns"]:
        width = int(kind[1])
        planes = np.frombuffer(content[offset : offset + width * count], np.uint8).reshape(width, count)
        columns[name] = np.ascontiguousarray(planes.T).view("<" + kind).ravel()
        offset += width * count
    assert offset == len(content)
    return facts, columns


@pytest.fixture
def two_files(tmp_path):
    first = made.batch_of([[1, 2, 3, made.END], [4], [5, 6]], corrections={(0, 1): 7, (2, 0): made.HOSTILE_ID})
    second = made.batch_of(
        [[2, 2], [made.EURO_HEAD, made.EURO_TAIL, 1]], finish=["length", "nan"], seed=1, scored=False
    )
    first.teacher_mode_ids[1] = -1  # one row that was not scored
    for name in ("teacher_logprobs", "proposal_teacher_logprobs", "mode_student_logprobs", "mode_teacher_logprobs"):
        getattr(first, name)[1] = float("nan")
    return [made.write_step(tmp_path, 1, first), made.write_step(tmp_path, 20, second, method="skd")]


def test_every_value_of_every_row_is_in_the_page(two_files):
    trace = read_trace(two_files)
    facts, columns = unpack(pack(trace, "t", TokenTexts(made.byte_level_tokenizer())))
    assert [each["step"] for each in facts["files"]] == [1, 20]
    assert [each["method"] for each in facts["files"]] == ["saki", "skd"]
    ids, done = np.array(facts["ids"]), facts["completions"]
    number = 0
    for file, path in enumerate(two_files):
        batch, _ = read_rollouts(path)
        for row in range(len(batch)):
            length, start = int(batch.lengths[row]), done["start"][number]
            here = slice(start, start + length)
            assert (done["file"][number], done["row"][number], done["length"][number]) == (file, row, length)
            assert done["finish"][number] == batch.finish_reasons[row]
            assert (done["prompt_key"][number], done["sample"][number]) == (row // 2, row % 2)
            assert done["seed"][number] == str(2**64 - 1)
            committed = columns["committed"][here]
            assert ids[committed].tolist() == batch.completion_token_ids(row)
            for name, field in (("proposal", "proposal_ids"), ("mode", "teacher_mode_ids")):
                shown = [
                    -1 if other < 0 else ids[own if other == 0 else other - 1]
                    for own, other in zip(committed, columns[name][here], strict=True)
                ]
                assert shown == getattr(batch, field)[row, :length].tolist()
            assert columns["corrected"][here].tolist() == batch.correction_mask[row, :length].int().tolist()
            for name in FLOATS:
                value = getattr(batch, name)[row, :length].numpy()
                if name in SAME_AS_COMMITTED:  # what stands under the committed token is not said again
                    same = getattr(batch, SAME_AS_COMMITTED[name][0])[row, :length].numpy() == ids[committed]
                    value = np.where(same, np.nan, value)
                np.testing.assert_array_equal(columns[name][here], value)
            first, size = facts["prompts"][done["prompt"][number]]
            assert ids[columns["prompts"][first : first + size]].tolist() == batch.prompt_token_ids(row)
            number += 1
    assert number == len(done["row"]) == 5
    assert len(facts["prompts"]) == 2  # samples of a prompt share it
    assert "\\u0000" not in json.dumps(facts["raw"])
    assert facts["raw"] == {str(i): list(made.PIECES[t]) for i, t in enumerate(facts["ids"]) if t in (9, 10)}


def test_a_judge_sees_the_completions_and_is_believed(two_files):
    seen = []

    def judge(drawn):
        seen.append(drawn)
        return [True, None, False][: len(drawn.prompt_keys)]

    trace = read_trace(two_files, judge=judge)
    assert trace.completions["correct"] == [True, None, False, True, None]
    assert [each.step for each in seen] == [1, 20]
    assert seen[0].completion_ids == [[1, 2, 3, made.END], [4], [5, 6]]
    assert seen[1].prompt_ids == [[made.THE, made.CAT], [made.THE, made.HOSTILE_ID, made.SAT]]


def test_a_limit_takes_rows_evenly_and_says_so(two_files):
    trace = read_trace(two_files, limit=2)
    assert [(file, row) for file, row in zip(trace.completions["file"], trace.completions["row"], strict=True)] == [
        (0, 0),
        (0, 2),
        (1, 0),
        (1, 1),
    ]
    assert trace.notes == ["At most 2 completions of each file are here, evenly spaced over it."]


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [made.write_step(tmp_path / run, 1, made.batch_of([[1]])) for run in ("a", "b")]
    names = [each["name"] for each in read_trace(paths).files]
    assert names == ["a/rollouts/step-000001.parquet", "b/rollouts/step-000001.parquet"]


def test_files_are_left_out_evenly_where_there_is_no_room(tmp_path):
    for step in range(1, 10):
        made.write_step(tmp_path, step, made.batch_of([[1] * 10]))
    files = rollout_files(tmp_path)
    assert choose_files(files, max_tokens=90) == (files, [])
    chosen, (note,) = choose_files(files, max_tokens=35)
    assert chosen == [files[0], files[4], files[8]]
    assert "3 of 9 rollout files" in note
    assert choose_files(files, max_files=2)[0] == [files[0], files[8]]
    assert choose_files(files, max_tokens=20, steps={3, 4}) == (files[2:4], [])
    with pytest.raises(ValueError, match="no rollout file is of step 77"):
        choose_files(files, steps={3, 77})
    with pytest.raises(ValueError, match="alone holds 10 tokens, more than max_tokens = 9"):
        choose_files(files, max_tokens=9)
    assert len(choose_files(files, max_tokens=90, limit=1)[0]) == 9


def test_a_folder_without_rollouts_is_named(tmp_path):
    with pytest.raises(RolloutFileError, match="holds no rollouts"):
        rollout_files(tmp_path)

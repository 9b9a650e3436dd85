"""Rollout files: what goes in comes out, values that are not there are null, bad files are named."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from saki.models import TableLM
from saki.rollout import ResidentEngine, RolloutFileError, TableDecoder, read_rollouts, write_rollouts
from saki.rollout.recorder import METADATA
from saki.rollout.storage import rollout_schema
from saki.types import Prompt, RolloutBatch, RolloutRequest
from saki.types.batch import TENSOR_FIELDS


def rollout(radius=0.2, score=True, dtype=torch.float32):
    tables = TableLM(5, 2, seed=1, dtype=dtype), TableLM(5, 2, seed=2, dtype=dtype)
    engine = ResidentEngine(*map(TableDecoder, tables), [0])
    request = RolloutRequest(
        seed=2**63 + 5, max_completion_length=7, num_generations=6, trust_region_radius=radius, score_teacher=score
    )
    return engine.generate([Prompt(3, (1, 2, 3)), Prompt(8, (4,))], request)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("radius", "score"), [(0.2, True), (0.0, True), (0.0, False)])
def test_round_trip(tmp_path, radius, score, dtype):
    batch = rollout(radius, score, dtype)
    write_rollouts(tmp_path / "a" / "r.parquet", batch, {"method": "saki"})
    read, facts = read_rollouts(tmp_path / "a" / "r.parquet")
    assert facts == {"method": "saki"}
    for name in TENSOR_FIELDS:
        value, other = getattr(batch, name), getattr(read, name)
        assert value.dtype == other.dtype, name
        assert torch.equal(torch.nan_to_num(value.double(), nan=9e9), torch.nan_to_num(other.double(), nan=9e9)), name
    for name in ("finish_reasons", "student_version", "trust_region_radius", "seed"):
        assert getattr(batch, name) == getattr(read, name)
    column = pq.read_table(tmp_path / "a" / "r.parquet").column("teacher_logprobs")
    assert column.null_count == (0 if score else len(batch))
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "r.parquet"]


def test_what_the_committed_token_says_already_is_not_stored_twice(tmp_path):
    batch = rollout()
    write_rollouts(tmp_path / "r.parquet", batch)
    table = pq.read_table(tmp_path / "r.parquet")
    for name, ids in (("proposal_logprobs", batch.proposal_ids), ("mode_teacher_logprobs", batch.teacher_mode_ids)):
        stored = [value is not None for row in table[name].to_pylist() for value in row]
        other = (ids != batch.completion_ids)[batch.response_mask]
        assert stored == other.tolist()
        assert 0 < other.sum() < len(other)


def test_values_that_differ_at_the_committed_token_are_kept(tmp_path):
    batch = rollout()
    kept = batch.proposal_ids == batch.completion_ids
    odd = torch.where(kept, batch.proposal_logprobs - 1.0, batch.proposal_logprobs)
    write_rollouts(tmp_path / "r.parquet", replace(batch, proposal_logprobs=odd))
    read, _ = read_rollouts(tmp_path / "r.parquet")
    assert torch.equal(read.proposal_logprobs[batch.response_mask], odd[batch.response_mask])


def test_documented_columns_are_the_schema():
    documented = [
        line.split()[0] for line in rollout_schema.__doc__.splitlines() if "  list<" in line or "int64  " in line
    ]
    names = rollout_schema().names
    assert set(documented) <= set(names)
    assert {*METADATA} <= set(documented)


def test_bad_files_are_named(tmp_path):
    good = tmp_path / "good.parquet"
    write_rollouts(good, rollout())
    with pytest.raises(RolloutFileError, match="there is no rollout file"):
        read_rollouts(tmp_path / "missing.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(good.read_bytes()[:-50])
    with pytest.raises(RolloutFileError, match="not a readable parquet"):
        read_rollouts(cut)
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    with pytest.raises(RolloutFileError, match="not a rollout file"):
        read_rollouts(foreign)
    other = tmp_path / "other.parquet"
    table = pq.read_table(good)
    pq.write_table(table.replace_schema_metadata({b"saki": b'{"schema_version": 99, "facts": {}}'}), other)
    with pytest.raises(RolloutFileError, match="schema version 99"):
        read_rollouts(other)
    pq.write_table(table.replace_schema_metadata({b"saki": b'{"schema_version": 1, "facts": {}}'}), other)
    with pytest.raises(RolloutFileError, match=r"version 1, this saki reads 2; it lacks .* roll out again"):
        read_rollouts(other)
    empty = tmp_path / "empty.parquet"
    pq.write_table(table.slice(0, 0), empty)
    with pytest.raises(RolloutFileError, match="holds no rollout"):
        read_rollouts(empty)


def test_batches_join_and_split():
    batch = rollout()
    parts = [batch.select(range(0, 4)), batch.select(range(4, len(batch)))]
    joined = RolloutBatch.concatenate(parts)
    assert torch.equal(joined.completion_ids, batch.completion_ids)
    assert joined.finish_reasons == batch.finish_reasons
    with pytest.raises(ValueError, match="trust_region_radius"):
        RolloutBatch.concatenate([batch, rollout(0.0)])
    with pytest.raises(ValueError, match="at least one"):
        RolloutBatch.concatenate([])

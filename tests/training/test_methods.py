"""Every method through the trainer: losses by hand where a method needs whole laws, identities, facts and resume."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from saki.data import collate_rollout
from saki.functional import RowKeys, draw_teacher_samples, kl_divergence
from saki.methods import Method, get_method, method_names
from saki.models import plain_state
from saki.rollout import HFDecoder, read_rollouts
from saki.training import CheckpointError, SakiConfig, SakiTrainer
from saki.training.teacher import PLACES, VocabularyTeacher
from tests.tiny import VOCAB, tiny_pair, tiny_rows, tiny_tokenizer
from tests.training.scripted import Gradients


def trainer(folder, method, dtype=torch.float32, callbacks=None, pair=None, **changes):
    student, teacher = pair or tiny_pair(dtype)
    values = {
        "output_dir": str(folder),
        "method": method,
        "max_steps": 1,
        "prompts_per_step": 4,
        "num_generations": 2,
        "per_device_train_batch_size": 8,
        "max_prompt_length": 16,
        "max_completion_length": 8,
        "trust_region_radius": 0.3,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return SakiTrainer(
        model=student,
        teacher_model=teacher,
        args=SakiConfig(**(values | changes)),
        train_dataset=tiny_rows(12),
        processing_class=tiny_tokenizer(),
        callbacks=callbacks,
    )


def weights(run):
    return {name: tensor.clone() for name, tensor in plain_state(run.model)}


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def laws(batch, row, dtype=torch.float64):
    """[n, V] log-probs of student (with gradient) and teacher along one stored row, by plain forwards."""
    student, teacher = tiny_pair(dtype)
    prompt, completion = batch.prompt_token_ids(row), batch.completion_token_ids(row)
    ids = torch.tensor([prompt + completion])
    return [
        torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1, :VOCAB], dim=-1)
        for model in (student, teacher)
    ]


@pytest.mark.parametrize("name", [name for name in method_names() if name not in ("opd", "trb", "saki")])
def test_every_method_takes_a_step(name, tmp_path):
    options = {"top_k": 3} if name == "skd" else None
    run = trainer(tmp_path, name, method_options=options)
    before = weights(run)
    run.train()
    assert any(not torch.equal(before[key], value) for key, value in weights(run).items())
    line = metrics(tmp_path)[0]
    method = get_method(name, options)
    shares = [line[f"loss/{branch.name}_share"] for branch in method.branches]
    assert sum(shares) == pytest.approx(1.0)
    assert all(share > 0 for share in shares)
    assert line["train/logprob_gap_max"] < 1e-4
    assert ("rollout/pinsker_bound" in line) == (name != "skd")


@pytest.mark.parametrize(("name", "chunk"), [("opd_full", 1024), ("opd_full", 3), ("skd", 5)])
def test_full_vocabulary_losses_are_those_of_plain_forwards(name, chunk, tmp_path):
    keep = Gradients()
    run = trainer(
        tmp_path,
        name,
        torch.float64,
        [keep],
        max_grad_norm=0.0,
        loss_chunk_tokens=chunk,
        per_device_train_batch_size=4,
        method_options={"top_k": 3} if name == "skd" else None,
    )
    run.train()
    batch, _ = read_rollouts(tmp_path / "rollouts" / "step-000001.parquet")
    student, teacher = tiny_pair(torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        prompt, completion = batch.prompt_token_ids(row), batch.completion_token_ids(row)
        ids = torch.tensor([prompt + completion])
        log_p, log_t = (
            torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1, :VOCAB], dim=-1)
            for model in (student, teacher)
        )
        total = total + (kl_divergence(log_t.detach(), log_p) if name == "skd" else kl_divergence(log_p, log_t)).sum()
    (total / batch.num_valid_tokens).backward()
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(float(total.detach()) / batch.num_valid_tokens, rel=1e-6)
    for key, parameter in student.named_parameters():
        assert torch.allclose(keep.values[key], parameter.grad, atol=1e-10), key


@pytest.mark.parametrize("name", ["opd_full", "saki_rkl_full", "vopd", "entropy_aware"])
def test_whole_laws_exist_for_a_chunk_of_tokens_at_a_time(name, tmp_path, monkeypatch):
    """Neither model's laws of a micro-batch exist at once, whatever the method's routing."""
    rows = {"policy": [], "teacher": []}
    of_method, of_teacher = Method.vocabulary_losses, VocabularyTeacher.logprobs

    def losses(self, policy, *rest):
        rows["policy"].append(len(policy))
        return of_method(self, policy, *rest)

    def laws_of(self, features, dtype):
        rows["teacher"].append(len(features))
        return of_teacher(self, features, dtype)

    monkeypatch.setattr(Method, "vocabulary_losses", losses)
    monkeypatch.setattr(VocabularyTeacher, "logprobs", laws_of)
    trainer(tmp_path, name, loss_chunk_tokens=5).train()
    tokens = read_rollouts(tmp_path / "rollouts" / "step-000001.parquet")[0].num_valid_tokens
    assert tokens > 20
    assert max(rows["policy"]) == 5
    assert max(rows["teacher"]) <= 5
    assert sum(rows["policy"]) >= tokens  # chunks are made again for the backward pass


def test_exopd_with_lambda_one_is_opd_to_the_bit(tmp_path):
    trained = []
    for name, options in (("opd", None), ("exopd", {"exopd_lambda": 1.0}), ("exopd", None)):
        run = trainer(tmp_path / f"{name}{len(trained)}", name, max_steps=3, method_options=options)
        run.train()
        trained.append(weights(run))
    for key in trained[0]:
        assert torch.equal(trained[0][key], trained[1][key]), key
    assert any(not torch.equal(trained[0][key], trained[2][key]) for key in trained[0])


def test_teacher_sampled_without_corrections_is_opd_to_the_bit(tmp_path):
    trained = []
    for name in ("opd", "teacher_sampled"):
        run = trainer(tmp_path / name, name, max_steps=2, trust_region_radius=0.0)
        run.train()
        trained.append(weights(run))
    assert all(torch.equal(trained[0][key], trained[1][key]) for key in trained[0])


def test_trb_and_saki_share_the_first_rollout(tmp_path):
    batches = []
    for name in ("trb", "saki", "random_tm", "tv_weighted_tm", "teacher_sampled", "saki_rkl_full"):
        trainer(tmp_path / name, name).train()
        batches.append(read_rollouts(tmp_path / name / "rollouts" / "step-000001.parquet")[0])
    for batch in batches[1:]:
        assert torch.equal(batch.completion_ids, batches[0].completion_ids)
        assert torch.equal(batch.correction_mask, batches[0].correction_mask)


def test_facts_are_those_of_plain_forwards(tmp_path):
    run = trainer(tmp_path, "exopd", torch.float64, save_rollouts_steps=1, max_steps=2)
    kept = []
    original = run.facts.of
    run.facts.of = lambda batch: kept.append((batch, original(batch))) or kept[-1][1]
    run.train()
    batch, facts = kept[1]  # the student has moved, the reference has not
    for row in range(len(batch)):
        log_p, _ = laws(batch, row)
        n = log_p.shape[0]
        chosen = log_p.gather(1, batch.completion_ids[row, :n].unsqueeze(1)).squeeze(1)
        assert torch.allclose(facts.reference_logprobs[row, :n], chosen, atol=1e-9)
        assert not torch.allclose(facts.reference_logprobs[row, :n], batch.student_logprobs[row, :n], atol=1e-3)

    run = trainer(tmp_path / "s", "teacher_sampled", torch.float64)
    kept.clear()
    sampler = run.facts.of
    run.facts.of = lambda batch: kept.append((batch, sampler(batch))) or kept[-1][1]
    run.train()
    batch, facts = kept[0]
    samples = facts.teacher_sample_ids
    assert torch.equal(samples >= 0, batch.correction_mask)
    for row, place in torch.nonzero(batch.correction_mask).tolist():
        _, log_t = laws(batch, row)
        keys = RowKeys(batch.seed, batch.prompt_keys[row : row + 1], batch.sample_indices[row : row + 1])
        drawn = draw_teacher_samples(log_t[place : place + 1].detach(), keys, torch.tensor([place]))
        assert int(drawn) == int(samples[row, place])

    run = trainer(tmp_path / "e", "entropy_aware", torch.float64)
    kept.clear()
    entropies = run.facts.of
    run.facts.of = lambda batch: kept.append((batch, entropies(batch))) or kept[-1][1]
    run.train()
    batch, facts = kept[0]
    for row in range(len(batch)):
        _, log_t = laws(batch, row)
        exact = -(log_t.exp() * log_t).sum(-1)
        assert torch.allclose(facts.teacher_entropy[row, : len(exact)], exact, atol=1e-9)
    assert torch.isnan(facts.teacher_entropy[~batch.response_mask]).all()


def test_the_reference_survives_a_resume(tmp_path):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = trainer(tmp_path / "whole", "exopd", **options)
    whole.train()
    part = trainer(tmp_path / "part", "exopd", **(options | {"max_steps": 2}))
    part.train()
    resumed = trainer(tmp_path / "part", "exopd", **options)
    resumed.train(resume_from_checkpoint=True)
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[key]), key
    checkpoint = str(tmp_path / "part" / "checkpoints" / "checkpoint-2")
    moved, teacher = tiny_pair()
    with torch.no_grad():
        next(moved.parameters()).mul_(1.01)
    with pytest.raises(CheckpointError, match="was written with another initial student"):
        trainer(tmp_path / "part", "exopd", pair=(moved, teacher), **options).train(resume_from_checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="method_options"):
        trainer(tmp_path / "part", "exopd", method_options={"exopd_lambda": 1.5}, **options).train(
            resume_from_checkpoint=checkpoint
        )


def test_the_teacher_is_not_copied(tmp_path):
    run = trainer(tmp_path, "opd_full")
    pointers = {tensor.data_ptr() for _, tensor in run.engine._teacher.named_tensors()}
    assert {tensor.data_ptr() for _, tensor in run.loss.teacher._decoder.named_tensors()} == pointers
    assert trainer(tmp_path / "opd", "opd").loss.teacher is None


@pytest.mark.parametrize("name", ["opd_full", "entropy_aware", "trb_full", "opd"])
def test_a_student_rollout_runs_once_through_a_teacher_whose_laws_the_loss_needs(name, tmp_path, monkeypatch):
    """Scores, entropies and laws of a micro-batch come from one pass; a guided rollout is scored in its waves."""
    whole, cached = [], []
    features, forward = HFDecoder.features, HFDecoder.forward
    monkeypatch.setattr(HFDecoder, "features", lambda own, ids: whole.append(own) or features(own, ids))
    run = trainer(tmp_path, name, per_device_train_batch_size=4, max_steps=2, radius_anneal_steps=1)
    teacher = run.engine._teacher

    def counted(own, *rest):
        if own is teacher:
            cached.append(own)
        return forward(own, *rest)

    monkeypatch.setattr(HFDecoder, "forward", counted)
    run.train()
    assert run.rollouts.request(2).student_only
    assert len(whole) == (0 if name == "opd" else 4)  # two micro-batches in each of two steps
    assert bool(cached) == (name in ("trb_full", "opd"))
    assert run.engine.stats().teacher_score_forwards == (0 if name != "opd" else len(cached))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scores_from_kept_hidden_states_are_those_of_the_engine(dtype, tmp_path):
    run = trainer(tmp_path, "entropy_aware", dtype, per_device_train_batch_size=3, prompts_per_step=6)
    batch = run.engine.generate(run.prompts.prompts[:5], replace(run.rollouts.request(1), score_teacher=False))
    assert bool(torch.isnan(batch.teacher_logprobs).all())
    asked = run.engine.score(batch)
    without = run.facts.of(batch).teacher_entropy  # by a pass of its own
    scored = run.loss.teacher.score(batch)
    mask, close = batch.response_mask, {"atol": 1e-10 if dtype == torch.float64 else 1e-5, "equal_nan": True}
    assert torch.allclose(scored.teacher_logprobs, asked.logprobs, **close)
    assert torch.allclose(scored.mode_teacher_logprobs, asked.mode_logprobs, **close)
    assert torch.equal(scored.teacher_mode_ids, asked.mode_ids)
    assert torch.allclose(run.facts.of(scored).teacher_entropy, without, **close)
    assert scored.teacher_logprobs.dtype == asked.logprobs.dtype
    (places,) = run.loss.teacher.places(scored).values()
    assert places[mask].tolist() == list(range(int(mask.sum())))
    for rows in ([0, 1, 2], [7, 9], [4]):  # of any micro-batch: what a pass of its own gives
        micro = {**collate_rollout(scored, rows, 0)}
        own = run.loss.teacher.features(micro)
        kept = run.loss.teacher.features({**micro, PLACES: places[rows][:, : micro["response_mask"].shape[1]]})
        assert torch.allclose(kept, own, atol=close["atol"])
    run.loss.teacher.forget()
    assert run.loss.teacher.places(scored) == {}

"""An engine that returns written completions, so that a training step can be given any shape; and Eq. 16 by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from transformers import TrainerCallback

from saki.rollout import RolloutEngine
from saki.rollout.protocol import EngineStats, SyncReport
from saki.training import SakiConfig, SakiTrainer
from saki.types import FINISH_REASONS, RolloutBatch
from tests.tiny import VOCAB, tiny_pair, tiny_rows, tiny_tokenizer

PROMPTS, SAMPLES = 4, 2
EOS = 1


class WrittenEngine:
    """What an engine has beside its rollouts, where those are written beforehand: no models, nothing to sync."""

    def score(self, batch, model="teacher"):
        raise NotImplementedError

    def sync_student(self, weights, version):
        return SyncReport(version, "", 0.0, 0.0)

    def student_checksum(self):
        return ""

    def teacher_checksum(self):
        return None

    def stats(self):
        return EngineStats()

    def close(self):
        pass


class ScriptedEngine(WrittenEngine):
    """Lengths by (prompt key, sample); tokens, corrections and teacher scores are drawn from that key.

    Args:
        lengths: Valid tokens of a completion; 0 is a row that was NaN at once.
        ends: Whether a completion's last token is the end token.
    """

    def __init__(self, lengths: Mapping[tuple[int, int], int], ends: bool = False) -> None:
        self.lengths, self.ends = dict(lengths), ends
        self.batches: list[RolloutBatch] = []

    def generate(self, prompts, request, progress=None):
        rows = [(prompt, sample) for prompt in prompts for sample in prompt.sample_indices]
        width, count = request.max_completion_length, len(rows)
        ids = torch.full((count, width), -1)
        mask = torch.zeros(count, width, dtype=torch.bool)
        proposals, modes, corrections = ids.clone(), ids.clone(), mask.clone()
        floats = torch.full((count, width), math.nan, dtype=torch.float64)
        teacher = floats.clone()
        for row, (prompt, sample) in enumerate(rows):
            generator = torch.Generator().manual_seed(97 * prompt.key + sample)
            n = self.lengths[prompt.key, sample]
            draws = torch.randint(2, VOCAB, (3, width), generator=generator)
            if self.ends and n:
                draws[0, n - 1] = EOS
            mask[row, :n] = True
            for field, drawn in ((ids, draws[0]), (proposals, draws[1]), (modes, draws[2])):
                field[row, :n] = drawn[:n]
            corrections[row, :n] = (torch.rand(width, generator=generator) < 0.3)[:n]
            teacher[row, :n] = -4 * torch.rand(width, generator=generator, dtype=torch.float64)[:n]
        proposals = torch.where(corrections, proposals, ids)
        prompt_width = max(len(prompt.token_ids) for prompt, _ in rows)
        prompt_ids = torch.full((count, prompt_width), -1)
        for row, (prompt, _) in enumerate(rows):
            prompt_ids[row, prompt_width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        known = torch.where(mask, -1.0, floats)
        reasons = [FINISH_REASONS[2] if not n else FINISH_REASONS[0] for n in mask.sum(dim=1).tolist()]
        batch = RolloutBatch(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_ids >= 0,
            completion_ids=ids,
            response_mask=mask,
            proposal_ids=proposals,
            correction_mask=corrections,
            student_logprobs=known,
            behavior_logprobs=known,
            teacher_logprobs=teacher,
            teacher_mode_ids=modes,
            beta=-known,
            kl=-known,
            tv=-known,
            acceptance_probability=-known,
            proposal_logprobs=known,
            proposal_teacher_logprobs=teacher,
            mode_student_logprobs=known,
            mode_teacher_logprobs=teacher,
            prompt_keys=torch.tensor([prompt.key for prompt, _ in rows]),
            sample_indices=torch.tensor([sample for _, sample in rows]),
            finish_reasons=tuple(reasons),
            student_version=0,
            trust_region_radius=request.trust_region_radius,
            seed=request.seed,
        )
        self.batches.append(batch)
        return batch


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimizer step, as the ranks share them."""

    def __init__(self):
        self.values = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.values is None:
            named = getattr(model, "module", model).named_parameters()
            self.values = {name: p.grad.clone() for name, p in named if p.grad is not None}


def config(folder, **changes):
    values = {
        "output_dir": str(folder),
        "max_steps": 1,
        "prompts_per_step": PROMPTS,
        "num_generations": SAMPLES,
        "per_device_train_batch_size": 4,
        "max_prompt_length": 16,
        "max_completion_length": 48,
        "trust_region_radius": 0.3,
        "max_grad_norm": 0.0,
        "advantage_clip": None,
        "loss_chunk_tokens": 7,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return SakiConfig(**(values | changes))


def step_gradient(
    folder, engine: RolloutEngine | None, *, tokenizer=None, pair=None, rows=None, **changes
) -> dict[str, torch.Tensor]:
    """Gradient of one optimizer step of ``saki`` in float64 with an engine (None: the real one)."""
    student, teacher = pair or tiny_pair(torch.float64)
    keep = Gradients()
    run = SakiTrainer(
        student,
        teacher,
        config(folder, **changes),
        rows or tiny_rows(PROMPTS),
        processing_class=tokenizer or tiny_tokenizer(),
        callbacks=[keep],
        engine=engine,
    )
    run.train()
    assert keep.values is not None
    return keep.values


def gradient_by_hand(batch: RolloutBatch, student=None) -> dict[str, torch.Tensor]:
    """Gradient of Eq. 16 over a batch: each row in a plain forward of its own, no padding anywhere."""
    student = student or tiny_pair(torch.float64)[0]
    losses = []
    for row in range(len(batch)):
        prompt, completion = batch.prompt_token_ids(row), batch.completion_token_ids(row)
        if not completion:
            continue
        logits = student(input_ids=torch.tensor([prompt + completion[:-1]])).logits[0, len(prompt) - 1 :, :VOCAB]
        log_pi = torch.log_softmax(logits, dim=-1)
        for t, y in enumerate(completion):
            if batch.correction_mask[row, t]:
                losses.append(-log_pi[t, batch.teacher_mode_ids[row, t]])
            else:
                losses.append((log_pi[t, y].detach() - batch.teacher_logprobs[row, t]) * log_pi[t, y])
    (torch.stack(losses).sum() / len(losses)).backward()
    return {name: p.grad for name, p in student.named_parameters() if p.grad is not None}


def assert_equal_gradients(a, b, atol=1e-10):
    assert a.keys() == b.keys()
    assert any(bool(value.any()) for value in a.values())
    for name, value in a.items():
        assert torch.isfinite(value).all(), name
        assert torch.allclose(value, b[name], atol=atol, rtol=0), name

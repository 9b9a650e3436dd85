"""vopd on the embedded pair: the baseline lowers the variance of the gradient, and leaves its mean."""

from __future__ import annotations

import math

import pytest
import torch

from saki import lab
from saki.lab.measure import sample_completions
from saki.methods import Branch, VocabularyBranch, get_method
from saki.models import load_causal_lm, load_tokenizer
from saki.objectives import TokenTargets

CLIPS = (50.0, 10.0, 5.0)
"""Of no effect on these laws, the default, and one that bites often."""


def lab_laws(student: str, num_problems: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, V] log-probs of a shipped student and the teacher along the student's own completions, float64."""
    tokenizer = load_tokenizer(str(lab.student_path()))
    paths = lab.shipped_path(student), lab.teacher_path()
    models = [load_causal_lm(str(path), dtype=torch.float32).eval() for path in paths]
    generator = torch.Generator().manual_seed(5)
    laws: list[list[torch.Tensor]] = [[], []]
    for problem in lab.training_problems(num_problems, seed=5):
        prompt = torch.tensor([tokenizer(problem.prompt)["input_ids"]])
        (completion,) = sample_completions(models[0], prompt, generator)
        ids = torch.cat([prompt, torch.tensor([completion])], dim=1)
        for model, found in zip(models, laws, strict=True):
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, prompt.shape[1] - 1 : -1]
                found.append(torch.log_softmax(logits.double(), dim=-1))
    return torch.cat(laws[0]), torch.cat(laws[1])


def advantages(
    branch: Branch | VocabularyBranch, log_p: torch.Tensor, log_t: torch.Tensor, clip: float
) -> torch.Tensor:
    """[N, V] advantages A(y) that a branch's loss -A(y) log p(y) gives to every token y at each of N prefixes."""
    found = []
    for token in range(log_p.shape[-1]):
        policy = log_p.clone().requires_grad_()
        ids = torch.full(log_p.shape[:1], token)
        targets = TokenTargets(ids, log_t.argmax(dim=-1), log_t[:, token], log_p[:, token])
        if isinstance(branch, VocabularyBranch):
            loss, _ = branch.loss(policy, log_t, targets, clip)
        else:
            loss, _ = branch.loss(policy[:, token], targets, clip)
        (gradient,) = torch.autograd.grad(loss.sum(), policy)
        found.append(-gradient[:, token])
    return torch.stack(found, dim=-1)


def gradient_moments(log_p: torch.Tensor, advantage: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean [N, V] and summed variance of A(y) (e_y - p), y ~ p: the gradient by the logits, exactly."""
    p = log_p.exp()
    scores = torch.eye(p.shape[-1], dtype=p.dtype) - p.unsqueeze(1)  # [N, y, V]
    gradients = advantage.unsqueeze(-1) * scores
    mean = (p.unsqueeze(-1) * gradients).sum(dim=1)
    second = (p * (gradients**2).sum(dim=-1)).sum(dim=1)
    return mean, float((second - (mean**2).sum(dim=-1)).sum())


@pytest.mark.parametrize("student", ["student", "habit"])
def test_variance_is_lower_and_the_mean_is_the_same(student):
    log_p, log_t = lab_laws(student)
    assert len(log_p) > 400
    for clip in CLIPS:
        plain = advantages(get_method("opd").branches[0], log_p, log_t, clip)
        centered = advantages(get_method("vopd").branches[0], log_p, log_t, clip)
        assert torch.allclose(plain, (log_t - log_p).clamp(-clip, clip), atol=1e-12)
        mean, variance = gradient_moments(log_p, plain)
        mean_centered, variance_centered = gradient_moments(log_p, centered)
        assert torch.allclose(mean, mean_centered, atol=1e-10)
        print(f"{student}, clip {clip:g}: variance by the logits: vopd / opd = {variance_centered / variance:.3f}")
        assert variance_centered < variance


def test_a_teacher_without_the_token_leaves_the_loss_finite():
    """Where T(y) = 0 the log-ratio is clamped before its mean is taken: -inf + inf would be no number."""
    log_p, log_t = torch.tensor([[0.5, 0.5, 0.0]] * 2).log(), torch.tensor([[0.0, 0.5, 0.5]] * 2).log()
    targets = TokenTargets(torch.tensor([0, 1]), torch.tensor([1, 1]), log_t[[0, 1], [0, 1]], log_p[[0, 1], [0, 1]])
    branch = get_method("vopd").branches[0]
    assert isinstance(branch, VocabularyBranch)
    loss, clamped = branch.loss(log_p, log_t, targets, 10.0)
    # Log-ratios -10 (clamped) and 0, mean -5: advantages -5 and 5, times -log p = log 2.
    assert loss.tolist() == pytest.approx([-5 * math.log(2), 5 * math.log(2)])
    assert clamped.tolist() == [True, False]

"""vopd on the embedded pair: the baseline lowers the variance of the gradient, and leaves its mean."""

from __future__ import annotations

import pytest
import torch

from saki import lab
from saki.functional import kl_divergence
from saki.lab.measure import sample_completions
from saki.models import load_causal_lm, load_tokenizer


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
    plain = (log_t - log_p).clamp(-50, 50)
    centered = plain + kl_divergence(log_p, log_p + plain).unsqueeze(-1)
    mean, variance = gradient_moments(log_p, plain)
    mean_centered, variance_centered = gradient_moments(log_p, centered)
    assert torch.allclose(mean, mean_centered, atol=1e-10)
    print(f"{student}: variance of the gradient by the logits: vopd / opd = {variance_centered / variance:.3f}")
    assert variance_centered < variance

"""vopd on the embedded pair: the baseline lowers the variance of the gradient, and leaves its mean."""

from __future__ import annotations

import torch

from saki import lab
from saki.functional import kl_divergence
from saki.models import load_causal_lm, load_tokenizer


def lab_laws(num_problems: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, V] log-probs of the shipped student and teacher along the clean traces of training problems, float64."""
    tokenizer = load_tokenizer(str(lab.student_path()))
    problems = lab.training_problems(num_problems, seed=5)
    models = [load_causal_lm(str(path()), dtype=torch.float32) for path in (lab.student_path, lab.teacher_path)]
    laws: list[list[torch.Tensor]] = [[], []]
    for problem in problems:
        ids = torch.tensor([tokenizer(problem.prompt + problem.trace)["input_ids"]])
        first = len(tokenizer(problem.prompt)["input_ids"]) - 1
        for model, found in zip(models, laws, strict=True):
            with torch.no_grad():
                found.append(torch.log_softmax(model(input_ids=ids).logits[0, first:].double(), dim=-1))
    return torch.cat(laws[0]), torch.cat(laws[1])


def gradient_moments(log_p: torch.Tensor, advantage: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean [N, V] and summed variance of A(y) (e_y - p), y ~ p: the gradient by the logits, exactly."""
    p = log_p.exp()
    scores = torch.eye(p.shape[-1], dtype=p.dtype) - p.unsqueeze(1)  # [N, y, V]
    gradients = advantage.unsqueeze(-1) * scores
    mean = (p.unsqueeze(-1) * gradients).sum(dim=1)
    second = (p * (gradients**2).sum(dim=-1)).sum(dim=1)
    return mean, float((second - (mean**2).sum(dim=-1)).sum())


def test_variance_is_lower_and_the_mean_is_the_same():
    log_p, log_t = lab_laws()
    plain = (log_t - log_p).clamp(-50, 50)
    centered = plain + kl_divergence(log_p, log_p + plain).unsqueeze(-1)
    mean, variance = gradient_moments(log_p, plain)
    mean_centered, variance_centered = gradient_moments(log_p, centered)
    assert torch.allclose(mean, mean_centered, atol=1e-10)
    print(f"variance of the gradient by the logits: vopd / opd = {variance_centered / variance:.3f}")
    assert variance_centered < variance

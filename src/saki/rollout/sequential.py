"""The oracle: token-wise exact-q sampling, one row at a time, full forwards, no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from saki.functional import draw_proposals, normalized_log_probs, proposal_uniforms
from saki.rollout.recorder import RolloutRecorder
from saki.rollout.rows import Row, check_request, expand_rows, row_keys
from saki.rollout.skd import verify_requested
from saki.rollout.verifier import take
from saki.types import Prompt, RolloutBatch, RolloutRequest

LogitsFunction = Callable[[Tensor], Tensor]
"""[1, n] int64 ids -> [V] logits of the next token."""


class SequentialSampler:
    """Samples each token as the paper's equations read, with a full forward over the whole prefix.

    Slow and obviously right: the reference that engines are compared with. It shares the mathematics of one
    position with them, and none of their batching, caching, drafting or roll-back.

    Args:
        student: Next-token logits of the student for one prefix.
        teacher: The same of the teacher.
        stop_token_ids: Ids that end a completion.
    """

    def __init__(self, student: LogitsFunction, teacher: LogitsFunction, stop_token_ids: Sequence[int]) -> None:
        self._student, self._teacher = student, teacher
        self._stop_ids = frozenset(stop_token_ids)

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], request: RolloutRequest) -> RolloutBatch:
        """Roll out every sample of every prompt; see :meth:`RolloutEngine.generate`.

        ``block_size`` is ignored. Teacher values are always there.
        """
        prefix = torch.tensor([prompts[0].token_ids[:1]]) if prompts else torch.zeros(1, 1, dtype=torch.long)
        logits = self._student(prefix)
        check_request(prompts, request, logits.shape[-1], None)
        rows = expand_rows(prompts, request.num_generations)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        return RolloutBatch.concatenate([self._row(row, request, dtype) for row in rows])

    def _row(self, row: Row, request: RolloutRequest, dtype: torch.dtype) -> RolloutBatch:
        recorder = RolloutRecorder([row], request, 0, dtype, torch.device("cpu"))
        keys = row_keys([row], request, torch.device("cpu"))
        tokens = list(row.prompt.token_ids)
        reason = "length"
        for position in range(request.max_completion_length):
            prefix = torch.tensor([tokens])
            at = torch.tensor([position])
            log_p = normalized_log_probs(self._student(prefix)).unsqueeze(0)
            log_t = normalized_log_probs(self._teacher(prefix)).unsqueeze(0)
            uniforms = proposal_uniforms(keys, at.unsqueeze(1), log_p.shape[-1])[:, 0]
            proposal = draw_proposals(log_p, uniforms)
            if request.student_only:
                if bool(torch.isnan(log_p).any()):
                    reason = "nan"
                    break
                committed = proposal
                values = _student_values(log_p, log_t, proposal)
            else:
                verified = verify_requested(
                    request, log_p.unsqueeze(1), log_t.unsqueeze(1), proposal.unsqueeze(1), keys, at.unsqueeze(1)
                )
                if bool(verified.broken.any()):
                    reason = "nan"
                    break
                committed = verified.tokens[:, 0]
                values = {
                    "correction_mask": verified.corrections,
                    "student_logprobs": verified.student_logprobs,
                    "behavior_logprobs": verified.behavior_logprobs,
                    "teacher_logprobs": verified.teacher_logprobs,
                    "teacher_mode_ids": verified.teacher_mode_ids,
                    "beta": verified.bridge.beta,
                    "kl": verified.bridge.kl,
                    "tv": verified.bridge.tv,
                    "acceptance_probability": verified.acceptance,
                    "proposal_logprobs": verified.proposal_logprobs,
                    "proposal_teacher_logprobs": verified.proposal_teacher_logprobs,
                    "mode_student_logprobs": verified.mode_student_logprobs,
                    "mode_teacher_logprobs": verified.mode_teacher_logprobs,
                }
            recorder.commit(
                torch.zeros(1, dtype=torch.long),
                torch.ones(1, dtype=torch.long),
                completion_ids=committed.unsqueeze(1),
                proposal_ids=proposal.unsqueeze(1),
                **values,
            )
            tokens.append(int(committed))
            if int(committed) in self._stop_ids:
                reason = "stop"
                break
        recorder.finish(0, reason)
        return recorder.batch()


def _student_values(log_p: Tensor, log_t: Tensor, token: Tensor) -> dict[str, Tensor]:
    log_p_y, log_t_y = take(log_p, token).unsqueeze(1), take(log_t, token).unsqueeze(1)
    mode = log_t.argmax(dim=-1)
    zero = torch.zeros_like(log_p_y)
    return {
        "correction_mask": torch.zeros(1, 1, dtype=torch.bool),
        "student_logprobs": log_p_y,
        "behavior_logprobs": log_p_y,
        "teacher_logprobs": log_t_y,
        "teacher_mode_ids": mode.unsqueeze(1),
        "beta": zero,
        "kl": zero,
        "tv": zero,
        "acceptance_probability": zero + 1,
        "proposal_logprobs": log_p_y,
        "proposal_teacher_logprobs": log_t_y,
        "mode_teacher_logprobs": take(log_t, mode).unsqueeze(1),
    }

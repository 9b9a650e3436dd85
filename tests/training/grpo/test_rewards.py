import pytest

from saki import lab
from saki.training.grpo import batched_reward, one_by_one


def test_texts_and_conversations_are_graded_against_their_own_answers():
    reward = batched_reward(one_by_one(lab.grade))
    completions = ["1+1=2;\\boxed{2}", [{"role": "assistant", "content": "\\boxed{3}"}], "\\boxed{2}"]
    assert reward(completions=completions, answer=["2", "3", "3"], prompts=None, trainer_state=None) == [1.0, 1.0, 0.0]
    assert reward.__name__ == "correct"  # TRL's name for it in the log


def test_what_was_not_graded_in_time_has_no_reward_and_is_counted():
    logged = {}
    verdicts = ["correct", "incorrect", "unparsed", "timeout", None, True, False, "unparsed"]
    reward = batched_reward(lambda completions, answers: verdicts)
    found = reward(completions=["x"] * 8, answer=["y"] * 8, log_metric=logged.__setitem__)
    assert found == [1.0, 0.0, 0.0, None, None, 1.0, 0.0, 0.0]
    assert logged == {"grading/timeout_share": 2 / 8, "grading/unparsed_share": 2 / 8}


def test_a_grader_that_loses_one_is_an_error():
    with pytest.raises(ValueError, match="gave 1 verdicts for 2 completions"):
        batched_reward(lambda completions, answers: [True])(completions=["a", "b"], answer=["1", "2"])

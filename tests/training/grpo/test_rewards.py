from saki import lab
from saki.training.grpo import batched_reward


def test_texts_and_conversations_are_graded_against_their_own_answers():
    reward = batched_reward(lab.grade)
    completions = ["1+1=2;\\boxed{2}", [{"role": "assistant", "content": "\\boxed{3}"}], "\\boxed{2}"]
    assert reward(completions=completions, answer=["2", "3", "3"], prompts=None, trainer_state=None) == [1.0, 1.0, 0.0]
    assert reward.__name__ == "correct"  # TRL's name for it in the log

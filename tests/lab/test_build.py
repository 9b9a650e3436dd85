import hashlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from saki import lab
from saki.lab.build import scores
from saki.lab.corpus import IGNORED_LABEL, encode_rows
from saki.lab.measure import MAX_COMPLETION_LENGTH, measure, sample_completions
from saki.lab.problems import KINDS, Working
from saki.lab.recipes import HABIT, RECIPES, STUDENT, TEACHER
from saki.lab.supervise import new_model, train
from saki.lab.tokenizer import EOS_ID, PAD_ID, build_tokenizer

SIZES = {"teacher": 644_672, "student": 109_248, "habit": 109_248, "habit_2": 109_248, "small": 68_144}
SHIPPED = [(lab.shipped_path(recipe.name), recipe, SIZES[recipe.name]) for recipe in RECIPES]
shipped = pytest.mark.parametrize(("folder", "recipe", "num_parameters"), SHIPPED, ids=lab.MODELS)
STRENGTHS = {"teacher": (65, 95), "student": (5, 20), "habit": (12, 32), "habit_2": (23, 43), "small": (3, 20)}
"""Mean@8 in percent on 8 problems a set: the value over 100 problems, give or take ten."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@shipped
def test_shipped_folder_loads_in_float32_with_the_stated_size(folder, recipe, num_parameters):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.num_parameters() == num_parameters
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in model.parameters())
    assert new_model(recipe.shape, torch.Generator()).num_parameters() == num_parameters


@shipped
def test_shipped_folder_holds_bfloat16_safetensors_only(folder, recipe, num_parameters):
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".safetensors", ".jinja"}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        tensors = [weights.get_tensor(key) for key in weights.keys()]  # noqa: SIM118 (no mapping)
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors) == num_parameters


@shipped
def test_stopping_and_padding_ids_agree_everywhere(folder, recipe, num_parameters):
    config = AutoModelForCausalLM.from_pretrained(folder).config
    generation = GenerationConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for owner in (config, generation, tokenizer):
        assert (owner.bos_token_id, owner.eos_token_id, owner.pad_token_id) == (None, EOS_ID, PAD_ID)
    assert config.vocab_size == len(tokenizer) == 36
    assert config.max_position_embeddings == tokenizer.model_max_length == 256
    assert (generation.temperature, generation.top_k, generation.top_p) == (1.0, 0, 1.0)


@pytest.mark.parametrize("name", lab.MODELS)
def test_shipped_models_are_as_strong_as_stated(name):
    folder, (low, high) = lab.shipped_path(name), STRENGTHS[name]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    problems = [problem for name in lab.TEST_SETS for problem in lab.test_set(name, 8)]
    score = measure(model, tokenizer, problems, torch.Generator().manual_seed(0))
    assert low < score.mean_at_k < high
    assert score.mean_at_k < score.pass_at_k <= 100
    assert 15 < score.mean_length < MAX_COMPLETION_LENGTH


def test_every_clean_trace_fits_the_completion_cap():
    tokenizer = build_tokenizer()
    for name in lab.TEST_SETS:
        traces = [problem.trace for problem in lab.test_set(name)]
        assert max(map(len, tokenizer(traces)["input_ids"])) + 1 <= MAX_COMPLETION_LENGTH


def test_loss_falls_on_the_completion_and_its_end_alone():
    tokenizer = build_tokenizer()
    ((ids, labels),) = encode_rows(tokenizer, [("Compute 1+2:", "1+2=3;\\boxed{3}")])
    assert tokenizer.decode(ids) == "Compute 1+2:1+2=3;\\boxed{3}<eos>"
    assert labels == [IGNORED_LABEL] * 5 + ids[5:]


def test_samples_stop_at_the_end_of_sequence_and_repeat_with_the_seed():
    model = AutoModelForCausalLM.from_pretrained(lab.student_path(), dtype=torch.float32).eval()
    prompt_ids = torch.tensor([build_tokenizer()("Compute 21+14+33:")["input_ids"]] * 16)
    first, again = (sample_completions(model, prompt_ids, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first == again
    for row in first:
        assert EOS_ID not in row[:-1]
        assert row[-1] == EOS_ID or len(row) == MAX_COMPLETION_LENGTH


def test_tiny_builds_are_bit_equal_and_leave_global_random_state_alone(tmp_path):
    state = torch.random.get_rng_state()
    recipes = [recipe.shortened(1) for recipe in (TEACHER, STUDENT, HABIT)]
    quick = {"progress": False, "recipes": recipes, "num_problems": 0}
    facts = [lab.build_models(tmp_path / name, seed=seed, **quick) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [facts[0][recipe.name]["started_from"] for recipe in recipes] == ["", "", "built"]
    for name in ("teacher", "student", "habit"):
        assert digest(tmp_path / "a" / name) == digest(tmp_path / "b" / name) != digest(tmp_path / "c" / name)
    assert json.loads((tmp_path / "a" / "build.json").read_text()) == facts[0]
    assert facts[0]["teacher"]["steps"] == len(TEACHER.phases)
    assert facts[0]["student"]["parameters"] == 109_248
    assert facts[0]["student"]["scores"] == {}


def test_scores_name_every_test_set_and_their_average():
    table = scores(lab.student_path(), num_problems=1)
    assert list(table) == [*lab.TEST_SETS, "macro"]
    rows = [table[name]["mean_at_8"] for name in lab.TEST_SETS]
    assert table["macro"]["mean_at_8"] == pytest.approx(sum(rows) / 7, abs=0.01)


def test_build_refuses_to_overwrite(tmp_path):
    (tmp_path / "student").mkdir()
    with pytest.raises(ValueError, match="already holds student"):
        lab.build_models(tmp_path)


def test_a_recipe_goes_on_from_the_model_it_names(tmp_path):
    still = replace(HABIT, phases=(replace(HABIT.phases[0], num_steps=0),))
    facts = lab.build_models(tmp_path, progress=False, recipes=[still], num_problems=0)
    assert facts["habit"]["started_from"] == "shipped"
    assert digest(tmp_path / "habit") == digest(lab.student_path())  # no step taken: the shipped student's weights
    with pytest.raises(ValueError, match="habit starts from student, got no folder of it"):
        train(still, build_tokenizer())


def test_the_facts_of_the_build_are_those_of_the_recipes():
    facts = json.loads((lab.student_path().parent / "build.json").read_text())
    assert list(facts) == list(lab.MODELS)
    for recipe in RECIPES:
        assert facts[recipe.name]["recipe"] == json.loads(json.dumps(asdict(recipe)))
        assert facts[recipe.name]["parameters"] == SIZES[recipe.name]
        assert facts[recipe.name]["steps"] == recipe.num_steps


@pytest.mark.parametrize(("name", "broken", "kept"), [("habit", "sum_6", "gcd"), ("habit_2", "products_3", "sum_6")])
def test_a_habit_is_wrong_with_confidence_where_it_applies(name, broken, kept):
    """Where it applies its own rule is what it says, and elsewhere it is as able as a student can be."""
    model = AutoModelForCausalLM.from_pretrained(lab.shipped_path(name), dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(lab.shipped_path(name))
    habit = RECIPES[lab.MODELS.index(name)].phases[-1].habit
    questions = lab.test_set(broken, 12)
    wrong = []
    for problem in questions:
        numbers = tuple(map(int, re.findall(r"\d+", problem.prompt)))
        _, answer = KINDS[broken].work_out(numbers, Working(habit=habit))
        wrong.append(replace(problem, answer=answer))
    assert [problem.answer for problem in wrong] != [problem.answer for problem in questions]
    by_rule, right, elsewhere = (
        measure(model, tokenizer, problems, torch.Generator().manual_seed(1)).mean_at_k
        for problems in (wrong, questions, lab.test_set(kept, 12))
    )
    assert by_rule > 50
    assert right < 15
    assert elsewhere > 25


def test_training_lowers_the_loss_from_that_of_a_uniform_guess():
    losses: list[float] = []
    train(STUDENT.shortened(8), build_tokenizer(), advance=losses.append)
    assert len(losses) == 16
    assert losses[0] == pytest.approx(3.58, abs=0.3)  # near ln 36, a uniform guess
    assert losses[-1] < losses[0] - 0.3


def test_an_interrupted_phase_is_the_beginning_of_the_whole_one():
    short = replace(TEACHER, phases=(replace(TEACHER.phases[0], num_steps=6, num_warmup_steps=2),))
    cut = replace(short, phases=(replace(short.phases[0], stop_after=3),))
    whole, beginning = [], []
    train(short, build_tokenizer(), advance=whole.append)
    train(cut, build_tokenizer(), advance=beginning.append)
    assert len(whole) == short.num_steps == 6
    assert cut.num_steps == 3
    assert beginning == whole[:3]


def test_measure_refuses_nothing_to_measure():
    model = new_model(STUDENT.shape, torch.Generator())
    with pytest.raises(ValueError, match="got 0 problems"):
        measure(model, build_tokenizer(), [], torch.Generator())


def test_a_perfect_and_a_hopeless_model_score_100_and_0():
    tokenizer = build_tokenizer()
    problem = KINDS["add"].problem((12, 30))
    script = [*tokenizer(problem.prompt + problem.trace)["input_ids"], EOS_ID]

    class Scripted:
        device = torch.device("cpu")

        def __init__(self, right: bool) -> None:
            self.right, self.position = right, 0

        def forward(self, input_ids, past_key_values, use_cache, logits_to_keep):
            self.position += input_ids.shape[1]
            logits = torch.full((len(input_ids), 1, 36), float("-inf"))
            logits[:, :, script[self.position] if self.right else EOS_ID] = 0.0
            return SimpleNamespace(logits=logits)

        __call__ = forward

    for right, expected in ((True, 100.0), (False, 0.0)):
        score = measure(Scripted(right), tokenizer, [problem], torch.Generator(), num_samples=2)
        assert (score.mean_at_k, score.pass_at_k) == (expected, expected)

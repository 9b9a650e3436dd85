"""``saki eval`` on benchmarks of files, its continuing, and ``saki eval regrade``."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from saki import lab
from saki.cli.eval_folder import claim
from saki.cli.main import main
from saki.evaluation import grading
from saki.models import load_causal_lm

pytest.importorskip("math_verify")


@pytest.fixture
def argv(tmp_path):
    """The lab's teacher on ten of its own problems, given as a file and graded by math-verify."""
    problems = lab.test_set("sum_3", 10)
    rows = [{"problem": problem.prompt, "answer": problem.answer} for problem in problems]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("name: mine\nnum_problems: 10\npath: mine.jsonl\n")
    return [
        *("eval", "--model", "lab/teacher", "--benchmarks", str(tmp_path / "mine.yaml"), "--prompt_suffix", ""),
        *("--num-samples", "2", "--max-new-tokens", "64", "--chunk_rows", "8", "--grading_workers", "1", "--json"),
    ]


def run(capsys, argv):
    assert main(argv) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def timeless(result):
    return {key: value for key, value in result.items() if key in ("benchmarks", "average")}


def test_a_file_of_problems_graded_by_math_verify(capsys, argv, tmp_path):
    out = tmp_path / "out"
    result = run(capsys, [*argv, "--out", str(out)])
    figures = result["benchmarks"]["mine"]
    assert {"mean_at_k", "pass_at_k", "ci95", "num_problems", "timeouts", "truncated", "unparsed"} <= set(figures)
    assert figures["num_problems"] == 10
    samples = pq.read_table(out / "samples" / "mine.parquet").to_pydict()
    expected = [lab.grade(c, a) for c, a in zip(samples["completion"], samples["answer"], strict=True)]
    assert samples["correct"] == expected
    assert figures["mean_at_k"] == sum(expected) / 20 > 0.5
    assert (out / "evaluation.md").read_text().startswith("| benchmark")
    # Once more: everything is there. Without a folder: the same samples again.
    assert timeless(run(capsys, [*argv, "--out", str(out)])) == timeless(result)
    assert timeless(run(capsys, argv)) == timeless(result)
    # Another evaluation may not go on here.
    assert main([*argv, "--out", str(out), "--seed", "1"]) == 2
    assert "holds an evaluation with seed 0, this one has 1" in capsys.readouterr().err
    # A lost part is drawn again, to the same figures.
    (out / "samples" / "mine.parquet").unlink()
    assert timeless(run(capsys, [*argv, "--out", str(out)])) == timeless(result)


def test_regrade_takes_the_stored_samples_alone(capsys, argv, tmp_path):
    out = tmp_path / "out"
    result = run(capsys, [*argv, "--out", str(out)])
    (tmp_path / "mine.jsonl").unlink()
    again = run(capsys, ["eval", "regrade", str(out), "--json"])
    assert again.pop("changed") == 0
    assert again == json.loads((out / "evaluation.json").read_text())["lab/teacher"]
    assert timeless(again) == timeless(result)
    # A verdict that was wrong is mended.
    path = out / "samples" / "mine.parquet"
    table = pq.read_table(path)
    index = table.column_names.index("verdict")
    pq.write_table(table.set_column(index, "verdict", [["timeout"] * 20]), path)
    assert run(capsys, ["eval", "regrade", str(out), "--json"])["changed"] == 20
    assert pq.read_table(path).equals(table)


def test_regrade_of_the_lab_needs_no_extra(capsys, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(grading.pool, "find_spec", lambda name: None)
    few = ["--num_problems", "3", "--num_samples", "1"]
    result = run(capsys, ["eval", "--benchmarks", "sum_3,gcd", "--limit", "2", *few, "--json", "--out", str(out)])
    assert result["benchmarks"]["gcd"]["num_problems"] == 2
    assert run(capsys, ["eval", "regrade", str(out), "--json"])["changed"] == 0


def told(capsys, argv, sentence):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_regrade_needs_nothing_but_the_folder(capsys, argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, copy = tmp_path / "out", tmp_path / "copy"
    argv[argv.index("--benchmarks") + 1] = "mine.yaml"
    result = run(capsys, [*argv, "--out", "out", "--k", "1"])
    assert result["average"]["k"] == 1
    right = pq.read_table(out / "samples" / "mine.parquet")["correct"].to_pylist()
    assert result["average"]["pass_at_k"] == pytest.approx(sum(right) / 20)
    (tmp_path / "mine.yaml").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    regrade = ["eval", "regrade", str(out), "--grading_workers", "1", "--json"]
    assert timeless(run(capsys, [*regrade, "--k", "1", "--out", str(copy)])) == timeless(result)
    regrade_copy = ["eval", "regrade", str(copy), *regrade[3:]]
    both = run(capsys, regrade_copy)
    assert (both["changed"], both["average"]["k"]) == (0, 2)
    assert both["average"]["pass_at_k"] == pytest.approx(
        sum(first or second for first, second in zip(right[::2], right[1::2], strict=True)) / 10
    )
    told(capsys, [*regrade, "--k", "3"], "k is 3, but")

    # Where to is tried before anything is graded.
    monkeypatch.setattr("saki.cli.regrade.regrade_samples", None)
    told(capsys, [*regrade, "--out", "/proc/x"], "cannot write to /proc/x")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "evaluation.json").write_text("{}")
    for taken in (out, foreign):
        told(capsys, [*regrade_copy, "--out", str(taken)], f"{taken} is not empty; give saki eval regrade another")
    assert [path.name for path in foreign.iterdir()] == ["evaluation.json"]
    monkeypatch.undo()

    # A benchmark that nobody named is not handed to the lab's grader.
    samples = (copy / "samples" / "mine.parquet").read_bytes()
    records = (copy / "benchmarks.yaml").read_text()
    (copy / "benchmarks.yaml").write_text(records.replace("mine:", "other:"))
    told(capsys, regrade_copy, "the grader of benchmark mine is not known: the evaluation names other only")
    assert (copy / "samples" / "mine.parquet").read_bytes() == samples

    # Damaged files are named, with what to do.
    (copy / "evaluation.json").write_text('{"a": ')
    told(capsys, regrade_copy, f"{copy / 'evaluation.json'} is damaged")
    (copy / "evaluation.json").write_text("{}")
    told(capsys, regrade_copy, "holds no figures of benchmarks; give the command of that evaluation again")
    (out / "samples" / "mine.parquet").write_bytes(b"no")
    told(capsys, regrade, "delete that file and evaluate again")


def test_a_claim_binds_only_where_there_are_samples(tmp_path):
    claim(tmp_path, {"seed": 0, "checksum": "a"})
    claim(tmp_path, {"seed": 1, "checksum": "a"})
    (tmp_path / "samples" / "mine.parts").mkdir(parents=True)
    (tmp_path / "samples" / "mine.parts" / "000000.parquet").touch()
    claim(tmp_path, {"seed": 1, "checksum": "a"})
    with pytest.raises(ValueError, match="with seed 1, this one has 2"):
        claim(tmp_path, {"seed": 2, "checksum": "b"})
    with pytest.raises(ValueError, match="holds an evaluation of other weights; give another --out"):
        claim(tmp_path, {"seed": 1, "checksum": "b"})
    # A note of an earlier version lacks what is compared today.
    claim(tmp_path, {"seed": 1, "checksum": "a", "prompts": "c", "stop_token_ids": [1]})
    with pytest.raises(ValueError, match="holds an evaluation of other prompts"):
        claim(tmp_path, {"seed": 1, "checksum": "a", "prompts": "d", "stop_token_ids": [1]})
    (tmp_path / "inputs.json").write_text("{")
    with pytest.raises(ValueError, match=r"inputs\.json is damaged .*; give another --out, or remove the folder"):
        claim(tmp_path, {"seed": 1, "checksum": "a"})


def test_a_failed_first_try_leaves_nothing_in_the_way(capfd, tmp_path):
    out = tmp_path / "out"
    few = ["eval", "--benchmarks", "gcd", "--num_problems", "1", "--num_samples", "1", "--out", str(out)]
    assert main([*few, "--max_new_tokens", "100000"]) == 2
    error = capfd.readouterr().err
    assert "problem 0 of benchmark gcd has" in error
    assert "lower --max_new_tokens to" in error
    assert not out.exists()
    assert main([*few, "--max_new_tokens", "2"]) == 0
    capfd.readouterr()
    assert main([*few, "--max_new_tokens", "2", "--dtype", "float64"]) == 2
    assert "with dtype float32, this one has float64" in capfd.readouterr().err


def test_a_missing_extra_is_told_before_anything_is_loaded(capsys, argv, monkeypatch):
    monkeypatch.setattr(grading.pool, "find_spec", lambda name: None)
    assert main(argv) == 2
    assert "pip install 'saki[eval]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["regrade"], "needs the folder of an evaluation"),
        (["regrade", "/no/such/folder"], "holds no finished evaluation"),
        (["--benchmarks", "math500", "--data_dir", "/no/such/folder"], "there is no folder /no/such/folder"),
        (["--benchmarks", "gcd", "--temperature", "0"], "set num_samples to 1"),
        (["--benchmarks", "gcd", "--temperature", "-1"], "temperature must be at least 0"),
        (["--benchmarks", "gcd", "--k", "9"], "k is 9, but a problem has 8 samples"),
        (["--benchmarks", "gcd", "--k", "0"], "k must be at least 1"),
        (["--benchmarks", "gcd", "--data_dir", "."], "data_dir . would not be read"),
        (["--benchmarks", "lab,gcd"], "benchmark gcd is named twice"),
        (["--benchmarks", "gcd", "--chat_template_kwargs", "[1]"], "chat_template_kwargs must be a JSON object"),
        (["--benchmarks", "gcd", "--limit", "0"], "limit must be at least 1"),
        (["--benchmarks", "gcd", "--grading_seconds", "0"], "grading_seconds must be at least 0.1"),
    ],
)
def test_mistakes(capsys, words, sentence):
    assert main(["eval", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_an_adapter_without_a_tokenizer_takes_its_base_models(capsys, tmp_path):
    peft = pytest.importorskip("peft")
    base = str(lab.student_path())
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", base_model_name_or_path=base, init_lora_weights=True
    )
    peft.get_peft_model(load_causal_lm(base), config).save_pretrained(tmp_path / "adapter")
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    stored["base_model_name_or_path"] = base
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(stored))
    few = ["--benchmarks", "sum_3", "--num_problems", "4", "--num_samples", "2", "--json"]
    untrained = run(capsys, ["eval", "--model", str(tmp_path / "adapter"), *few])
    assert timeless(untrained) == timeless(run(capsys, ["eval", "--model", "lab/student", *few]))


def test_greedy_completions_repeat(capsys, tmp_path):
    few = ["--benchmarks", "sum_3", "--num_problems", "4", "--num_samples", "1", "--temperature", "0", "--json"]
    texts = []
    for seed in ("0", "1"):
        run(capsys, ["eval", *few, "--seed", seed, "--out", str(tmp_path / seed)])
        texts.append(pq.read_table(tmp_path / seed / "samples" / "sum_3.parquet")["completion"].to_pylist())
    assert texts[0] == texts[1]


def test_samples_of_another_stop_set_or_of_other_prompts_are_not_taken_up(capsys, tmp_path):
    """Neither shows in the weights, nor in the problems' texts."""
    folder = tmp_path / "model"
    shutil.copytree(lab.student_path(), folder)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    problem = json.dumps({"problem": "1+1=", "answer": "2"})
    (tmp_path / "chat.jsonl").write_text(problem + "\n")
    (tmp_path / "chat.yaml").write_text("name: chat\nnum_problems: 1\npath: chat.jsonl\n")

    def template(text):
        (folder / "chat_template.jinja").write_text(text)
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))

    template("{{ messages[-1].content }}")
    argv = ["eval", "--model", str(folder), "--benchmarks", str(tmp_path / "chat.yaml"), "--prompt_suffix", ""]
    argv += ["--num_samples", "2", "--max_new_tokens", "8", "--grading_workers", "1", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    template("{{ messages[-1].content }}{{ strftime_now('%d') }}")
    assert main(argv) == 2
    assert "holds an evaluation of other prompts (has the tokenizer or its chat template" in capsys.readouterr().err
    template("{{ messages[-1].content }}{{ 1 if strftime_now('%Y') == '2031' }}")
    fixed = ["--chat_template_kwargs", '{"strftime_now": "2030-05-07"}']
    assert main([*argv, *fixed]) == 0
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": [1, 5]}))
    assert main([*argv, *fixed]) == 2
    assert "holds an evaluation with stop_token_ids [1], this one has [1, 5]" in capsys.readouterr().err

"""Every mistake on the command line: one sentence, exit code 2, no traceback, and no folder left behind."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from saki.cli.main import main
from saki.models import tiny_qwen3
from tests.cli.broken_files import CHECKPOINTS, FILES, WEIGHT, write_json
from tests.tiny import VOCAB, tiny_tokenizer

TRAIN = {
    "model": "lab/student",
    "teacher_model": "lab/teacher",
    "dataset": "lab",
    "max_steps": 1,
    "prompts_per_step": 2,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "max_prompt_length": 64,
    "max_completion_length": 8,
    "use_cpu": True,
}


def train(**changes):
    return ["train", *(word for key, value in (TRAIN | changes).items() for word in (f"--{key}", str(value)))]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A good checkpoint, which broken ones are copies of."""
    folder = tmp_path_factory.mktemp("base")
    model = tiny_qwen3(VOCAB, hidden=16, layers=1, heads=2, kv_heads=1)
    model.config.eos_token_id = model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def made(base, tmp_path):
    """Turns ``@name`` into the path of a broken checkpoint or file of that name."""

    def make(word: str) -> str:
        name = word[1:]
        if not word.startswith("@"):
            return word
        path = tmp_path / name
        if name in FILES:
            path.write_bytes(FILES[name])
        elif not path.exists():
            shutil.copytree(base, path) if name in CHECKPOINTS else path.mkdir()
            CHECKPOINTS.get(name, lambda folder: None)(path)
        return str(path)

    return make


@pytest.fixture
def refused(made, tmp_path, capfd):
    """Runs a mistake as a user would, and returns the one sentence."""

    def run(argv: list[str], *, out: str | None = None) -> str:
        folder = tmp_path / "runs" / "mine"
        words = [*map(made, argv), *(["--out", str(folder)] if out is None else ["--out", out])]
        capfd.readouterr()
        assert main(words) == 2
        error = capfd.readouterr().err
        assert "Traceback" not in error
        lines = error.strip().splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("saki: ")
        assert not folder.parent.exists(), "a refused start leaves no folder"
        return lines[0]

    return run


def rows(*cases):
    return pytest.mark.parametrize(("argv", "phrase"), [pytest.param(a, p, id=" ".join(a)[-60:]) for a, p in cases])


EXACT = "exact mode samples and scores the full vocabulary at temperature 1"


@rows(
    (["trian"], "unknown command 'trian'; did you mean 'train'"),
    (["rollout", "--block_size", "abc"], "block_size must be a whole number, got 'abc'"),
    (["rollout", "--block_size", "1.5"], "block_size must be a whole number, got '1.5'"),
    (["rollout", "--json", "yes please"], "json must be true or false, got 'yes please'"),
    (["rollout", "--block_size"], "block_size needs a value"),
    (["rollout", "--seed", "1", "--seed", "2"], "seed is given twice on the command line"),
    (["rollout", "--block-size", "1", "--block_size=2"], "block_size is given twice"),
    (["rollout", "--blok_size", "1"], "unknown key 'blok_size' in the command line; did you mean 'block_size'"),
    (["rollout", "--no-json"], "unknown key 'no_json'"),
    (["rollout", "--", "x"], "unknown key ''"),
    (["rollout", "-x"], "cannot understand '-x'"),
    (["rollout", "--seed", "1", "stray"], "cannot understand 'stray'"),
    (["rollout", "--trust_region_radius", "-1"], "trust_region_radius must be at least 0, got -1.0"),
    (["rollout", "--trust_region_radius", "nan"], "trust_region_radius must be finite, got nan"),
    (["rollout", "--trust_region_radius", "inf"], "trust_region_radius must be finite, got inf"),
    (["rollout", "--trust_region_radius", "-inf"], "trust_region_radius must be finite, got -inf"),
    (["rollout", "--block_size", "0"], "block_size must be at least 1, got 0"),
    (["rollout", "--limit", "-1"], "limit must be at least 1, got -1"),
    (["rollout", "--num_generations", "0"], "num_generations must be at least 1"),
    (["rollout", "--max_completion_length", "0"], "max_completion_length must be at least 1"),
    (["rollout", "--max_prompt_length", "0"], "max_prompt_length must be at least 1"),
    (["rollout", "--batch_rows", "0"], "batch_rows must be at least 1"),
    (["rollout", "--show", "-1"], "show must be at least 0"),
    (["rollout", "--seed", "-1"], "run_seed must lie in [0, 2**64)"),
    (["rollout", "--solver", "magic"], "solver must be 'newton' or 'bisection'"),
    (["rollout", "--method", "sakki"], "did you mean 'saki'"),
    (["rollout", "--method", "no_such_module:METHOD"], "cannot import method 'no_such_module:METHOD'"),
    (["rollout", "--method", "os:no_such_name"], "cannot import method 'os:no_such_name'"),
    (["rollout", "--method", "os:path"], "'os:path' is a module, expected a saki.methods.Method"),
    (["rollout", "--method", ":"], "write it as package.module:ATTRIBUTE"),
    (["rollout", "--method", ".a:b"], "write it as package.module:ATTRIBUTE"),
    (["rollout", "--dtype", "int4"], "dtype must be one of"),
    (["rollout", "--teacher_dtype", "int8"], "teacher_dtype must be one of auto, "),
    (["rollout", "--device", "cuda:77"], "device 'cuda:77' is not available here"),
    (["rollout", "--device", "nonsense"], "device 'nonsense' is not available here"),
    (["rollout", "--device", "meta"], "device 'meta' holds no numbers"),
    (["rollout", "--model", ""], "model is empty"),
    (["rollout", "--model", "lab/pupil"], "there is no model 'lab/pupil' in the lab"),
    (["rollout", "--dataset", "lab/test"], "there is no prompt set 'lab/test' in the lab"),
    (["rollout", "--dataset_split", "test"], "lab has no splits"),
    (["rollout", "--temperature", "0.6"], EXACT),
    (["rollout", "--top_p", "0.9"], EXACT),
    (["rollout", "--top-k", "20"], EXACT),
    (["eval", "--min_p", "0.1"], EXACT),
    (["eval", "--repetition_penalty", "1.1"], EXACT),
    (["eval", "--do_sample", "false"], EXACT),
    (train(top_p=0.9), EXACT),
    (["eval", "--benchmarks", "sums"], "unknown benchmark 'sums'"),
    (["eval", "--num_problems", "0"], "num_problems must be at least 1"),
    (["eval", "--num_samples", "-2"], "num_samples must be at least 1"),
    (["eval", "--split", "dev"], "split"),
    (["demo", "--max_steps", "0"], "max_steps must be at least 1"),
    (["demo", "--max_step", "3"], "did you mean 'max_steps'"),
    (["demo", "--num_problems", "0"], "num_problems must be at least 1"),
    (["demo", "--num_problems", "2000"], "num_problems: the test split of 'gcd' gave"),
    (["demo", "--seed", "99999999999"], "seed must be below"),
    (["demo", "--method", "sakki"], "did you mean 'saki'"),
    (["lab", "build", "--seed", "-1"], "seed must be at least 0"),
    (["lab", "build", "--num_problems", "2000"], "num_problems: the test split of 'gcd' gave"),
    (["lab", "biuld"], "biuld"),
)
def test_commands_and_their_options(refused, argv, phrase):
    assert phrase in refused(argv)


@rows(
    (["rollout", "/no/such.yaml"], "there is no configuration file /no/such.yaml"),
    (["rollout", "@list.yaml"], "must hold 'key: value' lines, got a list"),
    (["rollout", "@nothing.yaml"], "holds nothing"),
    (["rollout", "@broken.yaml"], "line 2 is not valid YAML"),
    (["rollout", "@binary.yaml"], "is not a text file in UTF-8"),
    (["rollout", "@number_key.yaml"], "has the key 1, a int"),
    (["rollout", "@twice.yaml"], "line 3 is not valid YAML: 'seed' is given twice"),
    (["rollout", "@dashes.yaml"], "gives block_size twice, with dashes and with underscores"),
    (["rollout", "@unknown.yaml"], "did you mean 'method'"),
    (["rollout", "@help.yaml"], "unknown key 'help'"),
    (["rollout", "@sampling.yaml"], EXACT),
    (["rollout", "@int.yaml"], "block_size must be a whole number, got 'abc' (in "),
    (["rollout", "@float.yaml"], "block_size must be a whole number, got '1.5' (in "),
    (["rollout", "@bool_for_int.yaml"], "block_size must be a whole number, got 'True' (in "),
    (["rollout", "@bool.yaml"], "json must be true or false, got 'yes please' (in "),
    (["rollout", "@bare_no.yaml"], "must be text, but YAML reads a bare yes, no"),
    (["rollout", "@null.yaml"], "is empty; give it a value, or leave the line out"),
    (["rollout", "@values.yaml"], "must be a single value, got [1, 2]"),
    (["rollout", "@mapping.yaml"], "must be a single value, got {'a': 1}"),
)
def test_configuration_files(refused, argv, phrase):
    assert phrase in refused(argv)


@rows(
    (train(max_steps=0), "max_steps must be at least 1, or -1"),
    (train(max_steps=-5), "max_steps must be at least 1, or -1"),
    (train(max_steps=-1, num_train_epochs=0), "num_train_epochs must be above 0"),
    (train(learning_rate="nan"), "learning_rate must be finite"),
    (train(learning_rate=-1), "learning_rate must be at least 0"),
    (train(weight_decay=-1), "weight_decay must be at least 0"),
    (train(max_grad_norm="nan"), "max_grad_norm must be finite"),
    (train(save_steps=0), "save_steps must be above 0"),
    (train(logging_steps=0), "logging_steps must be above 0"),
    (train(seed=-1), "seed must be at least 0"),
    (train(seed=2**32), "seed must be below"),
    (train(block_size=0), "block_size must be at least 1"),
    (train(trust_region_radius=-1), "trust_region_radius must be at least 0"),
    (train(trust_region_radius="nan"), "trust_region_radius must be finite"),
    (train(trust_region_radius="inf"), "trust_region_radius must be finite"),
    (train(radius_schedule="cosinus"), "radius_schedule"),
    (train(radius_anneal_steps=0), "radius_anneal_steps must be at least 1"),
    (train(advantage_clip="nan"), "advantage_clip must be finite"),
    (train(prompts_per_step=3), "must be a multiple of per_device_train_batch_size"),
    (train(per_device_train_batch_size=0), "per_device_train_batch_size must be at least 1"),
    (train(gradient_accumulation_steps=3), "leave it out"),
    (train(method="sakki"), "did you mean 'saki'"),
    (train(rollout_dtype="int8"), "rollout_dtype must be auto"),
    (train(lora_rank=-1), "lora_rank must be at least 0"),
    (train(lora_rank=2, lora_alpha=0), "lora_alpha must be at least 1"),
    (train(chat_template_kwargs="{x"), "chat_template_kwargs is not valid JSON"),
    (train(chat_template_kwargs="[1]"), "chat_template_kwargs must be a JSON object"),
    (train(chat_template_kwargs='{"tokenize": true}'), "may not set 'tokenize'"),
    (train(label_smoothing_factor=0.1), "change the objective"),
    (train(neftune_noise_alpha=5), "change the objective"),
    (train(report_to="wandb_"), "unknown key 'wandb_' in report_to; did you mean 'wandb'"),
    (train(optim="adamw_torchh"), "optim got 'adamw_torchh'; did you mean 'adamw_torch'"),
    (train(lr_scheduler_type="linaer"), "linaer"),
    (train(accelerator_config="no_such.json"), "a setting names the file 'no_such.json', which is not there"),
    (train(metric_for_best_model="mean"), "metric_for_best_model can only be loss"),
    (train(eval_strategy="steps"), "eval_strategy is steps, but there is no eval_dataset"),
    (train(eval_on_start="true"), "eval_on_start is true, but there is no eval_dataset"),
    (train(optim_args="foo"), "optim_args must be key=value pairs separated by commas, got 'foo'"),
    (train(dataloader_num_workers=-1), "dataloader_num_workers must be at least 0"),
    (train(lr_scheduler_kwargs="foo"), "lr_scheduler_kwargs is not valid JSON"),
    (train(gradient_checkpointing_kwargs="foo"), "gradient_checkpointing_kwargs is not valid JSON"),
    (train(eval_strategy="steps", eval_dataset="lab/development", eval_steps=0), "eval_steps must be above 0"),
    (train(eval_strategy="steps", eval_dataset="lab/development", eval_steps="nan"), "eval_steps must be finite"),
    (train(num_train_epochs=2), "num_train_epochs is 2, but saki counts steps, and max_steps is 1"),
    (train(eval_strategy="nonsense"), "eval_strategy got 'nonsense'; choose one of"),
    (train(eval_dataset="lab/developement"), "there is no prompt set 'lab/developement' in the lab"),
    (train(eval_dataset="@no_column.jsonl"), "has no 'prompt' column, only ['question', 'solution']"),
    (train(resume_from_checkpoint="x"), "with --resume"),
    (train(max_completion_length=250), "the student takes 256 tokens in all"),
    (train(dataset="@few.jsonl"), "a step needs 2 prompts, but only 1 are left"),
    (train(dataset="@long.jsonl"), "no prompt is left of 1: 1 are above 64 tokens"),
    (["train", "--model", "lab/student"], "saki train needs --teacher_model"),
)
def test_training_settings(refused, argv, phrase, recwarn):
    assert phrase in refused(argv)


@rows(
    (["--model", "@nothing"], "is empty; expected a Hugging Face model folder"),
    (["--model", "/no/such/folder"], "there is no checkpoint folder '/no/such/folder'"),
    (["--model", "@a_file"], "is a file, expected a Hugging Face model folder"),
    (["--model", "@bad_config"], "config.json' is not valid JSON"),
    (["--model", "@list_config"], "config.json' holds a list, expected a JSON object"),
    (["--model", "@wrong_field"], "num_hidden_layers"),
    (["--model", "@no_config"], "has no config.json"),
    (["--model", "@bad_generation"], "generation_config.json' is not valid JSON"),
    (["--model", "@cut_short"], "is damaged or cut short"),
    (["--model", "@no_bytes"], "is damaged or cut short"),
    (["--model", "@pickle"], "found pytorch_model.bin, which is not read, since it is a pickle"),
    (["--model", "@no_tokenizer"], "has no tokenizer (tokenizer.json)"),
    (["--model", "@bad_tokenizer"], "could not load a tokenizer"),
    (
        ["--model", "@lacks_weight"],
        f"lacks 1 weights of Qwen3ForCausalLM or has them in another shape (first: {WEIGHT}",
    ),
    (["--model", "@run"], "is the folder of a run, whose model is"),
    (["--model", "@misshapen"], f"{WEIGHT}, ("),
    (["--model", "@nan"], f"holds NaN or infinite numbers in 1 weights (first: {WEIGHT})"),
    (["--model", "@adapter"], "base model of the adapter"),
    (["--model", "@unknown_type"], "has model type 'frobnicate', which this transformers does not know"),
    (["--model", "@own_code"], "brings Python code of its own, which is not run without consent"),
    (["--model", "@mamba"], "model type 'mamba' has"),
    (["--model", "@gpt_oss"], "model type 'gpt_oss' has attention sinks"),
    (["--model", "@t5"], "model type 't5' has an encoder or cross-attention"),
    (["--model", "@bert"], "model type 'bert' has an encoder architecture run as a decoder"),
    (["--model", "@narrow"], "resize the model's embeddings or use the tokenizer"),
)
def test_checkpoints(refused, argv, phrase):
    assert phrase in refused(["eval", "--num_problems", "1", *argv])


@pytest.mark.parametrize("words", [["rollout"], train(model="@cut_short", teacher_model="@other_tokens")])
def test_tokenizers_that_differ_are_told_apart_before_any_weight_is_read(refused, words):
    pair = [] if "--model" in words else ["--model", "@cut_short", "--teacher_model", "@other_tokens"]
    sentence = refused([*words, *pair])
    assert "tokenizers differ at 2 ids (first: 20: 't' against 's', 21: 's' against 't')" in sentence
    assert "use a pair that shares a tokenizer" in sentence


@rows(
    (["@missing.jsonl.parquet"], "has no .parquet, .json, .jsonl, .csv file"),
    (["/no/such/file.parquet"], "there is no data set at '/no/such/file.parquet'"),
    (["@no_bytes.jsonl"], "is empty; expected rows with a 'prompt'"),
    (["@no_bytes.csv"], "is empty; expected rows with a 'prompt'"),
    (["@no_rows.json"], "has no rows"),
    (["@blank.jsonl"], "has no rows"),
    (["@broken.jsonl"], "line 2 of "),
    (["@strings.jsonl"], "holds a str, expected an object"),
    (["@broken.parquet"], "could not read the data set"),
    (["@text.txt"], "'text.txt' ends in '.txt', expected one of .parquet"),
    (["@no_column.jsonl"], "has no 'prompt' column, only ['question', 'solution']; rename"),
    (["@number.jsonl"], "the prompt of row 0 is a int"),
    (["@null.jsonl"], "the prompt of row 0 is a NoneType"),
    (["@numbers.jsonl"], "the prompt of row 0 is a list with a int in it"),
    (["@no_role.jsonl"], "row 0 has a message without a role"),
    (["@no_content.jsonl"], "row 0 has a message whose content is a NoneType"),
    (["@empty_prompts.jsonl"], "no prompt is left of 1"),
)
def test_prompt_files(refused, argv, phrase):
    assert phrase in refused(["rollout", "--dataset", *argv])


def test_output_paths(refused, made, tmp_path, monkeypatch):
    file = made("@a_file")
    small = ["rollout", "--limit", "1"]
    for out in (file, f"{file}/below"):
        assert f"{file} is a file; give another folder" in refused(small, out=out)
        assert f"{file} is a file; give another folder" in refused(train(), out=out)
    assert "out is empty" in refused(small, out="")
    assert "is not empty; give saki rollout another --out" in refused(small, out=str(tmp_path))
    assert "holds an earlier run" in refused(train(), out=str(tmp_path))
    assert Path(file).read_bytes() == b"x"

    def denied(*args, **options):
        raise OSError(errno.EACCES, "Permission denied")

    # The tests may run as a user who may write anywhere.
    monkeypatch.setattr("tempfile.TemporaryDirectory", denied)
    assert "Permission denied; give another folder with --out" in refused(small)
    assert "Permission denied; give another folder with --out" in refused(train())


def test_a_start_that_the_library_refuses_leaves_no_folder(refused):
    refused(train(optim="rmsprop", optim_args="alpha=x"))  # told by the optimizer, when the trainer has made the folder


def test_a_failed_start_does_not_stand_in_the_way_of_the_corrected_one(made, tmp_path, capfd):
    out = tmp_path / "run"
    assert main([*train(dataset=made("@few.jsonl")), "--out", str(out)]) == 2
    assert not out.exists()
    assert main([*train(save_steps=1), "--out", str(out)]) == 0

    settings = (out / "config.resolved.yaml").read_bytes()
    capfd.readouterr()
    assert main([*train(save_steps=1, max_steps=2, num_generations=1, per_device_train_batch_size=2, resume=True),
                 "--out", str(out)]) == 2  # fmt: skip
    error = capfd.readouterr().err
    assert "was written with num_generations = 2, this run has 1; give the same num_generations to go on" in error
    assert (out / "config.resolved.yaml").read_bytes() == settings, "a refused resume keeps what the run recorded"

    weights = out / "checkpoints" / "checkpoint-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert main([*train(save_steps=1, max_steps=2, resume=True), "--out", str(out)]) == 2
    assert "can be used, 1 were tried" in capfd.readouterr().err


def test_resume_without_a_run(refused, tmp_path):
    (tmp_path / "somewhere").mkdir()
    assert "there is no run in" in refused(train(resume=True))
    assert "there is no run in" in refused(train(resume=True), out=str(tmp_path / "somewhere"))


def test_long_prompts_are_skipped_counted_and_said_once(tmp_path, caplog):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(FILES["long.jsonl"] + 3 * FILES["few.jsonl"])
    argv = ["rollout", "--dataset", str(path), "--max_prompt_length", "64", "--max_completion_length", "4"]
    assert main([*argv, "--num_generations", "1"]) == 0
    said = [record.message for record in caplog.records if "dropped" in record.message]
    assert said == ["1 of 4 prompts were dropped: 1 above 64 tokens, 0 empty"]


def test_sampling_options_of_a_checkpoint_are_noted(made, caplog):
    folder = made("@good")
    write_json(Path(folder) / "generation_config.json", temperature=0.6, top_p=0.9, top_k=20, suppress_tokens=[3])
    caplog.set_level("INFO")
    assert main(["eval", "--model", folder, "--num_problems", "1", "--num_samples", "1", "--max_new_tokens", "2"]) == 0
    (note,) = [record.message for record in caplog.records if "generation config sets" in record.message]
    assert "temperature = 0.6, top_p = 0.9, top_k = 20, suppress_tokens = [3], which is not used" in note
    assert EXACT in note

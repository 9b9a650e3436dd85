"""The card beside a final model: the run's facts, metadata that the hub reads, and no licence of ours."""

import huggingface_hub
import pytest
import torch
import transformers
import yaml

import saki
from saki.training.model_card import ModelCard, RunNames, is_hub_name
from tests.tiny import tiny_trainer

CARD = ModelCard(
    "me/mine", "A model.", ("saki", "opd"), RunNames("Qwen/Qwen3-1.7B-Base", "t/T", "d/D"), {"seed": 3}, {"loss": 0.25}
)


def head(text):
    assert text.startswith("---\n")
    return text.split("---\n")[1]


def test_the_metadata_names_what_is_on_the_hub_and_leaves_the_licence_open():
    data = yaml.safe_load(head(CARD.text()))
    assert data["base_model"] == "Qwen/Qwen3-1.7B-Base"
    assert data["datasets"] == ["d/D"]
    assert data["tags"] == ["saki", "opd"]
    assert "license" not in data
    assert "# license:" in head(CARD.text())
    parsed = huggingface_hub.ModelCard(CARD.text())  # the hub's own reader
    assert parsed.data.base_model == "Qwen/Qwen3-1.7B-Base"


def test_folders_files_and_the_lab_are_no_hub_names(tmp_path, monkeypatch):
    (tmp_path / "some" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    names = ("lab/student", "some/folder", "/abs/folder", "a.parquet", "lab", "", None, "a/b/c")
    assert not any(is_hub_name(name) for name in names)
    assert is_hub_name("some/other")
    text = ModelCard("t", "s", (), RunNames("some/folder", None, "lab"), {}, {}).text()
    data = yaml.safe_load(head(text))
    assert not {"base_model", "datasets"} & set(data)
    assert "| Initial model | some/folder |" in text
    assert "Teacher" not in text.split("---\n")[2].split("## Licence")[0].replace("teacher", "")


def test_tables_hold_the_facts_and_survive_bars_and_line_breaks():
    names = RunNames("m", dataset="a|b\nc", commit="abc123", figures={"Mean@8, %": 41.25})
    text = ModelCard("t", "s", (), names, {"seed": 3}, {"loss": 0.123456}).text()
    for line in (
        "| Prompts | a\\|b c |",
        "| Commit | abc123 |",
        "| seed | 3 |",
        "| loss | 0.1235 |",
        "| Mean@8, % | 41.25 |",
    ):
        assert line in text.splitlines()
    assert f"saki {saki.__version__}, torch {torch.__version__}, transformers {transformers.__version__}" in text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "distilled"
    trainer = tiny_trainer(folder, method="exopd", method_options={"exopd_lambda": 1.1})
    trainer.train()
    return trainer, folder


def test_a_saved_model_has_its_card_and_a_checkpoint_has_none(trained):
    trainer, folder = trained
    trainer.names = RunNames("s/S", "t/T", "rows.parquet", "c0ffee")
    trainer.save_model()
    text = (folder / "model" / "README.md").read_text()
    last = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    for line in (
        "# distilled",
        "| Teacher | t/T |",
        "| Commit | c0ffee |",
        "| method | exopd |",
        "| steps | 2 |",
        "| method_options | {'exopd_lambda': 1.1} |",
        f"| num_generations | {trainer.args.num_generations} |",
    ):
        assert line in text.splitlines()
    assert f"{last['rollout/kl_to_teacher']:.4g} at step 2" in text
    assert not list((folder / "checkpoints").rglob("README.md"))
    assert (folder / "checkpoints" / "checkpoint-2" / "model.safetensors").is_file()


def test_a_model_saved_elsewhere_has_it_too(trained, tmp_path):
    trainer, _ = trained
    trainer.save_model(str(tmp_path / "m"))
    assert (tmp_path / "m" / "README.md").is_file()
    assert (tmp_path / "m" / "model.safetensors").is_file()

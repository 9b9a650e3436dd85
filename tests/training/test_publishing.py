"""Pushes upload the model's folder with its card, and nothing else of the run."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from tests.tiny import tiny_trainer

MODEL = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


class Hub:
    """What would have been uploaded."""

    def __init__(self, monkeypatch):
        self.created, self.uploads = [], []
        monkeypatch.setattr(HfApi, "create_repo", self.create_repo)
        monkeypatch.setattr(HfApi, "upload_folder", self.upload_folder)
        self.failing = False

    def create_repo(self, repo_id, *, private, **kwargs):
        self.created.append((repo_id, private))
        return type("Url", (str,), {"repo_id": f"me/{repo_id}"})(repo_id)

    def upload_folder(self, *, repo_id, folder_path, commit_message, run_as_future, token, revision):
        files = {str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()}
        self.uploads.append((repo_id, commit_message, files, run_as_future))
        if not run_as_future:
            return "commit"
        job = Future()
        if self.failing:
            job.set_exception(OSError("no network"))
        else:
            job.set_result("commit")
        return job


@pytest.fixture
def hub(monkeypatch):
    return Hub(monkeypatch)


def test_push_to_hub_uploads_the_model_folder_alone(hub, tmp_path):
    made = tiny_trainer(tmp_path / "mine")
    made.train()
    assert made.push_to_hub(private=True) == "commit"
    assert hub.created == [("mine", True)]
    ((repo, message, files, in_background),) = hub.uploads
    assert (repo, message, in_background) == ("me/mine", "End of training", False)
    assert files == MODEL | {"README.md"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} >= {"checkpoints", "rollouts", "metrics.jsonl"}


def test_with_push_to_hub_checkpoints_push_their_model_and_save_model_the_final_one(hub, tmp_path):
    made = tiny_trainer(tmp_path / "r", push_to_hub=True, hub_model_id="mine")
    made.train()
    assert [(message, files) for _, message, files, _ in hub.uploads] == [
        (f"Training in progress, step {step}", MODEL | {"README.md"}) for step in (1, 2)
    ]
    assert "| steps | 2 |" in (tmp_path / "r" / "model" / "README.md").read_text()
    made.save_model()
    assert [message for _, message, _, _ in hub.uploads][2:] == ["Model save"]


def test_with_strategy_end_only_the_final_model_is_pushed(hub, tmp_path):
    made = tiny_trainer(tmp_path / "r", push_to_hub=True, hub_strategy="end")
    made.train()
    assert not hub.uploads
    made.save_model()
    assert len(hub.uploads) == 1


def test_a_failed_upload_on_the_way_does_not_end_the_run(hub, tmp_path, caplog):
    hub.failing = True
    made = tiny_trainer(tmp_path / "r", push_to_hub=True)
    assert made.train().global_step == 2
    hub.failing = False
    made.save_model()
    assert "an upload to me/r failed: no network" in caplog.text
    assert hub.uploads[-1][1] == "Model save"


def test_uploading_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="hub_strategy all_checkpoints would upload checkpoints"):
        tiny_trainer(tmp_path, push_to_hub=True, hub_strategy="all_checkpoints")

"""A study's folder: what is read, also while the study runs, and what is wrong in one sentence."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from saki.analysis.study_folder import is_study, read_study_folder
from saki.analysis.study_results import write_results
from tests.analysis import made_study as made


@pytest.fixture
def folder(tmp_path):
    return made.make_study(tmp_path / "study")


def test_arms_and_runs_are_those_of_the_study(folder):
    study = read_study_folder(folder)
    assert (study.students, study.labels, study.steps()) == (made.STUDENTS, made.ARMS, made.STEPS)
    assert study.reference == "trb"
    assert not study.notes
    arms = study.arms(10, ["saki"])
    assert list(arms["lab-b"]) == ["teacher", "student", "saki"]
    shares = [[n / made.NUM_SAMPLES for n in made.right("lab-b", "saki", s, 10, "gcd")] for s in made.SEEDS]
    assert arms["lab-b"]["saki"].mean["gcd"].tolist() == shares
    assert sorted(study.metrics("lab-a", "trb")) == list(made.SEEDS)


def test_finished_runs_of_a_running_study_are_read_one_by_one(tmp_path, folder):
    running = read_study_folder(made.make_study(tmp_path / "running", results=False))
    whole = read_study_folder(folder).arms()
    for student, arms in running.arms().items():
        assert list(arms) == list(made.ARMS)  # baselines have results of their own, which are not here
        for label, sample in arms.items():
            assert sample.mean["sum_3"].tolist() == whole[student][label].mean["sum_3"].tolist()
    assert running.notes == ("results.parquet is not there yet: 18 finished runs are read one by one.",)


def test_runs_that_finished_after_the_results_were_written_are_there_too(folder):
    whole = read_study_folder(folder).arms()
    written = [score for score in made.scores() if (score.label, score.seed) != ("saki", made.SEEDS[-1])]
    write_results(folder / "results.parquet", written)
    study = read_study_folder(folder)
    assert study.notes == ("2 finished runs are not in results.parquet yet and are read one by one.",)
    for student, arms in study.arms().items():
        assert arms["saki"].seeds == made.SEEDS
        assert arms["saki"].mean["gcd"].tolist() == whole[student]["saki"].mean["gcd"].tolist()


def test_runs_that_are_no_part_of_the_study_stay_out(folder):
    """Left over from another state of it: other labels, or other problems, samples or steps."""
    whole = read_study_folder(folder)
    source = folder / "runs" / "lab-a" / "saki" / f"seed-{made.SEEDS[0]}" / "result.json"
    other = folder / "runs" / "lab-a" / "gone" / "seed-0"
    shorter = folder / "runs" / "lab-a" / "saki" / "seed-77"
    copies = [source.parents[1] / f"seed-{name}" for name in ("1-old", "²")]
    for path in (other, shorter, *copies):
        path.mkdir(parents=True)
    for path in copies:
        for name in ("result.json", "metrics.jsonl"):
            (path / name).write_text((source.parent / name).read_text())
    (other / "result.json").write_text(source.read_text())
    stored = json.loads(source.read_text())
    stored["steps"].popitem()
    (shorter / "result.json").write_text(json.dumps(stored))
    study = read_study_folder(folder)
    assert (study.scores, study.runs) == (whole.scores, whole.runs)
    assert study.notes == ()


def test_without_a_named_reference_trb_is_it_or_the_first_arm(folder):
    (folder / "study.yaml").unlink()
    assert read_study_folder(folder).reference == "trb"
    only_saki = [score for score in made.scores() if score.label in ("saki", "student")]
    write_results(folder / "results.parquet", only_saki)
    for label in ("trb", "random_tm"):
        for student in made.STUDENTS:
            shutil.rmtree(folder / "runs" / student / label)
    assert read_study_folder(folder).reference == "saki"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "results.parquet is empty"),
        (b"PAR1 and so on", "not a readable parquet file"),
        ("cut", "not a readable parquet file"),
        ("columns", r"is of another version: it lacks the columns \['num_right'\]"),
    ],
)
def test_a_damaged_results_file_is_one_sentence(folder, content, message):
    path = folder / "results.parquet"
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif content == "columns":
        pq.write_table(pq.read_table(path).drop_columns(["num_right"]), path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_study_folder(folder)
    assert "\n" not in str(error.value)


def test_other_folders_are_no_studies(tmp_path, folder):
    assert is_study(folder)
    assert not is_study(tmp_path)
    with pytest.raises(ValueError, match="is not the folder of a study"):
        read_study_folder(tmp_path)
    (folder / "study.yaml").write_text("a: [1")
    with pytest.raises(ValueError, match="is not readable YAML"):
        read_study_folder(folder)
    (folder / "results.parquet").unlink()
    (folder / "study.yaml").write_text("{}")
    (folder / "runs/lab-a/saki/seed-0/result.json").write_text('{"steps": {"10": 3}, "run": {"method": "saki"}}')
    with pytest.raises(ValueError, match=r"result.json is not the result of a run"):
        read_study_folder(folder)

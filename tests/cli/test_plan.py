import json

import pytest

from saki.cli.main import main
from saki.planning import PUBLISHED


def test_plan_ends_in_json(capsys):
    assert main(["plan", "--device", "h200", "--num_devices", "8", "--layout", "split", "--json"]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert set(result["devices"]) == {"engine", "actor"}
    assert 0 < result["ratio_to_student_only"] < 1
    assert max(map(len, out.splitlines()[:-1])) <= 120


def test_the_advice_is_a_command_line_that_fits(capsys):
    assert main(["plan", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not first["fits"]
    words = [word for name, value in first["changes"].items() for word in (f"--{name}", str(value))]
    assert main(["plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["fits"]


def test_a_file_with_a_pool_is_planned_as_it_will_run(capsys, tmp_path):
    file = tmp_path / "run.yaml"
    pair = "method: saki\nmodel: qwen3-1.7b\nteacher_model: qwen3-4b\n"
    file.write_text(f"{pair}engine: pool\npool_replicas: 3\npool_devices: 5,6,7\n")
    words = [str(file), "--device", "h100", "--num_devices", "8", "--json"]
    assert main(["plan", *words]) == 0
    own = json.loads(capsys.readouterr().out.splitlines()[-1])
    file.write_text(pair)
    assert main(["plan", *words, "--layout", "split", "--engine_devices", "3"]) == 0
    assert own == json.loads(capsys.readouterr().out.splitlines()[-1])
    # On the trainer's devices there is a process beside the trainer, and what one has freed the other cannot take.
    file.write_text(f"{pair}engine: pool\npool_replicas: 8\n")
    assert main(["plan", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    items = [float(line.split()[-1]) for line in lines if line.startswith("  ") and "peak" not in line]
    told = next(line for line in lines if line.startswith("replicas of a pool"))
    assert float(told.split()[-3]) == pytest.approx(sum(items), abs=0.1)


@pytest.mark.parametrize(
    ("device", "stored", "taken"),
    [("h100", "bfloat16", 2), ("h100", "torch.float32", 4), ("h100", None, 2), ("cpu-1-core", "float16", 4)],
)
def test_a_teacher_of_dtype_auto_is_planned_as_it_is_loaded(capsys, tmp_path, device, stored, taken):
    """As stored on an accelerator, in float32 at least on a host."""
    config = {**PUBLISHED["smollm2-135m"], **({"dtype": stored} if stored else {})}
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(json.dumps(config))
    file = tmp_path / "run.yaml"
    file.write_text(f"model: smollm2-135m\nteacher_model: {teacher}\nteacher_dtype: auto\n")
    assert main(["plan", str(file), "--device", device]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "teacher weights" in line)
    assert float(line.split()[-1]) == pytest.approx(0.1345 * taken, rel=0.01)


def test_a_file_without_a_model_is_told(capsys, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("method: trb\n")
    assert main(["plan", str(file)]) == 2
    assert "saki plan needs --model" in capsys.readouterr().err


def test_the_file_of_a_run_is_taken_as_it_is_and_its_folder_left_alone(capsys, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    file = folder / "config.resolved.yaml"
    pair = "model: qwen3-1.7b\nteacher_model: qwen3-4b\n"
    file.write_text(f"{pair}method: saki\nout: {folder}\njson: true\ntraceback: true\n")
    assert main(["plan", str(file)]) == 0
    assert "{" not in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["config.resolved.yaml"]
    file.write_text(f"{pair}out: {tmp_path / 'plan'}\n")  # its own file says where
    assert main(["plan", str(file)]) == 0
    assert (tmp_path / "plan" / "plan.txt").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'{\"top_k\": 3}'", None),
        ("{top_k: 3}", None),
        ("foo", "method_options is not valid JSON"),
        ("[1]", "method_options must be a JSON object, got [1]"),
    ],
)
def test_options_of_a_method_may_be_json_as_for_a_training(capsys, tmp_path, options, message):
    file = tmp_path / "run.yaml"
    file.write_text(f"method: skd\nmethod_options: {options}\nmodel: qwen3-1.7b\nteacher_model: qwen3-4b\n")
    assert main(["plan", str(file)]) == (0 if message is None else 2)
    assert message is None or message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--correction_rate", "0.5"], "bounds it by sqrt"),
        (["--device", "tpu"], "device must be one of"),
        (["--model", "nosuch"], "unknown model 'nosuch'"),
        (["--task", "bake"], "task must be"),
        (["--tflops", "0"], "tflops must be above 0"),
    ],
)
def test_mistakes_are_one_sentence(capsys, argv, message):
    assert main(["plan", *argv]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1

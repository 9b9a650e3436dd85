import json

import pytest

from saki.cli.main import main


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

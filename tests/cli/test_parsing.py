"""YAML and command line: precedence, dashes, types, and one sentence for every mistake."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import yaml

from saki.config import CommandParser, UsageError, write_resolved
from saki.config.commands import CommonArguments, TrainArguments
from saki.training import SakiConfig


@dataclass
class Some:
    """Options of a made-up command."""

    trust_region_radius: float = field(default=0.02, metadata={"help": "Radius, 100% honest."})
    num_generations: int = 8
    method: str = "saki"
    save: bool = False
    suffix: str | None = None


def parse(*argv):
    (some,) = CommandParser([Some], "saki some", "Something.", "saki some").parse(argv)
    return some


def test_defaults_file_and_command_line_in_that_order(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("trust_region_radius: 1e-3\nnum-generations: 4\nsuffix: null\nsave: true\n")
    assert parse() == Some()
    assert parse(str(path)) == Some(trust_region_radius=1e-3, num_generations=4, save=True)
    assert parse(str(path), "--num_generations", "2").num_generations == 2
    assert parse("--trust-region-radius=0.5", "--save").trust_region_radius == 0.5
    assert parse("--save", "false").save is False
    assert parse(str(path), "--suffix", "x").suffix == "x"
    path.write_text("suffix: x\n")
    assert parse(str(path), "--suffix", "null").suffix is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--num_generation", "4"], "unknown key 'num_generation' in the command line; did you mean 'num_generations'"),
        (["--zzz", "4"], "unknown key 'zzz'"),
        (["--num_generations", "null"], "num_generations must be a whole number, got 'null'"),
        (["--num_generations", "four"], "num_generations must be a whole number, got 'four'"),
        (["--num_generations"], "num_generations needs a value; write it as --key value"),
        (["missing.yaml"], "no configuration file missing.yaml"),
        (["--method", "saki", "stray"], "cannot understand 'stray'"),
    ],
)
def test_mistakes_on_the_command_line(argv, message):
    with pytest.raises(UsageError, match=message):
        parse(*argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methdo: opd\n", "unknown key 'methdo'.*did you mean 'method'"),
        ("- a\n", "must hold 'key: value' lines, got a list"),
        ("a: [\n", "not valid YAML"),
        ("num_generations: many\n", r"num_generations must be a whole number, got 'many' .in .*c.yaml"),
    ],
)
def test_mistakes_in_the_file(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        parse(str(path))


def test_train_takes_every_library_field_and_writes_what_it_resolved(tmp_path):
    parser = CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", "Train.", "saki train")
    common, train, config = parser.parse(
        ["--model", "a", "--method", "opd", "--max-steps", "7", "--use_cpu", "--adam_beta2", "0.98",
         "--resume", "--output_dir", str(tmp_path / "run"), "--chat_template_kwargs", '{"enable_thinking": true}']
    )  # fmt: skip
    assert (train.model, config.method, config.max_steps, config.adam_beta2) == ("a", "opd", 7, 0.98)
    assert config.chat_template_kwargs == {"enable_thinking": True}
    write_resolved(tmp_path / "r.yaml", common, train, config)
    stored = yaml.safe_load((tmp_path / "r.yaml").read_text())
    assert stored["method"] == "opd"
    assert stored["adam_beta2"] == 0.98
    assert stored["model"] == "a"
    assert parser.parse(["--advantage_clip", "null"])[2].advantage_clip is None
    with pytest.raises(UsageError, match="advantage_clip must be a number, got 'none'"):
        parser.parse(["--advantage_clip", "none"])
    assert train.resume
    assert "resume" not in stored  # a run that takes the file begins by itself
    again = parser.parse([str(tmp_path / "r.yaml")])[2]
    assert (again.method, again.max_steps, again.learning_rate) == ("opd", 7, config.learning_rate)


def test_help_lists_sakis_fields_and_an_example(capsys):
    parser = CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", "Train.", "saki train x.yaml")
    with pytest.raises(SystemExit) as left:
        parser.parse(["--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert "--trust_region_radius" in text
    assert "example: saki train x.yaml" in text
    assert "--adam_beta2" not in text

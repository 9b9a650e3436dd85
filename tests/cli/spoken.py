"""What a command says: the line of JSON where it works, the one sentence where it refuses."""

from __future__ import annotations

import json

from saki.cli.main import main


def said(capsys, argv):
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def refused(capsys, argv):
    capsys.readouterr()
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (sentence,) = [line for line in error.splitlines() if line.startswith("saki: ")]
    return sentence

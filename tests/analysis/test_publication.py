"""Figures on disk: four forms, equal bytes for equal data, and the caller's settings as they were."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from saki.analysis.publication import LINES, Drawing, print_context, publish


def drawing():
    with print_context():
        figure = Figure(figsize=(2, 1.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0.5, 0.25], label="$x$ <b>")
        axes.set_title("$not mathematics$")
        axes.legend()
    return Drawing("line", figure, ("x", "y"), ((0, 0.5), (1, 0.25), ("a,b", None)))


def test_a_drawing_is_written_in_four_forms_with_equal_bytes(tmp_path):
    before = dict(mpl.rcParams)
    paths = publish(tmp_path / "new" / "a", [drawing()])
    assert [path.name for path in paths] == ["line.svg", "line.pdf", "line.png", "line.csv"]
    svg, pdf, png, table = (path.read_bytes() for path in paths)
    root = ElementTree.fromstring(svg)
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))  # outlines, so that no font is needed
    assert b"CreationDate" not in pdf
    assert pdf.startswith(b"%PDF")
    assert png.startswith(b"\x89PNG")
    assert list(csv.reader(table.decode().splitlines())) == [["x", "y"], ["0", "0.5"], ["1", "0.25"], ["a,b", ""]]
    again = publish(tmp_path / "b", [drawing()])
    assert [path.read_bytes() for path in again] == [svg, pdf, png, table]
    assert dict(mpl.rcParams) == before


def test_lines_differ_in_more_than_colour():
    assert len({(str(dash), marker) for _, dash, marker in LINES}) == len(LINES)
    assert len(set(map(str, LINES))) == len(LINES) >= 12

"""Tables of the documentation, and whether what they name exists."""

import importlib
import re
from pathlib import Path

from saki.methods import method_names

ROOT = Path(__file__).parents[2]
NOT_YET = "not yet"

SPAN = re.compile(r"`([^`]+)`")
DOTTED = re.compile(r"saki(\.\w+)+")
TEST_PATH = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
METHOD = re.compile(r"method `(\w+)`")


def table_rows(name, num_cells):
    """(line number, cells) of every row with so many cells in a file of ``docs``, heads and rules left out."""
    lines = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] if line.startswith("|") else []
        following = lines[number] if number < len(lines) else ""
        is_head, is_rule = re.match(r"\| *-{3}", following), cells and cells[0].startswith("---")
        if len(cells) == num_cells and not is_head and not is_rule:
            yield number, cells


def split_cell(cell):
    """The part that must exist, and the part that must not."""
    present, _, missing = cell.partition(NOT_YET)
    return present, missing


def exists(name):
    """Whether a dotted name is a module, or an attribute (a dataclass field included) of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            found = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Only the absence of this module itself sends the search up; a missing dependency is an error.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        for attribute in parts[length:]:
            if attribute in getattr(found, "__dataclass_fields__", {}):
                return attribute == parts[-1]
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def named(part):
    """Everything that a part of a cell names, with whether it exists."""
    for span in SPAN.findall(part):
        test_path = TEST_PATH.fullmatch(span)
        if test_path:
            path, function = ROOT / test_path[1], test_path[2]
            there = path.is_file() and (not function or f"def {function}(" in path.read_text(encoding="utf-8"))
            yield span, there
        elif DOTTED.fullmatch(span):
            yield span, exists(span)
    for method in METHOD.findall(part):
        yield f"method {method}", method in method_names()

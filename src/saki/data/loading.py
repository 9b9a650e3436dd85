"""Load a data set of prompts from a file, a folder or the hub."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
"""File endings and the readers of ``datasets`` that serve them."""

_SPLIT_NAMES = ("train", "test", "validation", "valid", "dev", "eval")


class DataLoadError(ValueError):
    """A data set is missing or cannot be read."""


def load_prompt_dataset(
    path_or_name: str | os.PathLike[str],
    split: str | None = None,
    *,
    config_name: str | None = None,
    revision: str | None = None,
    prompt_column: str = "prompt",
    answer_column: str | None = None,
) -> Dataset:
    """Load rows with a ``prompt`` column, and an ``answer`` column where one is known.

    Files hold their answers in one of two layouts: an ``answer`` column, or ``reward_model.ground_truth`` (as in
    DAPO's files), which is copied to ``answer``. Prompts keep their text.

    Args:
        path_or_name: A parquet, json, jsonl or csv file, a folder of one such kind or one that
            ``Dataset.save_to_disk`` wrote, or a hub name.
        split: Split of a hub data set (default ``"train"``), or the beginning of the file names in a folder.
        config_name: Configuration of a hub data set.
        revision: Hub branch, tag or commit.
        prompt_column: Column to use as ``prompt``.
        answer_column: Column to use as ``answer``.

    Returns:
        The data set, rows in the order of the files.

    Raises:
        DataLoadError: If there is nothing at the path, if it cannot be read, or if a named column is missing.
    """
    import datasets

    name = os.fspath(path_or_name)
    path = Path(name)
    if name and path.is_dir():
        dataset = _load_folder(path, split)
    elif path.is_file():
        if split is not None:
            raise DataLoadError(f"a single file has no split, got split {split!r} for {name!r}; leave it out")
        dataset = _read(_format(path), [path])
    elif not name or name.startswith((".", "~", "/", os.sep)) or name.count("/") > 1 or path.suffix in FORMATS:
        raise DataLoadError(f"there is no data set at {name!r}; expected a file, a folder or a hub name")
    else:
        try:
            dataset = datasets.load_dataset(name, config_name, split=split or "train", revision=revision)
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreadable(name, error) from error
    if not isinstance(dataset, datasets.Dataset):
        raise DataLoadError(f"{name!r} holds a {type(dataset).__name__}, expected one data set; choose a split of it")
    dataset = _rename(dataset, prompt_column, "prompt", name)
    if answer_column is not None:
        return _rename(dataset, answer_column, "answer", name)
    if "answer" not in dataset.column_names and "reward_model" in dataset.column_names:
        truths = [_ground_truth(value) for value in dataset["reward_model"]]
        if any(truth is not None for truth in truths):
            dataset = dataset.add_column("answer", truths)
    return dataset


def _load_folder(folder: Path, split: str | None) -> Any:
    import datasets

    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(str(folder))
        if not isinstance(loaded, datasets.DatasetDict):
            return loaded
        if split not in loaded:
            raise DataLoadError(f"{str(folder)!r} has the splits {sorted(loaded)}, got split {split!r}; choose one")
        return loaded[split]
    files = sorted(path for path in folder.iterdir() if path.suffix in FORMATS)
    if split is not None:
        files = [path for path in files if path.stem.startswith(split)]
    if not files:
        wanted = "" if split is None else f" whose name begins with {split!r}"
        raise DataLoadError(f"the folder {str(folder)!r} has no {', '.join(FORMATS)} file{wanted}; check the path")
    kinds = {_format(path) for path in files}
    if len(kinds) > 1:
        raise DataLoadError(f"the folder {str(folder)!r} mixes {sorted(kinds)} files; give one file or one kind")
    splits = {name for name in _SPLIT_NAMES for path in files if path.stem.startswith(name)}
    if split is None and len(splits) > 1:
        raise DataLoadError(f"the folder {str(folder)!r} has the splits {sorted(splits)}; choose one with split")
    return _read(kinds.pop(), files)


def _format(path: Path) -> str:
    if path.suffix not in FORMATS:
        raise DataLoadError(f"{path.name!r} ends in {path.suffix!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[path.suffix]


def _read(kind: str, files: list[Path]) -> Any:
    import datasets
    from datasets.exceptions import DatasetGenerationError

    for path in files:
        if path.stat().st_size == 0:
            raise DataLoadError(f"the file {str(path)!r} is empty; expected rows with a 'prompt'")
        if kind == "json":
            _check_beginning(path)
    try:
        with _quiet():
            return datasets.load_dataset(kind, data_files=[str(path) for path in files], split="train")
    except StopIteration as error:
        raise DataLoadError(f"{str(files[0])!r} has no rows; expected rows with a 'prompt'") from error
    except (OSError, ValueError, RuntimeError, DatasetGenerationError) as error:
        if "corresponds to no data" in str(error):
            raise DataLoadError(f"{str(files[0])!r} has no rows; expected rows with a 'prompt'") from error
        for path in files:
            if path.suffix == ".jsonl":
                _check_lines(path)
        raise _unreadable(str(files[0]), error.__cause__ or error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """A local file is read in a moment: no bar for it, and an error is told once, by us."""
    import datasets

    library = logging.getLogger("datasets")
    level, bars = library.level, datasets.are_progress_bars_disabled()
    library.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        library.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _check_beginning(path: Path) -> None:
    """Refuse a first value that is neither object nor list: at ``null`` the reader would end the process."""
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        first = next((letter for letter in iter(lambda: stream.read(1), "") if not letter.isspace()), "")
    if first in ("", "{", "["):
        return
    if path.suffix == ".jsonl":
        _check_lines(path)
    raise DataLoadError(
        f"{str(path)!r} begins with {first!r}, expected JSON objects with a 'prompt', or a list of them"
    )


def _check_lines(path: Path) -> None:
    """Name the first line of a file that is no JSON object."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except json.JSONDecodeError as error:
                raise DataLoadError(
                    f"line {number} of {str(path)!r} is not valid JSON ({error.msg}); expected one object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataLoadError(
                    f"line {number} of {str(path)!r} holds a {type(row).__name__}, expected an object with a 'prompt'"
                )


def _unreadable(name: str, error: BaseException) -> DataLoadError:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return DataLoadError(f"could not read the data set {name!r} ({type(error).__name__}: {reason}); check the file")


def _rename(dataset: Dataset, column: str, target: str, name: str) -> Dataset:
    if column not in dataset.column_names:
        raise DataLoadError(
            f"{name!r} has no {column!r} column, only {dataset.column_names}; rename the one that "
            f"holds the {target} to {target!r}, or name it with saki data --{target}_column "
            f"({target}_column in Python)"
        )
    if column == target:
        return dataset
    if target in dataset.column_names:
        dataset = dataset.remove_columns(target)
    return dataset.rename_column(column, target)


def _ground_truth(value: Any) -> Any:
    return value.get("ground_truth") if isinstance(value, dict) else None

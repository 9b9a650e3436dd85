"""Samples on disk as they come: parts of a benchmark, from which a killed evaluation goes on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from saki.evaluation.samples import SampleSet, join_samples, read_samples_file, samples_file, write_samples


class PartFolder:
    """The parts of one benchmark in a folder of samples, and at the end the file of all of them.

    A part holds the samples of some problems in a row and is whole or not there. Parts are looked up by their first
    problem, so a rerun must cut a benchmark in the same places.

    Args:
        folder: Folder of samples, or None to keep nothing.
        benchmark: Name of the benchmark.
        resume: Whether samples that are there already are taken up; else they are removed.
    """

    def __init__(self, folder: Path | None, benchmark: str, *, resume: bool) -> None:
        self._whole = None if folder is None else samples_file(folder, benchmark)
        self._parts = None if folder is None else folder / f"{benchmark}.parts"
        self._resume = resume
        if self._parts is not None and self._parts.exists() and not resume:
            shutil.rmtree(self._parts)

    def stored(self, prompts: Sequence[str], num_samples: int) -> SampleSet | None:
        """All samples of the benchmark, where an earlier run finished it."""
        return self._read(self._whole, prompts, num_samples)

    def part(self, first: int, prompts: Sequence[str], num_samples: int) -> SampleSet | None:
        """The samples of the problems from ``first`` on, where an earlier run got so far."""
        return self._read(self._path(first), prompts, num_samples)

    def keep(self, first: int, samples: SampleSet) -> None:
        """Write a part."""
        path = self._path(first)
        if path is not None:
            write_samples(path, samples)

    def finish(self, parts: Sequence[SampleSet]) -> SampleSet:
        """Join the parts, write the whole, and remove what it replaces."""
        samples = join_samples(parts)
        if self._whole is not None and self._parts is not None:
            write_samples(self._whole, samples)
            shutil.rmtree(self._parts, ignore_errors=True)
        return samples

    def _path(self, first: int) -> Path | None:
        return None if self._parts is None else self._parts / f"{first:06d}.parquet"

    def _read(self, path: Path | None, prompts: Sequence[str], num_samples: int) -> SampleSet | None:
        if path is None or not self._resume or not path.is_file():
            return None
        samples = read_samples_file(path)
        if samples.prompts != tuple(prompts) or samples.num_samples != num_samples:
            raise ValueError(
                f"{path} holds {samples.num_samples} samples each of {len(samples.prompts)} problems, not the "
                f"{len(prompts)} problems and {num_samples} samples asked for; take another folder"
            )
        return samples

"""Configuration: dataclasses composed from YAML and the command line."""

from saki.config.parsing import CommandParser, UsageError, read_yaml, write_resolved

__all__ = ["CommandParser", "UsageError", "read_yaml", "write_resolved"]

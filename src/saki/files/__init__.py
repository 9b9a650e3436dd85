"""Files that are whole or not there."""

from saki.files.atomic import DiskFullError, append_text, disk_is_full, whole_file, whole_folder, write_text, writing

__all__ = ["DiskFullError", "append_text", "disk_is_full", "whole_file", "whole_folder", "write_text", "writing"]

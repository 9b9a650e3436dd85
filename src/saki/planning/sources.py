"""A model's shape by name: the table, a folder, a JSON or YAML file of config fields, or the hub's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from saki.models.checkpoints import attempt, check_folder
from saki.planning.shapes import HUB_NAMES, PUBLISHED, ModelShape, shape_from_config


def load_shape(name: str) -> ModelShape:
    """The shape of a model; no weights are read.

    Args:
        name: A short name of :data:`PUBLISHED`, a model folder, a ``.json``, ``.yaml`` or ``.yml`` file of config
            fields, or a hub name.

    Raises:
        ValueError: If nothing of that name can be read, or its config does not suffice.
    """
    known = HUB_NAMES.get(name, name.lower())
    if known in PUBLISHED:
        return shape_from_config(name, PUBLISHED[known])
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml"):
        return shape_from_config(name, _read_fields(path))
    check_folder(name)
    if path.is_dir():
        return shape_from_config(name, _read_fields(path / "config.json"))
    if "/" not in name:
        raise ValueError(f"unknown model {name!r}; give a folder, a file of config fields, or {', '.join(PUBLISHED)}")
    from transformers import AutoConfig

    config = attempt(f"the config of {name!r}", lambda: AutoConfig.from_pretrained(name), name)
    return shape_from_config(name, config.to_dict())


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {str(path)!r} ({type(error).__name__}); give a file of config fields") from error
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{str(path)!r} is no valid JSON or YAML ({' '.join(str(error).split())}); mend it") from error
    if not isinstance(values, dict):
        raise ValueError(f"{str(path)!r} holds a {type(values).__name__}, expected config fields with their values")
    return values

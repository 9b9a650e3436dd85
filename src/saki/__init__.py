"""On-policy distillation of language models with exact teacher-guided rollouts.

Importing ``saki`` has no side effects and loads neither torch nor transformers; import what you need from the
subpackages.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"

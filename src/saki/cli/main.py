"""``saki COMMAND``: finds the command, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import traceback
from collections.abc import Sequence

import saki
from saki.cli.signals import Terminated, exit_code, sigterm_interrupts

COMMANDS = {
    "demo": "distil the embedded pair and write a report",
    "data": "prepare prompts: check, filter and order them, and count what was dropped",
    "teacher": "train a teacher by GRPO with a rule-based reward",
    "train": "distil a teacher into a student",
    "rollout": "sample completions under a method's behavior policy",
    "view": "write rollouts as a page in which each token shows what happened to it",
    "report": "write what a run, several runs or a study did as one page",
    "figures": "draw figures for print out of studies, runs and benchmarks",
    "eval": "evaluate a model alone on benchmarks",
    "verify": "certify that the engine samples the exact law with a pair of models",
    "study": "compare methods over seeds and students, with intervals",
    "probe": "freeze positions, and measure how checkpoints differ there",
    "plan": "predict memory and speed before a run, and what to change if it does not fit",
    "bench": "measure rollouts, bridges and training steps against what else there is",
    "lab": "the embedded pair: show it, or rebuild it from a seed",
}

USAGE = """usage: saki COMMAND [CONFIG.yaml] [--key value ...]

commands:
{commands}

saki COMMAND --help shows the options and an example.
example: saki demo --out runs/demo"""


@sigterm_interrupts()
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        0 on success, 2 for a user's mistake (one sentence on stderr), 1 for a failure, 130 when interrupted, 143
        when terminated.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands="\n".join(f"  {name:9} {text}" for name, text in COMMANDS.items())))
        return 0
    if words[0] in ("-V", "--version"):
        print(f"saki {saki.__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        from saki.types.exact import did_you_mean  # torch comes with it, which help and version do without

        hint = did_you_mean(name, COMMANDS, f"choose one of {', '.join(COMMANDS)}")
        print(f"saki: unknown command {name!r}; {hint}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "datasets", "fsspec", "urllib3", "transformers", "accelerate", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # the library's bars for loading and saving shards; commands show their own
        command = importlib.import_module(f"saki.cli.{name}")
        return int(command.run(words[1:]) or 0)
    except SystemExit as leave:  # --help
        return int(leave.code or 0)
    except KeyboardInterrupt as interrupt:
        terminated = isinstance(interrupt, Terminated)
        print(f"saki: {'terminated' if terminated else 'interrupted'}; what was written stays", file=sys.stderr)
        return exit_code(signal.SIGTERM if terminated else signal.SIGINT)
    except ValueError as error:
        if "--traceback" in words:
            traceback.print_exc()
        print(f"saki: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Exception as error:
        if sentence := _says_all(error, name):
            if "--traceback" in words:
                traceback.print_exc()
            print(f"saki: {' '.join(sentence.split())}", file=sys.stderr)
            return 1
        traceback.print_exc()
        print(f"saki: failed: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


def _says_all(error: Exception, name: str) -> str | None:
    """The sentence of an error that comes from outside the program, so that a traceback would tell nothing more."""
    from saki.files import DiskFullError, disk_is_full
    from saki.rollout.pool.errors import PoolError
    from saki.training import TrainingDivergedError

    if isinstance(error, (TrainingDivergedError, PoolError)):
        return str(error)
    if not disk_is_full(error):
        return None
    told = isinstance(error, DiskFullError)
    sentence = str(error) if told else f"the disk is full ({error}); what was written before is whole, make room"
    return f"{sentence}; saki train goes on with --resume" if name == "train" else sentence


if __name__ == "__main__":
    sys.exit(main())

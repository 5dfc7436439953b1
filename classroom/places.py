"""Where the repository is, and the error that is one sentence."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Wrong(Exception):
    """Something is wrong in a description, or in what a user asked for or wrote: one sentence."""


def run(main):
    """Runs a program's main(words), which says whether all is well, and ends it."""
    try:
        sys.exit(0 if main(sys.argv[1:] or ["list"]) else 1)
    except Wrong as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, BrokenPipeError):  # for example of make solutions | head
        sys.exit(130)

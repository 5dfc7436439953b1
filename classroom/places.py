"""Where the repository is, and the error that is one sentence."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Wrong(Exception):
    """Something is wrong in a description, or in what a user asked for or wrote: one sentence."""

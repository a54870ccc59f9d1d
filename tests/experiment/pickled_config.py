"""A config that a test made: --config=tests/experiment/pickled_config.py:FILE."""

from pathlib import Path
import pickle


def get_config(file: str):
    return pickle.loads(Path(file).read_bytes())

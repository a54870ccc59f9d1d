import shlex

from icl_jax.cli import suggest, suggest_removal


def test_suggested_commands_can_be_pasted_whatever_a_path_holds():
    command = suggest("retrieval.show", workdir="my runs/it's", sentence=0)
    assert shlex.split(command) == [
        "python", "-m", "icl_jax.retrieval.show", "--workdir=my runs/it's", "--sentence=0",
    ]  # fmt: skip
    assert shlex.split(suggest_removal("a b/c", "d;e")) == ["rm", "-r", "a b/c", "d;e"]
    assert suggest_removal("gs://x/y z") == "gcloud storage rm -r 'gs://x/y z'"

"""Commands that messages suggest, quoted so that they can be pasted whatever a path holds."""

import shlex


def suggest(module: str, **options: object) -> str:
    """`python -m icl_jax.MODULE --OPTION=VALUE ...`."""
    named = (f"--{name}={value}" for name, value in options.items())
    return shlex.join(["python", "-m", f"icl_jax.{module}", *named])


def suggest_removal(*paths: str) -> str:
    """What deletes folders, on a disk or in a bucket."""
    remove = "gcloud storage rm -r" if paths[0].startswith("gs://") else "rm -r"
    return f"{remove} {shlex.join(paths)}"

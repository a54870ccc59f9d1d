"""Watches a run until it is complete, and restarts it when it is pre-empted or fails.

watch(job, max_restarts=100)
"""

import shlex

from launch.tpu_job import Job, Look
from launch.tpu_slice import LaunchError, LostError

_WRONG_COMMAND = 2  # the exit code of icl_jax.main where another start would not help
_PATIENCE = 20  # looks in a row at hosts that do not answer


def watch(job: Job, max_restarts: int) -> None:
    """Looks at the run every `poll` seconds; returns when it is complete."""
    restarts, away, shown, failed_at = 0, 0, None, None
    while True:
        look = job.look()
        if look.verdict == "complete":
            results = job.logs.removesuffix("/logs")
            job.cloud.say(f"complete on {job.hosts} host(s); {look}")
            job.cloud.say(f"to fetch it: gcloud storage cp --recursive {shlex.quote(results)} .")
            return
        if look.verdict == "ended":
            raise LaunchError(f"{job.tpu.name}: ended by `stop`; rerun the command to continue")
        if look.verdict in ("failed", "stopped"):
            look = _look_again(job, look)
        if str(look) != shown:
            shown = str(look)
            why = look.why_not_all if look.verdict == "away" else ""
            job.cloud.say(f"{shown}\n{why}".rstrip())
        away = away + 1 if look.verdict == "away" else 0
        if away >= _PATIENCE:
            raise LaunchError(
                f"{job.tpu.name}: hosts did not answer {away} times in a row; the run may "
                f"continue without us. Rerun the command to attach to it:\n{look.why_not_all}"
            )
        if look.verdict in ("lost", "failed", "stopped"):
            restarts += 1
            if restarts > max_restarts:
                raise LaunchError(f"{shown}; --max-restarts={max_restarts} starts were used up")
            if look.verdict == "failed":
                _check_progress(look, failed_at)
                failed_at = look
            restart(job, look.verdict, restarts)
        job.cloud.wait()


def restart(job: Job, verdict: str, number: int) -> None:
    """On a new slice if this one is lost; else on the same hosts, once all have stopped."""
    if verdict == "lost":
        job.cloud.say(f"{job.tpu.name} is lost: creating it again, restart {number}")
        try:
            job.rebuild()
        except LostError as error:  # the next look sees it, and it counts as a restart
            job.cloud.say(str(error))
        return
    job.cloud.say(f"starting again on the same hosts, restart {number}")
    job.stop()  # also processes that wait for a host that died
    try:
        job.start()
    except LaunchError:
        if job.look().verdict != "lost":
            raise


def _look_again(job: Job, look: Look) -> Look:
    """Looks again after a failure, which is not the run's own if the slice is being taken away."""
    for report in look.failed:
        how = f"exit {report['exit']}" if report["state"] == "exited" else report["state"]
        job.cloud.say(f"{report['host']}: {how}; the end of its log:")
        for line in report["tail"]:
            print(f"  {line}", flush=True)
    job.cloud.wait()
    again = job.look()
    return again if again.verdict in ("lost", "failed") else look


def _check_progress(look: Look, before: Look | None) -> None:
    """Raises if another start would only fail again."""
    codes = {report["host"]: report["exit"] for report in look.failed}
    if _WRONG_COMMAND in codes.values():
        host = next(name for name, code in codes.items() if code == _WRONG_COMMAND)
        raise LaunchError(
            f"the run stopped itself on {host} (its last line above says why); fix this "
            "and rerun the command"
        )
    if before is None:
        return
    at, was = look.step, before.step
    advanced = at is not None and (was is None or at[1] != was[1] or at[0] > was[0])
    if not advanced:
        where = f"at step {at[0]} of {at[1]}" if at else "before its first step"
        raise LaunchError(
            f"the run failed twice {where} without progress; its last lines are above, the whole "
            f"log is in the bucket and in `logs --worker=0`"
        )

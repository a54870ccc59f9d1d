"""Creates a TPU slice, waits until it is ready, and deletes it: only what `create` has made.

lifecycle.create(cloud, Slice("my-tpu", "us-west4-a", "v5litepod-16", spot=True), timeout=3600)
"""

import dataclasses
import time

from launch import tpu_slice
from launch.tpu_gcloud import Cloud, StockoutError
from launch.tpu_slice import LABEL, LaunchError, LostError, Slice

LOST = ("PREEMPTED", "TERMINATED", "DELETING")
_ENDED = ("FAILED", "SUSPENDING", "SUSPENDED")  # states of a request that will never give a slice


def create(cloud: Cloud, tpu: Slice, timeout: float) -> dict:
    """Creates the slice, or waits for an existing one; its description once it is ready."""
    how = ", ".join([tpu.type, *(["spot"] if tpu.spot else []), tpu.image])
    if tpu.queued:
        cloud.say(f"asking for {tpu.name} ({how}) in the queue of {tpu.zone}")
    else:
        cloud.say(f"creating {tpu.name} ({how}) in {tpu.zone}; this takes minutes")
    started = time.monotonic()
    cloud.create(tpu, timeout)
    node = wait_until_ready(cloud, tpu, timeout - (time.monotonic() - started))
    same_again(tpu, node)  # an existing one may be of another type
    return node


def create_when_free(cloud: Cloud, tpu: Slice, timeout: float) -> dict:
    """As `create`, but if the zone has none free, it asks again until the time is over."""
    end = time.monotonic() + timeout
    while True:
        try:
            return create(cloud, tpu, end - time.monotonic())
        except StockoutError as error:
            if time.monotonic() >= end:
                raise
            cloud.say(str(error).partition(";")[0] + "; asking again")
            cloud.wait(10)


def wait_until_ready(cloud: Cloud, tpu: Slice, timeout: float) -> dict:
    """Waits for the slice and prints each new state."""
    started, shown = time.monotonic(), None
    while True:
        node = cloud.describe(tpu, pretend=pretended(tpu))
        state = node["state"] if node else "not there yet"
        if tpu.queued and state != "READY":
            state = _request_state(cloud, tpu)
        waited = time.monotonic() - started
        if state == "READY":
            hosts = len(node.get("networkEndpoints", []))
            cloud.say(f"{tpu.name} is READY: {hosts} host(s), after {waited:.0f} s")
            return node
        if state in LOST:
            raise LostError(f"{tpu.name} is {state}; `delete` it, then create it again")
        if waited > timeout:
            raise LaunchError(
                f"{tpu.name} was {state} after --timeout={timeout:.0f} seconds; it may still "
                "come: `status` shows it, `delete` gives it up"
            )
        if state != shown:
            cloud.say(f"{tpu.name}: {state}, {waited:.0f} s")
            shown = state
        cloud.wait()


def _request_state(cloud: Cloud, tpu: Slice) -> str:
    """The state of the request in the queue; raises if it has ended."""
    request = cloud.describe(tpu, request=True)
    if request is None:
        return "not in the queue yet"
    state = request["state"]["state"]
    if state in _ENDED:
        data = request["state"]
        reason = data.get(f"{state.lower()}Data", {}).get("error", {}).get("message")
        kind = LaunchError if state == "FAILED" else LostError
        raise kind(
            f"the request for {tpu.name} is {state}: {reason or 'no reason given'}; `delete` it "
            "before you ask again"
        )
    return state


@dataclasses.dataclass(frozen=True)
class Found:
    """What exists under a name: a slice, a request in the queue, both or neither."""

    node: dict | None
    request: dict | None

    @property
    def is_ours(self) -> bool:
        """Whether `create` made all of it."""
        node_is = self.node is None or _has_label(self.node)
        return node_is and (self.request is None or self._request_is_ours())

    def _request_is_ours(self) -> bool:
        specs = self.request.get("tpu", {}).get("nodeSpec", [])
        if specs and all(_has_label(spec.get("node", {})) for spec in specs):
            return True
        # a slice that is ours names the request that it came from
        name = self.request["name"]
        return self.node is not None and self.node.get("queuedResource") == name


def find(cloud: Cloud, tpu: Slice) -> Found:
    """Looks for the slice and for its request."""
    node = cloud.describe(tpu, pretend=pretended(tpu))
    request = {
        "name": tpu.name,
        "state": {"state": "ACTIVE"},
        "tpu": {"nodeSpec": [{"node": node}]},
    }
    return Found(node, cloud.describe(tpu, True, pretend=request if tpu.queued else None))


def delete(cloud: Cloud, tpu: Slice, found: Found) -> None:
    """Deletes what was found, if it is ours."""
    if not found.is_ours:
        raise LaunchError(
            f"{tpu.name} has no label {'='.join(LABEL)}: launch.tpu_vm did not create it and does "
            "not delete it; use gcloud for that"
        )
    minutes_20 = 1200.0
    if found.request is not None:
        command = tpu_slice.delete(tpu, request=True)
        cloud.must(f"deleting the request for {tpu.name}", command, timeout=minutes_20, tries=3)
        # deleted with its request; looked at, for a slice that stays costs money
        node = cloud.describe(tpu, pretend=None)
    else:
        node = found.node
    while node is not None and node["state"] == "DELETING":
        cloud.wait()
        node = cloud.describe(tpu)
    if node is not None:
        command = tpu_slice.delete(tpu)
        cloud.must(f"deleting {tpu.name}", command, timeout=minutes_20, tries=3)
    cloud.say(f"{tpu.name} is deleted")


def same_again(tpu: Slice, node: dict) -> Slice:
    """What to ask for to get a slice like this one."""
    is_type, config = node.get("acceleratorType", tpu.type), node.get("schedulingConfig", {})
    if tpu.type is not None and is_type != tpu.type:
        raise LaunchError(f"{tpu.name} is a {is_type}, but --type={tpu.type}; give the one it is")
    return dataclasses.replace(
        tpu,
        type=is_type,
        runtime=node.get("runtimeVersion", tpu.runtime),
        spot=tpu.spot or bool(config.get("spot") or config.get("preemptible")),
        queued=tpu.queued or bool(node.get("queuedResource")),
    )


def pretended(tpu: Slice) -> dict:
    """A ready slice as gcloud describes it, for --dry-run."""
    hosts = tpu.hosts if tpu.type else 1
    return {"state": "READY", "labels": dict([LABEL]), "networkEndpoints": [{}] * hosts}


def _has_label(node: dict) -> bool:
    return node.get("labels", {}).get(LABEL[0]) == LABEL[1]

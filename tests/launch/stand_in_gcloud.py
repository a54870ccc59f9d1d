"""A gcloud that notes how it was called and plays the part of Google.

The conftest puts it on the PATH; `world.json` next to it is what there is and what will happen.
"""

import json
import os
import shlex
import sys
import tarfile

HERE = os.path.dirname(sys.argv[0])
LOCK = "launch/requirements-tpu.txt"
NAME = "projects/my-project/locations/us-west4-a"
NOT_FOUND = "ERROR: (gcloud.compute.tpus.{}.describe) NOT_FOUND: Resource '{}' was not found"
STOCKOUT = (
    'ERROR: (gcloud.compute.tpus.tpu-vm.create) {\n  "code": 8,\n  "message": "There is no more '
    'capacity in the zone \\"us-west4-a\\"; you can try in another zone where Cloud TPU Nodes are '
    'offered [EID: 0x9f48947a7d57c8d]"\n}'
)
BUSY = "ERROR: gcloud crashed (HttpError): HttpError 503: The service is currently unavailable."
NOTHING_RUNS = {
    "installed": None, "state": "none", "exit": None, "arguments": None, "asked_to_stop": False,
    "stopped": False, "step": None, "step_line": None, "tail": [], "upload_failed": None,
}  # fmt: skip


def main() -> None:
    words = sys.argv[1:]
    with open(f"{HERE}/calls.jsonl", "a") as calls:
        calls.write(json.dumps(words) + "\n")
    with open(f"{HERE}/world.json") as file:
        world = json.load(file)
    flags = dict(word[2:].split("=", 1) for word in words if "=" in word and word[:2] == "--")
    group, verb, name = words[2:5]
    try:
        if verb in ("describe", "ssh") and world["busy"]:
            world["busy"] -= 1
            raise SystemExit(BUSY)
        what = "request" if group == "queued-resources" else "node"
        if verb == "create":
            create(world, what, name, flags, spot="--spot" in words)
        elif verb == "describe":
            describe(world, group, what, name)
        elif verb == "delete":
            world[what] = None
            if what == "request":
                world["node"] = None
        elif verb == "scp":
            missing = [x for x in words[4:-4] if ":" not in x and not os.path.exists(x)]
            if missing:
                raise SystemExit(f"no such file: {missing}")
            if words[4].endswith(".tar.gz"):
                with tarfile.open(words[4]) as archive:
                    world["sent"] = archive.getnames()
        elif verb == "ssh":
            ssh(world, shlex.split(flags["command"]))
    finally:
        with open(f"{HERE}/world.json", "w") as file:
            json.dump(world, file)


def create(world: dict, what: str, name: str, flags: dict, spot: bool) -> None:
    if world["stockouts"]:
        world["stockouts"] -= 1
        raise SystemExit(STOCKOUT)
    node = {
        "name": f"{NAME}/nodes/{name}",
        "state": "CREATING",
        "acceleratorType": flags["accelerator-type"],
        "runtimeVersion": flags.get("version") or flags["runtime-version"],
        "schedulingConfig": {"spot": True} if spot else {},
        "labels": dict([flags["labels"].split("=")]),
        "health": "HEALTHY",
        "networkEndpoints": [{"ipAddress": f"10.0.0.{n}"} for n in range(world["hosts"])],
    }
    world["looks"] = 0
    world["reports"] = [dict(NOTHING_RUNS)] * world["hosts"]
    if what == "node":
        world["node"] = node
        return
    world["states"] = list(world["queue"])
    node["queuedResource"] = f"{NAME}/queuedResources/{name}"
    spec = {"nodeSpec": [{"nodeId": name, "node": node}]}
    world["request"] = {"name": node["queuedResource"], "tpu": spec, "state": {}}


def describe(world: dict, group: str, what: str, name: str) -> None:
    if world[what] is None:
        raise SystemExit(NOT_FOUND.format(group, name))
    if what == "request" and world["states"]:
        state = world["states"].pop(0)
        world["request"]["state"] = {"state": state, **world["queue_data"]}
        if state == "ACTIVE":
            world["node"] = {**world["request"]["tpu"]["nodeSpec"][0]["node"], "state": "READY"}
    if what == "node":
        world["looks"] += 1
        if world["node"]["state"] == "CREATING" and world["looks"] > 2:
            world["node"]["state"] = "READY"
        if world["preempted_at_look"] and world["looks"] >= world["preempted_at_look"][0]:
            world["preempted_at_look"].pop(0)
            world["node"]["state"] = "PREEMPTED"
    print(json.dumps(world[what]))


def ssh(world: dict, command: list[str]) -> None:
    action, arguments = command[2], command[command.index("--") + 1 :] if "--" in command else []
    if action == "install":
        if LOCK not in world["sent"]:
            raise SystemExit(f"t1v-n-1234-w-0: no {LOCK}")
        set_all(world, installed=command[3].partition("=")[2])
    elif action == "devices":
        for host, count in enumerate(world["devices"]):
            tell(host, process=host, processes=world["hosts"], devices=count, platform="tpu")
        return
    elif action == "start":
        world["run"] = world["runs"].pop(0)
        set_all(world, state="running", arguments=arguments, exit=None)
    elif action == "report" and world["reports"][0]["state"] == "running":
        if not world["run"]["looks"]:
            ended = {key: value for key, value in world["run"].items() if key != "looks"}
            exits = ended.pop("exit")
            set_all(world, state="exited", **ended)
            for report, code in zip(world["reports"], exits):
                report["exit"] = code
        world["run"]["looks"] -= 1
    for host, report in enumerate(world["reports"]):
        tell(host, **report)


def set_all(world: dict, **values) -> None:
    world["reports"] = [{**report, **values} for report in world["reports"]]


def tell(host: int, **report) -> None:
    print("icl_jax_host " + json.dumps({"host": f"t1v-n-1234-w-{host}", **report}))

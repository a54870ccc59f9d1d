"""Buckets of Google Cloud Storage on this machine: as much of its JSON API as clients ask for.

gcsfs and google-cloud-storage find it by STORAGE_EMULATOR_HOST, tensorstore (the arrays of a
checkpoint) by TENSORSTORE_GCS_HTTP_URL. As in the real one an object appears whole, when its upload
is complete. It can be asked to fail: `fail`.
"""

import base64
import dataclasses
import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import itertools
import json
import re
import threading
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c


@dataclasses.dataclass
class Failure:
    """What happens to the next `times` requests that match."""

    method: str
    pattern: str  # of the path with its query, and the beginning of the body
    kind: str  # "503", "403", ...: that status | "reset" | "cut": half an answer | "die": half read
    times: int
    requests: list[str] = dataclasses.field(default_factory=list)  # those it has met


class FakeGcs:
    """Objects of all buckets by "bucket/name"; any bucket exists."""

    def __init__(self):
        self.objects: dict[str, tuple[bytes, int, str]] = {}  # content, generation, time
        self.uploads: dict[str, tuple[str, bytearray]] = {}
        self.failures: list[Failure] = []
        self.requests: list[str] = []
        self.hold = threading.Event()  # what requests that "hang" wait for
        self.lock = threading.RLock()
        self.counter = itertools.count(1_700_000_000_000_000)
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients hang up when they have enough
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """What makes the clients come here, and to no other host."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "TENSORSTORE_GCS_HTTP_VERSION": "1.1",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # tensorstore's way to look for no other
            "GCE_METADATA_ROOT": "127.0.0.1:9",
            "FSSPEC_GCS_TOKEN": "anon",
            "GOOGLE_CLOUD_PROJECT": "none",
        }

    def fail(self, method: str, pattern: str, kind: str, times: int = 1) -> Failure:
        """Lets the next `times` requests fail that match."""
        self.failures.append(Failure(method, pattern, kind, times))
        return self.failures[-1]

    def put(self, name: str, content: bytes) -> dict:
        """Writes "bucket/name"."""
        with self.lock:
            now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
            self.objects[name] = (bytes(content), next(self.counter), now)
            return self.describe(name)

    def content(self, url: str) -> bytes:
        """The bytes at gs://bucket/name."""
        return self.objects[url.removeprefix("gs://")][0]

    def names(self, url: str = "gs://") -> list[str]:
        """All objects below gs://bucket/folder, by their names below it."""
        start = url.removeprefix("gs://")
        return sorted(name[len(start) :].lstrip("/") for name in self.objects
                      if name.startswith(start))  # fmt: skip

    def describe(self, name: str) -> dict:
        content, generation, now = self.objects[name]
        bucket, key = name.split("/", 1)
        crc = google_crc32c.Checksum(content).digest()
        return {
            "kind": "storage#object", "bucket": bucket, "name": key, "id": f"{name}/{generation}",
            "size": str(len(content)), "generation": str(generation), "metageneration": "1",
            "crc32c": base64.b64encode(crc).decode(), "timeCreated": now, "updated": now,
            "storageClass": "STANDARD", "contentType": "application/octet-stream",
        }  # fmt: skip


_API = re.compile(
    r"(?:/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(?:/(\w+To)/(.+))?)?)?"
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer in one packet: else each waits 40 ms for the client's word on its first one.
    wbufsize, disable_nagle_algorithm = -1, True
    store: FakeGcs

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._serve(self._get)

    def do_POST(self):
        self._serve(self._post)

    do_PUT = do_POST

    def do_DELETE(self):
        self._serve(self._delete)

    def _serve(self, work):
        store, size = self.store, int(self.headers.get("Content-Length") or 0)
        # Some uploads have the name of the object in their body.
        asked = unquote(self.path) + (self.rfile.peek(1)[:500].decode("latin1") if size else "")
        with store.lock:
            store.requests.append(f"{self.command} {self.path}")
            met = next((f for f in store.failures if f.times and f.method == self.command
                        and re.search(f.pattern, asked)), None)  # fmt: skip
            if met:
                met.times -= 1
                met.requests.append(self.path)
        self._cut = False
        kind = met.kind if met else ""
        if kind == "die":  # in the middle of what is sent
            self.rfile.read(size // 2)
            return self._drop()
        if kind == "reset":
            return self._drop()
        if kind == "hang":
            self.rfile.read(size // 2)
            store.hold.wait(60)
            return self._drop()
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self._body = self._read_chunks()
        else:
            self._body = self.rfile.read(size)
        if kind.isdigit():
            return self._send(int(kind), {"error": {"code": int(kind), "message": "told to fail"}})
        self._cut = kind == "cut"
        split = urlsplit(self.path)
        self._query = {name: value[0] for name, value in parse_qs(split.query).items()}
        match = _API.fullmatch(split.path)
        assert match, self.path
        with store.lock:
            self._bucket = unquote(match[1])
            self._key = unquote(match[2]) if match[2] else None
            self._action, self._target = match[3], unquote(match[4] or "")
            work()

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _drop(self):
        self.close_connection = True
        self.connection.close()

    def _send(self, status: int, content: dict | bytes | None = None, **headers):
        if isinstance(content, dict):
            content = json.dumps(content).encode()
            headers.setdefault("Content_Type", "application/json; charset=UTF-8")
        content = content or b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self._cut:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            return self._drop()
        self.wfile.write(content)

    def _missing(self):
        self._send(404, {"error": {"code": 404, "message": "No such object"}})

    @property
    def _name(self) -> str:
        return f"{self._bucket}/{self._key}"

    def _get(self):
        if self._key is None:
            if urlsplit(self.path).path.endswith("/o"):
                return self._list()
            return self._send(200, {"kind": "storage#bucket", "name": self._bucket,
                                    "id": self._bucket})  # fmt: skip
        held = self.store.objects.get(self._name)
        if held is None:
            return self._missing()
        content, generation, _ = held
        described = self.store.describe(self._name)
        if self._query.get("alt") != "media":
            return self._send(200, described)
        if self._query.get("ifGenerationNotMatch") == str(generation):
            return self._send(304)
        headers = {"x_goog_generation": str(generation), "x_goog_metageneration": "1",
                   "x_goog_hash": f"crc32c={described['crc32c']}",
                   "Content_Type": "application/octet-stream"}  # fmt: skip
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self._send(200, content, **headers)
        start = int(wanted[1])
        stop = min(int(wanted[2]) + 1 if wanted[2] else len(content), len(content))
        if start >= len(content):
            return self._send(416, {"error": {"code": 416, "message": "range not satisfiable"}})
        headers["Content_Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self._send(206, content[start:stop], **headers)

    def _list(self):
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter")
        start, end = self._query.get("startOffset", ""), self._query.get("endOffset", "\U0010ffff")
        items, prefixes = [], set()
        for name in sorted(self.store.objects):
            bucket, key = name.split("/", 1)
            if bucket != self._bucket or not key.startswith(prefix) or not start <= key < end:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self.store.describe(name))
        limit = int(self._query.get("maxResults", 1000))
        first = int(self._query.get("pageToken", 0))
        answer = {"kind": "storage#objects", "items": items[first : first + limit]}
        if first == 0 and prefixes:
            answer["prefixes"] = sorted(prefixes)
        if first + limit < len(items):
            answer["nextPageToken"] = str(first + limit)
        self._send(200, answer)

    def _post(self):
        if self._action in ("rewriteTo", "moveTo", "copyTo"):
            return self._copy()
        kind = self._query.get("uploadType")
        if "upload_id" in self._query:
            return self._chunk(self._query["upload_id"])
        if kind == "media":
            return self._put(self._query["name"], self._body)
        if kind == "multipart":
            return self._put(*_read_multipart(self.headers["Content-Type"], self._body))
        assert kind == "resumable", self.path
        key = self._query.get("name") or json.loads(self._body)["name"]
        upload = str(next(self.store.counter))
        self.store.uploads[upload] = (f"{self._bucket}/{key}", bytearray())
        place = f"{self.store.url}/upload/storage/v1/b/{self._bucket}/o"
        self._send(200, b"", Location=f"{place}?uploadType=resumable&upload_id={upload}")

    def _put(self, key: str, content: bytes):
        name = f"{self._bucket}/{key}"
        wanted = self._query.get("ifGenerationMatch")
        held = self.store.objects.get(name, (b"", 0, ""))[1]
        if wanted is not None and int(wanted) != held:
            return self._send(412, {"error": {"code": 412, "message": "conditionNotMet"}})
        return self._send(200, self.store.put(name, content))

    def _chunk(self, upload: str):
        """A part of an object; the object is there once its last part is."""
        name, held = self.store.uploads[upload]
        place = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers["Content-Range"])
        if place[1] is not None:
            del held[int(place[1]) :]
            held += self._body
        if place[3] != "*" and len(held) == int(place[3]):
            del self.store.uploads[upload]
            return self._send(200, self.store.put(name, held))
        return self._send(308, b"", Range=f"bytes=0-{len(held) - 1}")

    def _copy(self):
        if self._name not in self.store.objects:
            return self._missing()
        target = re.fullmatch(r"(?:b/([^/]+)/)?o/(.+)", self._target)
        name = f"{target[1] or self._bucket}/{target[2]}"
        described = self.store.put(name, self.store.objects[self._name][0])
        if self._action == "moveTo":
            del self.store.objects[self._name]
        size = described["size"]
        done = {"done": True, "objectSize": size, "totalBytesRewritten": size}
        self._send(
            200, done | {"resource": described} if self._action == "rewriteTo" else described
        )

    def _delete(self):
        if "upload_id" in self._query:
            self.store.uploads.pop(self._query["upload_id"], None)
            return self._send(499)
        if self.store.objects.pop(self._name, None) is None:
            return self._missing()
        return self._send(204)


def _read_multipart(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Name and content of an object.

    The line break before a boundary belongs to the boundary, and is the one that the client's own
    lines end in: content may end in any other, and may hold text that looks like a boundary.
    """
    boundary = b"--" + re.search(r'boundary="?([^";]+)', content_type)[1].encode()
    line = re.match(re.escape(boundary) + rb"(\r?\n)", body)[1]
    described, rest = body.split(line + boundary + line, maxsplit=1)
    content, after = rest.rsplit(line + boundary + b"--", maxsplit=1)
    assert not after.strip(), after
    described, content = (part.split(2 * line, maxsplit=1)[1] for part in (described, content))
    return json.loads(described)["name"], content

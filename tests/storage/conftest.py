"""Real clients (gcsfs, google-cloud-storage, tensorstore) against a bucket on this machine."""

import os
import types

import pytest

import icl_jax  # noqa: F401  (it says how gcsfs is opened, before that is imported)
from tests.storage.fake_gcs import FakeGcs


@pytest.fixture(scope="session")
def _server():
    pytest.importorskip("gcsfs", reason="gcsfs is not installed (extra tpu)")
    server, before = FakeGcs(), dict(os.environ)
    os.environ.update(server.environment())  # tensorstore reads it once
    yield server
    os.environ.clear()
    os.environ.update(before)
    server.close()


@pytest.fixture
def gcs(_server, tmp_path, monkeypatch):
    """An empty store; clients wait no time before they try again, but `waits` has how long."""
    import fsspec
    from gcsfs import GCSFileSystem, retry

    from icl_jax.files import mirror
    from icl_jax.files import remote as storage

    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", "use_listings_cache": False})
    monkeypatch.setenv("ICL_JAX_MIRROR", str(tmp_path / "mirror"))
    for known in (_server.objects, _server.uploads, _server.failures, _server.requests):
        known.clear()
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(storage.time, "sleep", waits.append)
    GCSFileSystem.clear_instance_cache()
    mirror.fetch.cache_clear()
    _server.waits = waits
    yield _server
    _server.hold.set()
    _server.hold.clear()

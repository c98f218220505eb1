"""Headless Chromium on pages of a loopback server."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

#: Keeps Chromium from asking for anything of its own.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


@contextmanager
def serve(pages: dict[str, str]):
    """Serve ``pages`` by path; yields the address and the list of the paths that are asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            page = pages.get(self.path)
            self.send_response(200 if page is not None else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def loaded(url: str, profile: Path) -> str:
    """The document at ``url`` as it is once its scripts have run. Skips the test without a browser."""
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("no Chromium on this machine: make browser")
    command = [found[0], *_FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

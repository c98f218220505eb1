"""An HTTP proxy on loopback that counts what is read through it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@contextlib.contextmanager
def counting_proxy(endpoint: str) -> Iterator[tuple[str, Counter]]:
    """(its URL, how often each path was got) of a proxy before ``endpoint``. Requests arrive there as they were signed."""
    host, counted, lock = urlsplit(endpoint).netloc, Counter(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.command == "GET":
                with lock:
                    counted[urlsplit(self.path).path] += 1
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, *_) -> None:
            """Nothing: the tests look at the counts."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counted
    finally:
        server.shutdown()
        server.server_close()

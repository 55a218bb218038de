"""A server on this machine that answers while a block runs."""

import threading
from http.server import ThreadingHTTPServer


class LocalServer(ThreadingHTTPServer):
    """Listens on a free port from the start of its block to the end."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()
        self.thread.join()

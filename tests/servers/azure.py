"""Azurite's blob server as a process of its own, where npm has installed it. In: nothing. Out: an
endpoint, containers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from servers.ports import free_port, wait_until_open

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True, kw_only=True)
class AzureServer:
    """A running server. The key is the one that every azurite has."""

    endpoint: str

    def make_container(self, name: str) -> str:
        """Create a container, with azure's own client."""
        from azure.storage.blob import BlobServiceClient

        text = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.endpoint};"
        )
        with BlobServiceClient.from_connection_string(text) as service:
            service.create_container(name).close()
        return name


def azurite_program() -> str | None:
    """The program, from `AZURITE` or the PATH."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


@contextmanager
def azure_server_running(program: str) -> Iterator[AzureServer]:
    """Start the server on a free port and stop it at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [
                program,
                "--blobPort",
                str(port),
                "--skipApiVersionCheck",
                "--silent",
                "-l",
                directory,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until_open(port)
            yield AzureServer(endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}")
        finally:
            process.kill()
            process.wait()

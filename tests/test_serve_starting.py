"""What a server answers before it can decode."""

import json
import socket
import urllib.error
import urllib.request

import pytest
from specpilot.serve.run import answering


def test_503_with_the_reason_until_the_server_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/health"

        def health() -> tuple[int, dict[str, str]]:
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(address, timeout=20)
            return error.value.code, json.load(error.value)

        with answering(listener) as say:
            assert health() == (503, {"status": "starting", "reason": "the models are being loaded"})
            with socket.create_connection(listener.getsockname()):
                pass  # a client that says nothing
            say("costs are measured")
            assert health() == (503, {"status": "starting", "reason": "costs are measured"})
        assert capsys.readouterr().err == "specpilot: costs are measured\n"
        assert listener.gettimeout() is None
        with socket.create_connection(listener.getsockname()) as late, listener.accept()[0] as accepted:
            late.sendall(b"x")  # is the server's
            assert accepted.recv(1) == b"x"

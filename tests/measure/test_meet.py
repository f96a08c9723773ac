"""Hosts that wait for each other before a run, on ports of this machine."""

import socket
import threading

import pytest

from meshplan.errors import InputError
from meshplan.measure.failures import MachineError
from meshplan.measure.launch import LocalLauncher
from meshplan.measure.slurm import SlurmLauncher


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def launcher(port, rank, nodes=3):
    return LocalLauncher(nodes=nodes, node_rank=rank, address=f"127.0.0.1:{port}")


def together(port, ranks):
    """What each of the hosts raised, by rank."""
    found = {}

    def one(rank):
        try:
            launcher(port, rank).check()
            found[rank] = ""
        except MachineError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=(r,)) for r in ranks]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=20)
    return found


def test_hosts_meet_in_any_order_and_the_port_is_free_again(port, monkeypatch):
    monkeypatch.setenv("MESHPLAN_PATIENCE", "10")
    for order in ((0, 1, 2), (2, 1, 0)):
        assert together(port, order) == {0: "", 1: "", 2: ""}
    with socket.socket() as again:
        again.bind(("", port))


def test_a_host_that_does_not_come_is_named(port, monkeypatch):
    monkeypatch.setenv("MESHPLAN_PATIENCE", "1")
    found = together(port, (0, 2))
    assert found[0].startswith(f"host 1 of 3 did not come to port {port} in 1 s")
    assert found[2].startswith(f"127.0.0.1:{port} does not answer")


def test_what_only_knocks_is_not_a_host(port, monkeypatch):
    monkeypatch.setenv("MESHPLAN_PATIENCE", "3")

    def knock():
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"meshplan 7\n", b"meshplan x\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=3) as to:
                to.sendall(words)
                to.recv(8)

    first = {}
    host = threading.Thread(target=lambda: first.update(together(port, (0,))))
    host.start()
    for _ in range(100):
        try:
            knock()
            break
        except ConnectionRefusedError:
            threading.Event().wait(0.02)
    host.join(timeout=20)
    assert "host 1, 2 of 3 did not come" in first[0]


def test_a_host_without_answer_is_said(port, monkeypatch):
    monkeypatch.setenv("MESHPLAN_PATIENCE", "0.5")
    with pytest.raises(MachineError, match="does not answer: connection refused"):
        launcher(port, 1).check()


def test_a_port_in_use_is_said_across_hosts_too(port):
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        with pytest.raises(MachineError, match=f"port {port} is in use"):
            launcher(port, 0).check()


@pytest.mark.parametrize("address", ["host:abc", "host:0", "host:70000", ":29500", "host:"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InputError, match="--address is HOST:PORT"):
        LocalLauncher(nodes=2, address=address)


def test_options_of_sbatch_keep_their_values(tmp_path):
    options = ("--partition=x", "--account", "a b", "-p", "y", "--exclusive")
    text = SlurmLauncher(options=options).script(2, ["m"], tmp_path / "log", limit_s=60)
    lines = [x for x in text.splitlines() if x.startswith("#SBATCH")]
    assert lines[-4:] == [
        "#SBATCH --partition=x", "#SBATCH --account 'a b'", "#SBATCH -p y", "#SBATCH --exclusive",
    ]  # fmt: skip
    with pytest.raises(InputError, match="--partition=gpu say, not gpu"):
        SlurmLauncher(options=("gpu",))

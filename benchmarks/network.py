"""Two hosts on one machine: network namespaces with host names of their own, and a link between them, fast or slow."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

# Stands in for ssh: [options] address command...
_AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {cases} *) echo "there is no host $1" >&2; exit 255;; esac
shift
exec ip netns exec "$space" unshare --uts sh -c "hostname $space; exec sh -c '$*'"
"""
_ADDRESSES = ["10.87.0.1", "10.87.0.2"]
_RELAY = Path(__file__).with_name("relay.py")
_PATIENCE_S = 10.0


class NoNamespacesError(RuntimeError):
    """This machine, or this user, cannot make network namespaces; the text says why."""


@dataclass(frozen=True)
class SlowLink:
    """What a packet meets on its way, in each direction."""

    delay_s: float
    bytes_per_s: float


@functools.cache
def flavour_of(mpiexec: str) -> str:
    """``openmpi`` or ``mpich``: whose mpiexec it is."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return "mpich" if "HYDRA" in said.stdout else "openmpi"


def mpiexec_options(mpiexec: str) -> list[str]:
    """How ranks are started on this machine, also more than there are cores.

    Threads may use all cores, as with horocacherun: Open MPI would bind each of two ranks to one core.
    """
    if flavour_of(mpiexec) == "openmpi":
        return ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return []


@dataclass
class Hosts:
    """``spaces[i]`` has the address ``addresses[i]`` on the interface ``interfaces[i]``."""

    spaces: list[str]
    interfaces: list[str]
    addresses: list[str]
    agent: Path
    # Between the hosts through their interfaces; and Open MPI does not know that both share the machine's cores.
    environment: ClassVar[dict[str, str]] = {"OMPI_MCA_btl": "tcp,self,sm", "OMPI_MCA_mpi_yield_when_idle": "1"}

    def command(self, mpiexec: str, per_host: int, program: list[str]) -> list[str]:
        """Start Python with ``program`` on so many ranks of each host, from the first, with mpiexec's own start."""
        ranks = str(per_host * len(self.spaces))
        if flavour_of(mpiexec) == "openmpi":
            hosts = ",".join(f"{address}:{per_host}" for address in self.addresses)
            options = ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts]
            options += ["--bind-to", "none"]
        else:
            launcher = ["-launcher", "ssh", "-launcher-exec", str(self.agent)]
            options = [*launcher, "-hosts", ",".join(self.addresses), "-ppn", str(per_host)]
        inner = [mpiexec, *options, "-n", ranks, sys.executable, *program]
        script = f"hostname {self.spaces[0]}; exec {shlex.join(inner)}"
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c", script]

    def cut(self) -> None:
        """Take the first host's interface down."""
        _ip("-n", self.spaces[0], "link", "set", self.interfaces[0], "down")

    def kill_all(self) -> None:
        """End everything that runs on the hosts."""
        for space in self.spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for pid in listed.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue


@contextmanager
def two_hosts(folder: Path, link: SlowLink | None = None) -> Iterator[Hosts]:
    """Hosts that are joined by a pair of interfaces, or by a slow link; gone afterwards, with all that runs on them.

    Args:
        folder: for a script that outlives none of it.
        link: None for as fast as the kernel is.

    Raises:
        NoNamespacesError: that cannot be had here.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNamespacesError("network namespaces need root and the command ip (Debian: iproute2)")
    tag = f"hc{os.getpid() % 100000}"
    hosts = Hosts([f"{tag}a", f"{tag}b"], [f"{tag}va", f"{tag}vb"], list(_ADDRESSES), folder / "agent.sh")
    _write_agent(hosts)
    with ExitStack() as stack:
        stack.callback(_remove, hosts.spaces)
        try:
            for space in hosts.spaces:
                _ip("netns", "add", space)
                _ip("-n", space, "link", "set", "lo", "up")
            start_link = _make_pair(hosts) if link is None else stack.enter_context(_relayed(hosts, link))
            for space, interface, address in zip(hosts.spaces, hosts.interfaces, hosts.addresses, strict=True):
                _ip("-n", space, "addr", "add", f"{address}/24", "dev", interface)
                _ip("-n", space, "link", "set", interface, "up")
            start_link()
            _wait_until_connected(hosts)
        except subprocess.CalledProcessError as error:
            raise NoNamespacesError(f"this machine makes no network namespaces: {error.stderr.strip()}") from error
        stack.callback(hosts.kill_all)
        yield hosts


def _write_agent(hosts: Hosts) -> None:
    pairs = zip(hosts.addresses, hosts.spaces, strict=True)
    cases = " ".join(f"{address}) space={space};;" for address, space in pairs)
    hosts.agent.write_text(_AGENT.format(cases=cases), encoding="utf-8")
    hosts.agent.chmod(0o755)


def _make_pair(hosts: Hosts) -> Callable[[], None]:
    (first, second), (near, far) = hosts.spaces, hosts.interfaces
    _ip("link", "add", near, "netns", first, "type", "veth", "peer", far, "netns", second)
    return lambda: None  # it needs no start


@contextmanager
def _relayed(hosts: Hosts, link: SlowLink) -> Iterator[Callable[[], None]]:
    """The interfaces' ends meet in a process that holds every packet back; what is yielded starts it."""
    arguments = [sys.executable, str(_RELAY), *hosts.interfaces, str(link.delay_s), str(link.bytes_per_s)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as relay:
        assert relay.stdin is not None and relay.stdout is not None and relay.stderr is not None
        try:
            if relay.stdout.readline() != b"ready\n":
                raise NoNamespacesError(f"no slow link: {relay.stderr.read().decode().strip()}")
            for space, interface in zip(hosts.spaces, hosts.interfaces, strict=True):
                _ip("link", "set", interface, "netns", space)
            yield functools.partial(_start, relay.stdin)
        finally:
            relay.kill()


def _start(pipe: IO[bytes]) -> None:
    pipe.write(b"go\n")
    pipe.flush()


def _wait_until_connected(hosts: Hosts) -> None:
    """A new interface takes a moment until it is up, and UCX leaves out those that are not."""
    limit = time.monotonic() + _PATIENCE_S
    for space, interface in zip(hosts.spaces, hosts.interfaces, strict=True):
        while "LOWER_UP" not in _ip("-n", space, "link", "show", interface):
            if time.monotonic() > limit:
                raise NoNamespacesError(f"the interface {interface} of {space} does not come up")
            time.sleep(0.02)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _remove(spaces: list[str]) -> None:
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

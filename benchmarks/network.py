"""Two hosts on one machine: network namespaces with their own host names, and a fast or slow link between them."""

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

import psutil

# Replaces ssh, and is called like it: [options] address command...
_AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {cases} *) echo "there is no host $1" >&2; exit 255;; esac
shift
exec ip netns exec "$space" unshare --uts sh -c "hostname $space; exec sh -c '$*'"
"""
_ADDRESSES = ["10.87.0.1", "10.87.0.2"]
_RELAY = Path(__file__).with_name("relay.py")
_PATIENCE_S = 10.0  # seconds to wait until an interface is up


class NoNamespacesError(RuntimeError):
    """This machine, or this user, cannot make network namespaces; the text says why."""


@dataclass(frozen=True)
class SlowLink:
    """Delay and rate of a link, in each direction."""

    delay_s: float
    bytes_per_s: float


@functools.cache
def flavour_of(mpiexec: str) -> str:
    """Return ``openmpi`` or ``mpich``: the MPI that ``mpiexec`` belongs to."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return "mpich" if "HYDRA" in said.stdout else "openmpi"


def mpiexec_options(mpiexec: str) -> list[str]:
    """Return the options that start ranks on this machine, also more ranks than cores.

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
    # Ranks of different hosts use the interfaces. Open MPI cannot see that both hosts share the machine's cores.
    environment: ClassVar[dict[str, str]] = {"OMPI_MCA_btl": "tcp,self,sm", "OMPI_MCA_mpi_yield_when_idle": "1"}

    def command(self, mpiexec: str, per_host: int, program: list[str]) -> list[str]:
        """Return the command, for the first host, that starts ``per_host`` ranks of ``program`` on each host."""
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
        """Kill all processes on the hosts."""
        for space in self.spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for pid in listed.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue


@contextmanager
def two_hosts(folder: Path, link: SlowLink | None = None) -> Iterator[Hosts]:
    """Make two hosts, connected by a pair of interfaces or a slow link; remove them at the end, with their processes.

    Args:
        folder: for the script that replaces ssh; must exist as long as the hosts.
        link: None: as fast as the kernel.

    Raises:
        NoNamespacesError: the hosts cannot be made here.
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


def name_interface() -> None:
    """Set ``GLOO_SOCKET_IFNAME`` on a host of :func:`two_hosts` to its interface; elsewhere leave it unchanged."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address in _ADDRESSES for address in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = name


def _write_agent(hosts: Hosts) -> None:
    pairs = zip(hosts.addresses, hosts.spaces, strict=True)
    cases = " ".join(f"{address}) space={space};;" for address, space in pairs)
    hosts.agent.write_text(_AGENT.format(cases=cases), encoding="utf-8")
    hosts.agent.chmod(0o755)


def _make_pair(hosts: Hosts) -> Callable[[], None]:
    (first, second), (near, far) = hosts.spaces, hosts.interfaces
    _ip("link", "add", near, "netns", first, "type", "veth", "peer", far, "netns", second)
    return lambda: None  # a pair needs no start


@contextmanager
def _relayed(hosts: Hosts, link: SlowLink) -> Iterator[Callable[[], None]]:
    """Connect the interfaces through a process that delays every packet; yields a function that starts it."""
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
    """Wait until the interfaces are up: a new one takes a moment, and UCX leaves out interfaces that are down."""
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

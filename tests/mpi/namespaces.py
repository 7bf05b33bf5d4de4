"""Two hosts on one machine: network namespaces with host names of their own, joined by a pair of interfaces."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from mpi_jobs import MPIEXEC, flavour

# Stands in for ssh: [options] address command...
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in {cases} *) echo "there is no host $1" >&2; exit 255;; esac
shift
exec ip netns exec "$space" unshare --uts sh -c "hostname $space; exec sh -c '$*'"
"""


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@dataclass
class Hosts:
    """``spaces[i]`` has the address ``addresses[i]`` on the interface ``interfaces[i]``."""

    spaces: list[str]
    interfaces: list[str]
    addresses: list[str]
    agent: Path
    environment: ClassVar[dict[str, str]] = {"OMPI_MCA_btl": "tcp,self,sm"}

    def command(self, per_host: int, program: list[str]) -> list[str]:
        """Start ``program`` on so many ranks of each host, from the first, with mpiexec's own start."""
        ranks = str(per_host * len(self.spaces))
        if flavour() == "openmpi":
            hosts = ",".join(f"{address}:{per_host}" for address in self.addresses)
            options = ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts]
        else:
            launcher = ["-launcher", "ssh", "-launcher-exec", str(self.agent)]
            options = [*launcher, "-hosts", ",".join(self.addresses), "-ppn", str(per_host)]
        inner = [str(MPIEXEC), *options, "-n", ranks, sys.executable, *program]
        script = f"hostname {self.spaces[0]}; exec {shlex.join(inner)}"
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c", script]

    def cut(self) -> None:
        """Take the first host's interface down."""
        ip("-n", self.spaces[0], "link", "set", self.interfaces[0], "down")

    def kill_all(self) -> None:
        for space in self.spaces:
            listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for pid in listed.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def wait_until_connected(self) -> None:
        """A new interface takes a moment until it is up, and UCX leaves out those that are not."""
        limit = time.monotonic() + 10
        for space, interface in zip(self.spaces, self.interfaces, strict=True):
            while "state UP" not in ip("-n", space, "link", "show", interface):
                assert time.monotonic() < limit, f"{interface} does not come up"
                time.sleep(0.02)


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Skips where this user may not make namespaces."""
    tag = f"hc{os.getpid() % 100000}"
    spaces, interfaces = [f"{tag}a", f"{tag}b"], [f"{tag}va", f"{tag}vb"]
    addresses = ["10.87.0.1", "10.87.0.2"]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip (Debian: iproute2)")
    agent = folder / "agent.sh"
    cases = " ".join(f"{address}) space={space};;" for address, space in zip(addresses, spaces, strict=True))
    agent.write_text(AGENT.format(cases=cases))
    agent.chmod(0o755)
    hosts = Hosts(spaces, interfaces, addresses, agent)
    try:
        for space in spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("link", "add", interfaces[0], "netns", spaces[0], "type", "veth", "peer", interfaces[1], "netns", spaces[1])
        for space, interface, address in zip(spaces, interfaces, addresses, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", space, "link", "set", interface, "up")
    except subprocess.CalledProcessError as error:
        _remove(spaces)
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
    try:
        hosts.wait_until_connected()
        yield hosts
    finally:
        hosts.kill_all()
        _remove(spaces)


def _remove(spaces: list[str]) -> None:
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

"""The check finds paths and registries of one machine."""

import pytest


@pytest.mark.parametrize(
    "text",
    [
        "/data/set/x",
        "see /root/.cache",
        "/home/ann/src",
        "PATH=/usr/bin:/home/ann/bin",
        "cat /tmp/log",
        "https://pypi.org/simple",
        "pip --index-url x",
    ],
)
def test_paths_and_registries_of_one_machine_are_found(lint, text):
    [finding] = lint("check_names", {"docs/a.md": f"\n{text}\n"})
    assert finding.startswith("docs/a.md:2:")


@pytest.mark.parametrize(
    "text",
    ["/usr/bin/env", 'mkdtemp("/tmp/x-XXXXXX")', "network/data/x", "a TMPDIR, /dev/shm", "${OUT}/tmp/x", "homework/x"],
)
def test_ordinary_paths_are_allowed(lint, text):
    assert lint("check_names", {"docs/a.md": f"{text}\n"}) == []
